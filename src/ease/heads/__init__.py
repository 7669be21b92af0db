"""Features -> logits."""

from ease.heads.cosine import CosineHead
from ease.heads.prototypes import PrototypeBank, class_means

__all__ = ["CosineHead", "PrototypeBank", "class_means"]
