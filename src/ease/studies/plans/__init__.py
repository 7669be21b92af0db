"""Studies as data: which methods, in which settings, on which stream."""
