"""`glyphs`: characters drawn with the fonts that come with matplotlib."""

from ease.streams.datasets.glyphs.dataset import load_glyphs

__all__ = ["load_glyphs"]
