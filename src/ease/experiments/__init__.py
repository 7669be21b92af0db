"""Experiments: runs of a method on a stream, grids of runs, and the plans of the paper's exhibits and our studies."""
