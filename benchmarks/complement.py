"""How near synthesised prototypes come to real ones, by variant and option.

Learns EASE task by task. Then, which no learner may do, looks at old training images again to see what their prototypes
in later subspaces really are. No test image is used, so the figures may serve to choose options.

    python benchmarks/complement.py --limit 40
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.backbone.zoo import load_backbone
from ease.config import resolve
from ease.experiments.inputs import make_tasks
from ease.heads import class_means
from ease.heads.complement import Synthesis, complete, linear_map, nearest_images, semantic, transported
from ease.methods.ease import Ease
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

NEIGHBOURS = (1, 5, 20, 50, 100, 200)
RIDGES = (0, 0.001, 0.01, 0.1, 1, 10)
REGULARISATIONS = (0.01, 0.03, 0.1, 0.3, 1, 3)


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
    parser.add_argument("--limit", type=int, dest="limit_per_class", help="images per class")
    config, _ = resolve(vars(parser.parse_args()), preset="few-images")
    backbone = load_backbone(config.backbone, weights=config.weights, input_size=config.input_size)
    stream, _ = make_tasks(config)
    engine = Engine(
        backbone, Transforms(backbone.pixels, stream.augmentation), batch_size=config.eval_batch_size
    )
    learner = Ease(engine, Ease.Settings.model_validate(config.settings))
    for task in stream.tasks:
        learner.learn(task)
    bank, columns = learner.bank, learner.columns()
    features = [engine.features(task.train, learner.tunings) for task in stream.tasks]
    labels = [torch.from_numpy(task.train.labels) for task in stream.tasks]
    real = torch.cat(
        [
            class_means(f, y, task.classes)[0]
            for f, y, task in zip(features, labels, stream.tasks, strict=True)
        ],
        dim=1,
    )
    missing = torch.ones(real.shape[:2], dtype=torch.bool)
    for task, subspace in bank.cells:
        missing[subspace - 1, bank.rows(task)] = False

    def of_classes(synthesise: Synthesis) -> Iterator[Tensor]:
        for references in ("triangle", "newest"):
            yield complete(bank, columns, references, synthesise)

    def of_images(neighbours: int) -> Iterator[Tensor]:
        for old in range(bank.tasks):
            for new in range(old + 1, bank.tasks):
                bank.synthesised[old, new + 1] = nearest_images(
                    bank.cells[old, old + 1], features[new][old], features[new][new], neighbours
                )
        yield complete(bank, columns, "newest", None)

    trials: list[tuple[str, Callable[[], Iterator[Tensor]]]] = [("pps", partial(of_classes, semantic))]
    trials += [(f"pis {k}", partial(of_images, k)) for k in NEIGHBOURS]
    trials += [(f"lr {r:g}", partial(of_classes, partial(linear_map, ridge=r))) for r in RIDGES]
    trials += [
        (f"ot {r:g}", partial(of_classes, partial(transported, regularisation=r))) for r in REGULARISATIONS
    ]
    print(
        "for each kind of references (triangle, newest): cosine of estimate and real prototype, the same after"
    )
    print("taking away the mean of the subspace's real prototypes, mean training accuracy over all classes")
    for name, estimates in trials:
        figures = []
        for full in estimates():
            centre = real.mean(dim=1, keepdim=True)
            plain = F.cosine_similarity(full, real, dim=-1)[missing].mean()
            centred = F.cosine_similarity(full - centre, real - centre, dim=-1)[missing].mean()
            learner._classifier = full
            right = [(learner.head(f).argmax(1) == y).float() for f, y in zip(features, labels, strict=True)]
            figures.append(f"{plain:.3f} {centred:.3f} {100 * torch.cat(right).mean():.2f}")
        print(f"{name:10s} {'   '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
