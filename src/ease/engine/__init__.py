"""Loops, devices, files and randomness: everything a method should not have to think about."""
