"""Which score of the logits tells images of unknown classes, and does its threshold hold while classes are added?

EASE learns 15 classes task by task; 15 others stay unknown. After each task its held-out images, scored among the
classes there are by then, give a temperature and a threshold; `ease.app.confidence` joins them. In the end new images
of known and unknown classes are judged: in fonts (or train images) like those learned from, and in the test set's.

    python benchmarks/unknowns.py
    python benchmarks/unknowns.py --protocol "B0 Inc1"
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ease.app.confidence import Calibration, auroc, expected_calibration_error, hold_out
from ease.backbone.zoo import load_backbone
from ease.config import RunConfig, resolve
from ease.engine.engine import Engine
from ease.methods.ease import Ease
from ease.streams import ImageSet, Task
from ease.streams.transforms import Transforms
from ease.studies.run import make_tasks

KNOWN = 15
JUDGED = 18
"""Images per class that are judged in the end."""


def margin(logits: Tensor, temperature: float) -> Tensor:
    """To the runner-up; a single class has none."""
    if logits.shape[1] == 1:
        return torch.zeros_like(logits[:, 0])
    best = logits.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


SCORES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "largest probability": lambda logits, t: (logits / t).softmax(dim=1).amax(dim=1),
    "largest logit": lambda logits, t: logits.amax(dim=1),
    "margin": margin,
    "energy": lambda logits, t: t * (logits / t).logsumexp(dim=1),
}
"""All high for known images."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--data-root")
    parser.add_argument("--protocol", default="B0 Inc5")
    parser.add_argument("--backbone", default="ease-vit")
    parser.add_argument("--weights")
    parser.add_argument("--input-size", type=int)
    parser.add_argument("--limit", type=int, default=20, help="images per class to learn from and hold out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1, 2])
    options = vars(parser.parse_args())
    limit, seeds = options.pop("limit"), options.pop("seeds")
    figures: dict[str, list[list[float]]] = defaultdict(list)
    for seed in seeds:
        config, _ = resolve({**options, "seed": seed}, preset="small")
        for name, row in measure(config, limit).items():
            figures[name].append(row)
        print(f"seed {seed} done", flush=True)
    means = {name: np.nanmean(rows, axis=0) for name, rows in figures.items()}
    print("\nmean over seeds; first the fonts (or train images) learned from, then those of the test set")
    print(f"{'score':20s} {'AUROC':>11s} {'known accepted':>16s} {'unknown accepted':>18s}")
    for name in SCORES:
        a, k, u, b, m, v = means[name]
        print(f"{name:20s} {a:5.3f} {b:5.3f} {k:10.1%} {m:5.1%} {u:12.1%} {v:5.1%}")
    a, before, after, b, worse, better = means["calibration"]
    print(
        f"accuracy {a:.1%} {b:.1%}; calibration error before {before:.3f} {worse:.3f}, after {after:.3f} {better:.3f}"
    )


def measure(config: RunConfig, limit: int) -> dict[str, list[float]]:
    """Per score AUROC, known and unknown accepted; accuracy and calibration errors. Each for both kinds of images."""
    backbone = load_backbone(config.backbone, weights=config.weights, input_size=config.input_size)
    stream, _ = make_tasks(config)
    transforms = Transforms(backbone.pixels, stream.augmentation)
    engine = Engine(backbone, transforms, seed=config.seed, batch_size=config.eval_batch_size)
    learner = Ease(engine, Ease.Settings.model_validate(config.settings))

    def logits(images: ImageSet) -> Tensor:
        return learner.head(engine.features(images, [s.tuning for s in learner.subspaces()])).double()

    calibration = Calibration.none()
    thresholds = dict.fromkeys(SCORES, Calibration.none())
    known = [task for task in stream.tasks if task.classes.stop <= KNOWN]
    unknown = [
        task for task in stream.tasks if task.classes.start >= KNOWN and task.classes.stop <= 2 * KNOWN
    ]
    for task in known:
        learn, held = hold_out(task.train.limit(limit))
        learner.learn(replace(task, train=learn))
        found, labels = logits(held), torch.from_numpy(held.labels)
        own = Calibration.fit(found, labels)
        calibration = calibration.joined(own)
        for name, score in SCORES.items():  # as the logits of a single class: the same rule for all
            one = score(found, own.temperature)[:, None]
            thresholds[name] = thresholds[name].joined(Calibration.fit(one, torch.zeros_like(labels)))
    thresholds["largest logit"] = calibration  # the same, but for single images
    figures: dict[str, list[float]] = defaultdict(list)
    for part in (lambda task: left_over(task, limit), lambda task: task.test.limit(JUDGED)):
        old, new = (torch.cat([logits(part(task)) for task in tasks]) for tasks in (known, unknown))
        labels = torch.cat([torch.from_numpy(part(task).labels) for task in known])
        for name, score in SCORES.items():
            ours, others = (score(some, calibration.temperature) for some in (old, new))
            least = thresholds[name].threshold
            accepted = [float((scores >= least).double().mean()) for scores in (ours, others)]
            figures[name] += [auroc(-ours, -others), *accepted]
        errors = [
            expected_calibration_error(p, labels) for p in (old.softmax(dim=1), calibration.confidences(old))
        ]
        figures["calibration"] += [float((old.argmax(dim=1) == labels).double().mean()), *errors]
    return figures


def left_over(task: Task, limit: int) -> ImageSet:
    """Training images that were neither learned from nor held out."""
    own = [np.flatnonzero(task.train.labels == c)[limit : limit + JUDGED] for c in task.classes]
    return task.train.take(np.concatenate(own))


if __name__ == "__main__":
    main()
