"""The frozen pre-trained ViT and where its weights come from."""

import ease.torchvision_cure  # noqa: F401  (timm imports torchvision)
from ease.backbone.ports import Departure, Shape, Tuning, tensors_hash
from ease.backbone.vit import PTM, Backbone, Pixels

__all__ = ["PTM", "Backbone", "Departure", "Pixels", "Shape", "Tuning", "tensors_hash"]
