"""Low-rank updates of frozen linears (LoRA)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.errors import EaseError, unknown


class Lora(Tuning):
    """`W x + alpha/rank * B A x` at the listed linears of every block; L r (in + out) weights per site.

    A starts Kaiming-uniform, B at zero, so the subspace starts as the PTM itself. At `qkv` one A of rank r
    serves query, key and value, since timm computes them as one linear.

    Args:
        alpha: the update is scaled by alpha / rank; alpha = rank (no scale) when None.
        sites: some of qkv, proj, fc1, fc2.
    """

    kind: ClassVar[str] = "lora"
    departs = Departure.EMBEDDING

    def __init__(
        self,
        shape: Shape,
        rank: int = 8,
        alpha: float | None = None,
        sites: Sequence[str] = ("qkv",),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.sites = rank, list(dict.fromkeys(sites))
        self.alpha = float(rank if alpha is None else alpha)
        d, hidden = shape.dim, shape.hidden
        widths = {"qkv": (d, 3 * d), "proj": (d, d), "fc1": (d, hidden), "fc2": (hidden, d)}
        self.a = nn.ParameterDict()
        self.b = nn.ParameterDict()
        for site in self.sites:
            if site not in widths:
                raise unknown("site of lora", site, widths)
            if 0 in widths[site]:
                raise EaseError(
                    f"lora at '{site}' needs a plain MLP, and this backbone's is gated; use qkv, proj"
                )
            width_in, width_out = widths[site]
            a = torch.empty(shape.depth, rank, width_in)
            for layer in a:  # block by block: the fan is that of one matrix
                nn.init.kaiming_uniform_(layer, a=math.sqrt(5), generator=generator)
            self.a[site] = nn.Parameter(a)
            self.b[site] = nn.Parameter(torch.zeros(shape.depth, width_out, rank))

    def low_rank(self, site: str, layer: int, value: Tensor) -> Tensor | None:
        if site not in self.sites:
            return None
        return F.linear(F.linear(value, self.a[site][layer]), self.b[site][layer]) * (self.alpha / self.rank)

    def config(self) -> dict[str, Any]:
        return {"rank": self.rank, "alpha": self.alpha, "sites": self.sites}
