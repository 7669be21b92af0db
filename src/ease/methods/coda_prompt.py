"""CODA-Prompt (Smith et al., CVPR 2023): prompts are sums of components, weighted by attention to the query."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ease.backbone import Shape, Tuning
from ease.methods._prompting import PromptLearner, PromptPool, PromptSettings, blocks_within
from ease.methods._registry import register
from ease.tuning import PrefixPerImage


class CodaPromptSettings(PromptSettings):
    """Settings of CODA-Prompt. The defaults are the public settings for CIFAR-100 (ImageNet-R: 50 epochs)."""

    epochs: int = Field(20, ge=0, description="epochs on the task's images")
    batch_size: int = Field(128, ge=1)
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate, per epoch")
    layers: tuple[PositiveInt, ...] = Field(
        (1, 2, 3, 4, 5), min_length=1, description="blocks with prompts, counted from 1"
    )
    components: int = Field(10, ge=1, description="new components per task")
    length: int = Field(
        8, ge=2, multiple_of=2, description="length of a component: one half keys, one half values"
    )
    orthogonality: float = Field(
        0.0, ge=0, description="weight of the orthogonality term (public configs: 0)"
    )


class Components(PromptPool):
    """Per task and block, m components P [m, l, d] with keys K [m, d] and attention vectors A [m, d]."""

    def __init__(self, shape: Shape, settings: Any) -> None:
        super().__init__()
        self.dim, self.settings = shape.dim, settings
        self.blocks = blocks_within(settings.layers, shape.depth) or [shape.depth - 1]
        self.prompts = nn.ParameterList()
        self.keys = nn.ParameterList()
        self.attention = nn.ParameterList()

    def begin(self, task: int, draw: torch.Generator) -> None:
        """New components are initialised orthonormal, and orthogonal to all old ones, which are frozen."""
        count, length = self.settings.components, self.settings.length
        for parts, size in (
            (self.prompts, (length, self.dim)),
            (self.keys, (self.dim,)),
            (self.attention, (self.dim,)),
        ):
            old = [part.detach().cpu().flatten(2) for part in parts]
            rows = [
                orthonormal_rows(count, torch.cat([part[i] for part in old]) if old else None, size, draw)
                for i in range(len(self.blocks))
            ]
            parts.requires_grad_(False).append(nn.Parameter(torch.stack(rows)))

    def forward(self, query: Tensor) -> tuple[Tuning, Tensor]:
        """The prompt of a block is the sum of alpha_m P_m over m, with alpha_m = cos(q * A_m, K_m)."""
        prompts, keys, attention = (
            torch.cat(list(parts), dim=1) for parts in (self.prompts, self.keys, self.attention)
        )
        # The cosine without a tensor [N, blocks, m, d]: dot product and squared length are linear in q and q^2.
        dots = torch.einsum("nd,bmd->nbm", query, attention * F.normalize(keys, dim=-1))
        lengths = torch.einsum("nd,bmd->nbm", query.square(), attention.square()).clamp_min(1e-12).sqrt()
        chosen = torch.einsum("nbm,bmld->nbld", dots / lengths, prompts)
        pairs = {b: _halves(chosen[:, i]) for i, b in enumerate(self.blocks)}
        penalty = query.new_zeros(())
        if self.settings.orthogonality:
            parts = (prompts.flatten(2), keys, attention)
            penalty = self.settings.orthogonality * torch.stack([_overlap(p) for p in parts]).sum()
        return PrefixPerImage(pairs), penalty


def orthonormal_rows(count: int, old: Tensor | None, size: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """[count, *size] whose flattened rows have length 1 and are orthogonal to each other and to `old` [m, D].

    This is the result of Gram-Schmidt. If the space is full, the remaining rows are random and of length 1.
    """
    width = torch.Size(size).numel()
    rows = F.normalize(torch.randn(count, width, generator=draw, dtype=torch.float64), dim=-1)
    room = min(count, width - (0 if old is None else len(old)))
    if room > 0:
        free = rows[:room]
        if old is not None:
            span = torch.linalg.qr(old.double().mT).Q
            free = free - free @ span @ span.mT
        rows[:room] = torch.linalg.qr(free.mT).Q.mT
    return rows.float().unflatten(1, size)


def _halves(prompts: Tensor) -> tuple[Tensor, Tensor]:
    """[N, l, d] -> keys and values, [N, l/2, d] each."""
    keys, values = prompts.chunk(2, dim=1)
    return keys, values


def _overlap(rows: Tensor) -> Tensor:
    """Mean of (B B^T - I)^2 over the entries of each block's [m, D], summed over blocks."""
    gram = rows @ rows.mT - torch.eye(rows.shape[1], device=rows.device)
    return gram.square().mean(dim=(1, 2)).sum()


@register("coda")
class CodaPrompt(PromptLearner):
    """Old components stay in every sum, but only the new ones are trained."""

    name: ClassVar[str] = "coda-prompt"
    title: ClassVar[str] = "CODA-Prompt"
    tuning: ClassVar[str] = "prefix"
    idea: ClassVar[str] = "prompts as attention-weighted sums of components; each task adds and trains some"
    Settings = CodaPromptSettings

    def make_pool(self) -> PromptPool:
        return Components(self.backbone.shape, self.settings)
