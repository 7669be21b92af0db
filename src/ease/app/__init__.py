"""Grow your own classifier: learn from photos, class by class, and predict."""
