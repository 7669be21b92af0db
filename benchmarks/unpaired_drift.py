"""How far SSIAT's released estimate moves the means of old classes when nothing has drifted at all.

The features of the second task's images are taken once and serve as those before and after the task. The estimate of
the text is then exactly zero. That of the released code is the mean of the new images minus a weighted mean of those
near the old class, and is zero only if all weights are equal.

    python -m benchmarks.unpaired_drift
    EASE_SHARED=DIR python -m benchmarks.unpaired_drift --photos cifar100-200
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.learning_rates import GLYPHS, photos
from ease.backbone.zoo import load_backbone
from ease.config import resolve
from ease.experiments.inputs import make_tasks
from ease.heads import class_means
from ease.heads.drift import drift, unpaired_drift
from ease.methods.ssiat import SsiatSettings
from ease.streams.transforms import Transforms
from ease.training.engine import Engine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", metavar="DIR", help="the CIFAR-100 subset in DIR instead of glyphs")
    asked = parser.parse_args()
    config, _ = resolve({**(photos(asked.photos) if asked.photos else GLYPHS), "method": "simplecil"})
    backbone = load_backbone(config.backbone, weights=config.weights, input_size=config.input_size)
    stream, _ = make_tasks(config)
    engine = Engine(backbone, Transforms(backbone.pixels, stream.augmentation), seed=config.seed)
    old, new = stream.tasks[:2]
    features = engine.features(old.train, [None])
    means = class_means(features, torch.from_numpy(old.train.labels), old.classes)[0][0]
    images = engine.features(new.train, [None])[0]
    settings = SsiatSettings()
    sigma, floor = settings.shift_sigma, settings.shift_floor
    weights = torch.exp(-(torch.cdist(images, means) ** 2) / (2 * sigma**2)) + floor
    effective = weights.sum(0) ** 2 / (weights**2).sum(0)
    moved = {
        "text": drift(images, images, means, sigma, floor),
        "released": unpaired_drift(images, images, means, sigma, floor),
    }
    print(f"{config.dataset}, {config.backbone}: {len(means)} old classes, {len(images)} new images")
    print(f"images that weigh, median over classes: {effective.median():.0f}")
    print(f"distance between old class means: {torch.pdist(means).mean():.1f}")
    for variant, shift in moved.items():
        print(f"{variant}: means move by {shift.norm(dim=1).mean():.1f}")


if __name__ == "__main__":
    main()
