"""`glyphs`: characters drawn with the fonts of matplotlib."""

from ease.streams.datasets.glyphs.dataset import Glyphs

__all__ = ["Glyphs"]
