"""The frozen pre-trained ViT and where its weights come from."""

import ease.vision_libraries  # noqa: F401  (timm imports torchvision)
from ease.backbone.ports import Departure, Shape, Tuning, tensors_hash
from ease.backbone.reading import Layers, Reading
from ease.backbone.vit import PTM, Backbone, Pixels
from ease.backbone.zoo import backbone_from_state, backbone_list, load_backbone

__all__ = [
    "PTM",
    "Backbone",
    "Departure",
    "Layers",
    "Pixels",
    "Reading",
    "Shape",
    "Tuning",
    "backbone_from_state",
    "backbone_list",
    "load_backbone",
    "tensors_hash",
]
