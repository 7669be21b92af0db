"""One paper's idea per file."""
