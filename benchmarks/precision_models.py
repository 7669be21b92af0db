"""Models learned in one precision and opened in the other: accuracy, agreement, confidences, unknown photos.

Photos in `DIR/train/CLASS` and `DIR/test/CLASS`, such as those of photos-42; the last classes by name are not learned,
and their test photos are unknown ones.

    python -m benchmarks.precision_models DIR --weights deit_tiny_patch16_224.safetensors
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from ease import Classifier
from ease.training.hardware import Precision

PRECISIONS: tuple[Precision, Precision] = ("32-true", "bf16-mixed")
METHODS: dict[str, dict[str, Any]] = {
    "strata": {},
    "simplecil": {},
    "ranpac": {"epochs": 2},
    "ease": {"epochs": 2},
}


def photos(folder: Path, count: int) -> dict[str, list[Path]]:
    """The first photos of each class."""
    return {place.name: sorted(place.iterdir())[:count] for place in sorted(folder.iterdir())}


def rows(method: str, options: argparse.Namespace) -> list[str]:
    """One line for each precision that the model is learned in."""
    train = photos(options.folder / "train", options.train)
    test = photos(options.folder / "test", options.test)
    known = list(train)[: -options.unknown]
    names = [name for name in known for _ in test[name]]
    seen = [path for name in known for path in test[name]]
    strange = [path for name in list(train)[-options.unknown :] for path in test[name]]
    half = len(known) // 2
    lines = []
    for learned_in in PRECISIONS:
        with tempfile.TemporaryDirectory() as folder:
            model = Classifier.create(
                Path(folder) / "model",
                options.backbone,
                weights=options.weights,
                input_size=options.input_size,
                method=method,
                settings=METHODS[method],
                precision=learned_in,
            )
            for part in (known[:half], known[half:]):
                model.learn({name: train[name] for name in part})
            answers = {}
            for opened_in in PRECISIONS:
                opened = Classifier.open(model.path, options.weights, precision=opened_in)
                answers[opened_in] = opened.predict(seen), opened.predict(strange)
        first, second = (answers[p] for p in PRECISIONS)
        accuracies = [
            100 * torch.tensor([a.name == n for a, n in zip(found[0], names, strict=True)]).double().mean()
            for found in (first, second)
        ]
        pairs = list(zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True))
        same = 100 * sum(a.name == b.name for a, b in pairs) / len(pairs)
        apart = torch.tensor([abs(a.classes[0].confidence - b.classes[0].confidence) for a, b in pairs])
        flipped = sum(a.is_unknown != b.is_unknown for a, b in pairs)
        flagged = [f"{sum(a.is_unknown for a in found[1])} of {len(strange)}" for found in (first, second)]
        cells = [
            method,
            learned_in,
            *(f"{accuracy:.2f}" for accuracy in accuracies),
            f"{same:.1f} %",
            f"{apart.median():.4f} / {apart.max():.3f}",
            *flagged,
            f"{flipped} of {len(pairs)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--input-size", type=int, default=128)
    parser.add_argument("--train", type=int, default=10, help="photos per class")
    parser.add_argument("--test", type=int, default=12, help="photos per class")
    parser.add_argument("--unknown", type=int, default=10, help="classes that are not learned")
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    heads = ["method", "learned in", "opened in 32-true", "in bf16-mixed", "same name", "confidences apart"]
    heads += ["unknown found, 32-true", "bf16-mixed", "verdict changed"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for method in options.methods.split(","):
        print("\n".join(rows(method, options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
