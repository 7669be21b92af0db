"""Where images come from. Every source gives `Candidates`: class names and images that have not been decoded yet.

- `from_folder`: a folder with one folder of images per class; links are followed.
- `from_memory`: class names -> paths, bytes, Pillow images, arrays or tensors.
- `from_uploads`: files that were sent under names such as CLASS/FILE; links are never followed.
- `from_archive`: a zip of class folders; links in it are refused.
- `from_table`, `from_coco`: paths and labels in a CSV, TSV, JSON lines, Parquet or COCO file.
- `from_saved_dataset`, `from_arrow_files`, `from_hub`: datasets of Hugging Face.
- `from_shards`: tar files in the form of webdataset; members are never unpacked, and pickles are refused.

`find_source` recognises which of them a path stands for. Videos (`video`) are only for predictions.
"""

from ease.streams.intake.sources.archive import from_archive, unpack_images
from ease.streams.intake.sources.arrow import from_arrow_files, from_hub, from_saved_dataset
from ease.streams.intake.sources.candidates import Candidate, Candidates
from ease.streams.intake.sources.coco import from_coco
from ease.streams.intake.sources.folder import from_folder
from ease.streams.intake.sources.memory import as_image_set, from_memory
from ease.streams.intake.sources.places import AllowUrls
from ease.streams.intake.sources.recognise import find_source
from ease.streams.intake.sources.shards import from_shards
from ease.streams.intake.sources.table import from_table
from ease.streams.intake.sources.uploads import NamedFile, from_uploads, move_to_class_folders

__all__ = [
    "AllowUrls",
    "Candidate",
    "Candidates",
    "NamedFile",
    "as_image_set",
    "find_source",
    "from_archive",
    "from_arrow_files",
    "from_coco",
    "from_folder",
    "from_hub",
    "from_memory",
    "from_saved_dataset",
    "from_shards",
    "from_table",
    "from_uploads",
    "move_to_class_folders",
    "unpack_images",
]
