"""Where images come from. Every source gives `Candidates`: class names and images that have not been decoded yet.

- `from_folder`: a folder with one folder of images per class; links are followed.
- `from_memory`: class names -> paths, bytes, Pillow images, arrays or tensors.
- `from_uploads`: files that were sent under names such as CLASS/FILE; links are never followed.
- `from_archive`: a zip of class folders; links in it are refused.
"""

from ease.streams.intake.sources.archive import from_archive, unpack_images
from ease.streams.intake.sources.candidates import Candidate, Candidates
from ease.streams.intake.sources.folder import from_folder
from ease.streams.intake.sources.memory import as_image_set, from_memory
from ease.streams.intake.sources.uploads import NamedFile, from_uploads, move_to_class_folders

__all__ = [
    "Candidate",
    "Candidates",
    "NamedFile",
    "as_image_set",
    "from_archive",
    "from_folder",
    "from_memory",
    "from_uploads",
    "move_to_class_folders",
    "unpack_images",
]
