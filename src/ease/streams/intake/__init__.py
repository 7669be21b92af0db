"""The one way in for images: folders, archives, uploads and images in memory.

- `limits`: how large an image and an archive may be.
- `names`: which class names are accepted.
- `decode`: the only decoder.
- `scan`: which files of a folder are images of which class.
- `checks`: damage, duplicates, class sizes.
- `sources`: each gives `Candidates`, images that have not been decoded yet.
- `collect`: `collect_images` turns any source into labelled images that are known to be readable.
"""

from ease.streams.intake.collect import LabelledImages, collect_images
from ease.streams.intake.limits import ArchiveLimits, ImageLimits, TooLargeError
from ease.streams.intake.names import class_name
from ease.streams.intake.scan import Unreadable, find_images, scan_folder
from ease.streams.intake.sources import as_image_set

__all__ = [
    "ArchiveLimits",
    "ImageLimits",
    "LabelledImages",
    "TooLargeError",
    "Unreadable",
    "as_image_set",
    "class_name",
    "collect_images",
    "find_images",
    "scan_folder",
]
