"""Visual prompt tuning (VPT): learned tokens between the class token and the patches."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.errors import unknown


class VptShallow(Tuning):
    """P tokens that enter the first block and pass through all others; P d weights.

    Even untrained they change the pre-trained model, because every token takes a share of each softmax. A token of
    zeros has zero variance, so the first norm multiplies its gradient by eps^-1/2.

    Args:
        shape: The shape of the backbone.
        length: Number P of tokens.
        init: `zero`, as in ADAM, or `normal`, from N(0, 0.02).
        generator: Source of the initial values.
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
            raise unknown("initialisation of the prompts", init, ["zero", "normal"])
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
    """P new tokens in every block, which replace the outputs of the previous ones; L P d weights."""

    kind: ClassVar[str] = "vpt-deep"

    def _layers(self, shape: Shape) -> int:
        return shape.depth

    def prompts(self, layer: int, batch: int) -> Tensor:
        return self.tokens[layer].expand(batch, -1, -1)


class PromptsPerImage(Tuning):
    """Prompts that were selected for each image of one batch (L2P).

    Args:
        tokens: One set of tokens per image, [N, P, d], in the order of the batch. They are not parameters of this
            module, but gradients pass through.
        layer: The block that they enter.
    """

    kind: ClassVar[str] = "prompts-per-image"
    departs = Departure.EMBEDDING

    def __init__(self, tokens: Tensor, layer: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self._chosen = (tokens,)  # in a tuple, so that it is not registered as a parameter

    def prompts(self, layer: int, batch: int) -> Tensor | None:
        return self._chosen[0] if layer == self.layer else None

    def first_layer(self) -> int:
        return self.layer
