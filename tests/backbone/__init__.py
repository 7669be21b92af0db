"""The frozen backbone."""
