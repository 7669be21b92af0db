"""Class-incremental learning with a frozen ViT: one light adapter per task, no old image kept."""

__version__ = "0.1.0"
