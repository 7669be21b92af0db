"""Images -> dataset -> stream of tasks."""

from ease.streams.datasets import dataset_list, load_dataset
from ease.streams.images import ArraySource, ImageSet, Source
from ease.streams.protocol import class_order, make_stream, order_from_file, split
from ease.streams.stream import Augmentation, Dataset, Stream, Task
from ease.streams.transforms import DRAWS, Transforms

__all__ = [
    "DRAWS",
    "ArraySource",
    "Augmentation",
    "Dataset",
    "ImageSet",
    "Source",
    "Stream",
    "Task",
    "Transforms",
    "class_order",
    "dataset_list",
    "load_dataset",
    "make_stream",
    "order_from_file",
    "split",
]
