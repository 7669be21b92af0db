"""Three months of photos to try things with: folders of drawn characters, five new classes each month.

python examples/glyph_folders.py photos
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from ease.streams.datasets import load_dataset
from ease.streams.images import ImageSet

MONTHS = ("march", "april", "may")
CLASSES, PHOTOS = 5, 30


def main(root: Path) -> None:
    data = load_dataset("glyphs")
    for label in range((len(MONTHS) + 1) * CLASSES):
        number, name = label // CLASSES, data.class_names[label]
        test = data.test.of_classes([label])
        write(test, root / "test-with-strangers" / name)  # its last five are classes that no month teaches
        if number < len(MONTHS):
            write(data.train.of_classes([label]).limit(PHOTOS), root / MONTHS[number] / name)
            write(test, root / "test" / name)
        if number == 0:
            write(test, root / f"test-{MONTHS[0]}" / name)
    print(f"wrote {', '.join(p.name for p in sorted(root.iterdir()))} to {root}")


def write(images: ImageSet, folder: Path) -> None:
    folder.mkdir(parents=True)
    for i in range(len(images)):
        Image.fromarray(images.image(i).permute(1, 2, 0).numpy()).save(folder / f"{i:03d}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "photos"))
