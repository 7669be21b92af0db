"""The way in for images: finding files, limits, decoding, checks, and the sources they come from."""
