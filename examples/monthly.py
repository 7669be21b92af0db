"""New classes every month, without keeping last month's photos.

python examples/glyph_folders.py photos && python examples/monthly.py photos model
"""

from __future__ import annotations

import sys
from pathlib import Path

from ease import Classifier
from ease.app.evaluation import evaluate_folder


def main(photos: Path, model: Path) -> None:
    # Letters must not be mirrored; for photos of things leave `augment` out.
    classifier = Classifier.create(model, augment="gentle")

    for month in ("march", "april", "may"):
        learned = classifier.learn(photos / month)
        first, _ = evaluate_folder(classifier, photos / "test-march")
        print(
            f"{month}: learned {', '.join(learned.classes)} from {learned.images} photos; "
            f"March's classes among {len(classifier.classes)}: {first.accuracy:.1f} %"
        )

    everything, _ = evaluate_folder(classifier, photos / "test")
    print(
        f"all {len(classifier.classes)} classes: {everything.accuracy:.1f} %; worst: {list(everything.by_class())[:3]}"
    )

    photo = sorted((photos / "test" / classifier.classes[-1]).iterdir())[0]
    (answer,) = classifier.predict(photo, top_k=3)
    for name, sure in zip(answer.names, answer.confidences, strict=True):
        print(f"  {name}: {100 * sure:.1f} %")

    before = classifier.generation
    classifier.rename(classifier.classes[-1], "renamed")
    classifier.rollback(before)
    print(f"renamed, and rolled back to generation {classifier.generation}")

    done = classifier.forget(classifier.classes[0])
    print(f"forgot {done.name}; synthesised prototypes of others turned by at most {done.moved:.2g}")


if __name__ == "__main__":
    arguments = sys.argv[1:] or ["photos", "model"]
    main(Path(arguments[0]), Path(arguments[1]))
