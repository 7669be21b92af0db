"""A method on a stream, measured: runs, grids of runs, and what the paper and our studies consist of."""
