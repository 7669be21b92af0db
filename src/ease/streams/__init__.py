"""Images -> dataset -> stream of tasks."""

from ease.streams.images import ArraySource, ImageSet, Source
from ease.streams.stream import Augmentation, Dataset, Stream, Task

__all__ = ["ArraySource", "Augmentation", "Dataset", "ImageSet", "Source", "Stream", "Task"]
