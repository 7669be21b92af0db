"""What DAP's released evaluation is worth: test batches of one task that vote for their task.

    python benchmarks/dap_batch_vote.py --seed 1993

Learns DAP task by task. Then the test images are scored as `ease` scores them, each by its own nearest key, and as the
released code does: in batches of one task, whose images vote for one key, without and with ruling out the classes of
other tasks. A vote over shuffled images shows that the gain is not the vote but the batches: they tell the learner
which images belong together. This is an analysis and no method: none of it is a figure of `dap`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from ease.backbone.zoo import load_backbone
from ease.config import resolve
from ease.experiments.inputs import make_tasks
from ease.methods._prompting import cosines
from ease.methods.dap import Dap, PromptGenerator, batch_vote_analysis
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.randomness import permutation

BATCHES = (8, 32, 128)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--data-root")
    parser.add_argument("--protocol", default="B0 Inc6")
    parser.add_argument("--backbone", default="ease-vit")
    parser.add_argument("--weights")
    parser.add_argument("--input-size", type=int)
    parser.add_argument("--seed", type=int, default=1993)
    parser.add_argument("--limit", type=int, dest="limit_per_class", help="images per class")
    config, _ = resolve({**vars(parser.parse_args()), "method": "dap"}, preset="few-images")
    backbone = load_backbone(config.backbone, weights=config.weights, input_size=config.input_size)
    stream, _ = make_tasks(config)
    engine = Engine(
        backbone,
        Transforms(backbone.pixels, stream.augmentation),
        seed=config.seed,
        batch_size=config.eval_batch_size,
    )
    learner = Dap(engine, Dap.Settings.model_validate(config.settings))
    for task in stream.tasks:
        learner.learn(task)
    of_task = [engine.pixels(task.test) for task in stream.tasks]
    labels = torch.cat([torch.from_numpy(task.test.labels) for task in stream.tasks])
    pixels = torch.cat(of_task)
    order = torch.from_numpy(permutation(len(pixels), config.seed, "vote", 0))

    def show(what: str, logits: Tensor, truth: Tensor = labels) -> None:
        print(f"{what:58} {100 * float((logits.argmax(dim=1) == truth).double().mean()):6.2f}", flush=True)

    assert isinstance(learner.pool, PromptGenerator)
    query = engine.features_of_pixels(pixels, [None])[0]
    nearest = cosines(query, torch.stack(list(learner.pool.keys)).detach()).argmax(dim=1)
    true = torch.tensor([learner.task_of(int(label)) for label in labels])
    print(f"nearest key is that of the image's task: {100 * float((nearest == true).double().mean()):.2f} %")
    show("each image by itself: `dap`", learner.logits(pixels))
    for size in BATCHES:
        shuffled = batch_vote_analysis(learner, pixels[order], size)
        show(f"analysis: vote of {size} shuffled images", shuffled, labels[order])
        for ruled_out in (False, True):
            voted = torch.cat([batch_vote_analysis(learner, some, size, ruled_out) for some in of_task])
            more = ", other classes ruled out" if ruled_out else ""
            show(f"analysis: vote of {size} images of one task{more}", voted)


if __name__ == "__main__":
    main()
