"""DualPrompt (Wang et al., ECCV 2022): a general prompt for all tasks, and one expert prompt per task."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, PositiveInt, ValidationInfo, field_validator
from torch import Tensor, nn

from ease.backbone import Shape, Tuning
from ease.methods._prompting import (
    PromptLearner,
    PromptPool,
    PromptSettings,
    blocks_within,
    cosines,
    uniform,
)
from ease.methods._registry import register
from ease.tuning import PrefixPerImage


class DualPromptSettings(PromptSettings):
    """Settings of DualPrompt. The defaults are the public settings for CIFAR-100 (ImageNet-R: 10 epochs)."""

    batch_size: int = Field(24, ge=1)
    g_layers: tuple[PositiveInt, ...] = Field((1, 2), description="blocks of the G-prompt, counted from 1")
    e_layers: tuple[PositiveInt, ...] = Field(
        (3, 4, 5),
        min_length=1,
        description="blocks of the E-prompts; those that the backbone lacks are omitted",
    )
    g_length: int = Field(5, ge=1, description="keys, and as many values, of the G-prompt in a block")
    e_length: int = Field(5, ge=1, description="keys, and as many values, of an E-prompt in a block")
    pull: float = Field(
        0.1, ge=0, description="weight of the loss that pulls a task's key towards its queries"
    )

    @field_validator("e_layers")
    @classmethod
    def _apart(cls, value: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if both := set(value) & set(info.data.get("g_layers", ())):
            raise ValueError(f"block {min(both)} has a G-prompt already: give other blocks")
        return value


class DualPool(PromptPool):
    """G [blocks, 2, P, d] is trained on every task; E_t of the same form and its key k_t on task t only."""

    def __init__(self, shape: Shape, settings: Any) -> None:
        super().__init__()
        self.dim, self.settings = shape.dim, settings
        # On a shallow backbone the experts get the last block, because they separate the tasks.
        self.e_blocks = blocks_within(settings.e_layers, shape.depth) or [shape.depth - 1]
        self.g_blocks = [b for b in blocks_within(settings.g_layers, shape.depth) if b not in self.e_blocks]
        self.experts = nn.ParameterList()
        self.keys = nn.ParameterList()

    def begin(self, task: int, draw: torch.Generator) -> None:
        """A new expert starts as a copy of the previous one. The old experts and keys are frozen."""
        if task == 0:
            size = self.settings.g_length, self.dim
            self.general = uniform(len(self.g_blocks), 2, *size, draw=draw)
            expert = uniform(len(self.e_blocks), 2, self.settings.e_length, self.dim, draw=draw)
        else:
            expert = nn.Parameter(self.experts[-1].detach().clone())
        self.experts.requires_grad_(False).append(expert)
        self.keys.requires_grad_(False).append(uniform(self.dim, draw=draw))

    def forward(self, query: Tensor) -> tuple[Tuning, Tensor]:
        """While training, the expert of the newest task; otherwise, for each image, the expert with the nearest key."""
        similarity = cosines(query, torch.stack(list(self.keys)))
        if self.training:
            chosen = torch.full((len(query),), len(self.keys) - 1, device=query.device)
        else:
            chosen = similarity.argmax(dim=1)
        experts = torch.stack(list(self.experts))[chosen]
        pairs = {b: (self.general[i, 0], self.general[i, 1]) for i, b in enumerate(self.g_blocks)}
        pairs |= {b: (experts[:, i, 0], experts[:, i, 1]) for i, b in enumerate(self.e_blocks)}
        near = similarity.gather(1, chosen[:, None]).mean()
        return PrefixPerImage(pairs), -self.settings.pull * near


@register()
class DualPrompt(PromptLearner):
    """Both kinds of prompts are prefixes: keys and values that a block's tokens can attend to."""

    name: ClassVar[str] = "dualprompt"
    title: ClassVar[str] = "DualPrompt"
    tuning: ClassVar[str] = "prefix"
    idea: ClassVar[str] = "a general prompt, and an expert prompt per task that test images find by its key"
    Settings = DualPromptSettings

    def make_pool(self) -> PromptPool:
        return DualPool(self.backbone.shape, self.settings)
