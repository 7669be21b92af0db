"""Images -> dataset -> stream of tasks.

- `datasets`: datasets by name.
- `intake`: the one way in for images of users.
- `stream`, `protocol`: a dataset divided into tasks.
- `images`, `transforms`: sets of images, and the input of the backbone.
"""

from ease.streams.datasets import (
    DatasetLoader,
    DatasetRequest,
    dataset_faults,
    dataset_list,
    load_dataset,
)
from ease.streams.images import ArraySource, ImageSet, Source
from ease.streams.intake import LabelledImages, as_image_set, collect_images
from ease.streams.protocol import class_order, make_stream, order_from_file, task_sizes
from ease.streams.stream import Augmentation, Dataset, Stream, Task
from ease.streams.transforms import DRAWS, Transforms

__all__ = [
    "DRAWS",
    "ArraySource",
    "Augmentation",
    "Dataset",
    "DatasetLoader",
    "DatasetRequest",
    "ImageSet",
    "LabelledImages",
    "Source",
    "Stream",
    "Task",
    "Transforms",
    "as_image_set",
    "class_order",
    "collect_images",
    "dataset_faults",
    "dataset_list",
    "load_dataset",
    "make_stream",
    "order_from_file",
    "task_sizes",
]
