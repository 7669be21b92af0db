"""Grow your own classifier: learn, predict, serve."""
