from __future__ import annotations

import pytest
from torch import Tensor

from ease.backbone import Backbone
from tests.backbone.small_vits import small_backbone, some_images


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return small_backbone()


@pytest.fixture(scope="session")
def images() -> Tensor:
    """[4, 3, 32, 32]"""
    return some_images()
