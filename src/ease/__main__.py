"""`python -m ease`."""

from ease.cli import script

script()
