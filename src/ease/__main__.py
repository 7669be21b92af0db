"""`python -m ease`."""

from ease.cli import main

main()
