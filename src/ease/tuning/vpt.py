"""Visual prompts: learned tokens between the class token and the patches."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.errors import unknown


class VptShallow(Tuning):
    """P tokens enter the first block and travel through all others; P d weights.

    `zero` is what ADAM uses; `normal` draws from N(0, 0.02). Neither starts as the PTM itself: even a token
    at zero takes its share of every softmax. A zero token also has zero variance, so the first norm passes
    its gradient on multiplied by eps^-1/2.
    """

    kind: ClassVar[str] = "vpt-shallow"
    departs = Departure.EMBEDDING

    def __init__(
        self,
        shape: Shape,
        length: int = 5,
        init: Literal["zero", "normal"] = "zero",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if init not in ("zero", "normal"):
            raise unknown("start of the prompts", init, ["zero", "normal"])
        self.length, self.init = length, init
        start = torch.zeros(self._layers(shape), length, shape.dim)
        if init == "normal":
            start.normal_(0.0, 0.02, generator=generator)
        self.tokens = nn.Parameter(start)

    def _layers(self, shape: Shape) -> int:
        return 1

    def prompts(self, layer: int, batch: int) -> Tensor | None:
        return self.tokens[0].expand(batch, -1, -1) if layer == 0 else None

    def config(self) -> dict[str, Any]:
        return {"length": self.length, "init": self.init}


class VptDeep(VptShallow):
    """P new tokens in every block, in place of what came out of the block before; L P d weights."""

    kind: ClassVar[str] = "vpt-deep"

    def _layers(self, shape: Shape) -> int:
        return shape.depth

    def prompts(self, layer: int, batch: int) -> Tensor:
        return self.tokens[layer].expand(batch, -1, -1)


class PromptsPerImage(Tuning):
    """Prompts that were chosen for each image of one batch (L2P); they belong to whoever chose them.

    Args:
        tokens: [N, P, d], one set per image, in the order of the batch. Gradients pass through.
        layer: the block they enter.
    """

    kind: ClassVar[str] = "prompts-per-image"
    departs = Departure.EMBEDDING

    def __init__(self, tokens: Tensor, layer: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self._chosen = (tokens,)  # in a tuple, so that it is never taken for a parameter of this module

    def prompts(self, layer: int, batch: int) -> Tensor | None:
        return self._chosen[0] if layer == self.layer else None

    def first_layer(self) -> int:
        return self.layer
