"""L2P (Wang et al., CVPR 2022): a pool of prompts, from which each image selects those nearest to its query."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from ease.backbone import Tuning
from ease.methods._prompting import PromptLearner, PromptPool, PromptSettings, cosines, uniform
from ease.methods._registry import register
from ease.tuning import PromptsPerImage


class L2pSettings(PromptSettings):
    """Settings of L2P. The defaults are the public settings for CIFAR-100 (ImageNet-R: 10 epochs, batch size 32)."""

    lr: float = Field(1.875e-3, gt=0)
    batch_size: int = Field(16, ge=1)
    pool: int = Field(10, ge=1, description="prompts in the pool")
    length: int = Field(5, ge=1, description="tokens of a prompt")
    top_k: int = Field(5, ge=1, description="prompts selected per image")
    pull: float = Field(
        0.1, ge=0, description="weight of the loss that pulls selected keys towards their queries"
    )

    @field_validator("top_k")
    @classmethod
    def _not_more_than_there_are(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("pool", value):
            raise ValueError(f"an image cannot select more prompts than the pool has ({info.data['pool']})")
        return value


class NearestPrompts(PromptPool):
    """M pairs of key and prompt; M d + M P d weights, and k P d for the positions.

    The k prompts whose keys are nearest to the query (by cosine) are selected. Their tokens are placed before the
    patches, in the order of similarity, and have learned position embeddings of their own.
    """

    def __init__(self, dim: int, settings: Any) -> None:
        super().__init__()
        self.dim, self.settings = dim, settings

    def begin(self, task: int, draw: torch.Generator) -> None:
        """Create the pool at the first task; all tasks share it."""
        if task == 0:
            size, length, top = self.settings.pool, self.settings.length, self.settings.top_k
            self.keys = uniform(size, self.dim, draw=draw)
            self.prompts = uniform(size, length, self.dim, draw=draw)
            self.positions = nn.Parameter(
                torch.empty(top * length, self.dim).normal_(0, 0.02, generator=draw)
            )

    def forward(self, query: Tensor) -> tuple[Tuning, Tensor]:
        """The penalty is minus the summed similarity of the selected keys."""
        nearest = cosines(query, self.keys).topk(self.settings.top_k, dim=1)
        tokens = self.prompts[nearest.indices].flatten(1, 2) + self.positions
        return PromptsPerImage(tokens), -self.settings.pull * nearest.values.sum(dim=1).mean()


@register()
class L2p(PromptLearner):
    """The head reads the mean of the prompt tokens' final outputs, not the class token."""

    name: ClassVar[str] = "l2p"
    title: ClassVar[str] = "L2P"
    tuning: ClassVar[str] = "prompts"
    idea: ClassVar[str] = "a pool of prompts; each image picks the nearest by key and reads their outputs"
    reading = "tokens"
    Settings = L2pSettings

    def make_pool(self) -> PromptPool:
        return NearestPrompts(self.backbone.dim, self.settings)

    def read(self, pixels: Tensor, tuning: Tuning) -> Tensor:
        tokens = self.backbone.forward(pixels, tuning, self.reading)
        front, picked = self.backbone.front, self.settings.top_k * self.settings.length
        # A model that pools over tokens normalises after pooling; fc_norm does nothing in the others.
        return self.backbone.vit.fc_norm(tokens[:, front : front + picked].mean(dim=1))
