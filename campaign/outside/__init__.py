"""Inputs of the second campaign, invented without knowledge of the code: one module per family."""
