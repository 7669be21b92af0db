"""What inference needs of Lightning Fabric, on one process and the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch

from ease.training.hardware import Precision


class OneProcess:
    """Stands for a Fabric of a single process on the CPU, and becomes one as soon as something is trained.

    Importing Fabric imports torch's compiler, which takes longer than a prediction.

    Args:
        precision: What the backbone computes in.
    """

    device = torch.device("cpu")
    global_rank = 0
    world_size = 1

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the backbone computes."""
        return torch.autocast("cpu", torch.bfloat16) if self.precision == "bf16-mixed" else nullcontext()

    def barrier(self) -> None:
        """There is no other process to wait for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # nothing that copying or pickling asks for
            raise AttributeError(name)
        return getattr(self._fabric, name)

    @cached_property
    def _fabric(self) -> Any:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.precision import MixedPrecision

        if self.precision == "32-true":
            return Fabric(accelerator="cpu", devices=1)
        # As an object: asked for by its name, Fabric would print a line about it.
        return Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision(self.precision, "cpu")])
