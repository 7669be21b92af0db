"""DAP (Jung et al., ICCV 2023): every block makes prompts from the image's own tokens, in the manner of its task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ease.backbone import Backbone, Departure, Tuning
from ease.heads.linear import GrowingLinear
from ease.methods._prompting import PromptLearner, PromptPool, PromptSettings, cosines
from ease.methods._registry import register
from ease.training.fit import Training

KEYS = 0.0625
"""New keys are drawn from U(-KEYS, KEYS)."""


class DapSettings(PromptSettings):
    """Settings of DAP. The defaults are the public settings for CIFAR-100."""

    lr: float = Field(0.01, gt=0)
    batch_size: int = Field(128, ge=1)
    optimizer: Literal["sgd", "adam", "adamw", "amsgrad"] = Field(  # type: ignore[assignment]
        "amsgrad", description="`amsgrad` is Adam with both betas 0.9 and the AMSGrad correction"
    )
    clip: float | None = Field(1.0, gt=0, description="maximum norm of the gradient; no clipping if unset")
    length: int = Field(10, ge=1, description="prompt tokens in a block")
    embedding: int = Field(16, ge=1, description="width of a task's embedding")
    last: bool = Field(True, description="whether the last block has prompts as well")
    pull: float = Field(
        0.1, ge=0, description="weight of the loss that pulls a task's key towards its queries"
    )
    head_std: float = Field(0.1414, gt=0, description="standard deviation of the initial weights of the head")

    def make_optimizer(
        self, module: nn.Module, rate_factors: Mapping[str, float] | None = None
    ) -> torch.optim.Optimizer:
        """See `Training.make_optimizer`."""
        if self.optimizer != "amsgrad":
            return super().make_optimizer(module, rate_factors)
        adam = Training.make_optimizer(self.model_copy(update={"optimizer": "adam"}), module, rate_factors)
        for group in adam.param_groups:
            group |= {"betas": (0.9, 0.9), "amsgrad": True}
        return adam


class GeneratedPrompts(Tuning):
    """Prompts of one batch: `P = g * (W LN(X) + c) + b` in every block, from the tokens X that enter it.

    Args:
        generator: W, c, LN and FiLM of every block.
        embeddings: The embedding of the chosen task of each image, [N, e].
    """

    kind: ClassVar[str] = "generated-prompts"
    departs = Departure.EMBEDDING

    def __init__(self, generator: PromptGenerator, embeddings: Tensor) -> None:
        super().__init__()
        self._of = (generator, embeddings)  # in a tuple, so that it is not registered as a submodule

    def prompts_among(self, layer: int, tokens: Tensor, front: int, present: int) -> Tensor | None:
        """The prompts that were put in earlier are no input of the new ones, which take their place."""
        generator, embeddings = self._of
        if layer >= generator.blocks:
            return tokens[:, :0]
        if present:
            tokens = torch.cat([tokens[:, :front], tokens[:, front + present :]], dim=1)
        return generator.prompts(layer, tokens, embeddings)


class PromptGenerator(PromptPool):
    """W_l [P, T], c_l [P], LN_l and FiLM_l of every block l, shared by all tasks; a key and an embedding per task.

    Args:
        dim: Width d of a token.
        tokens: Number T of tokens that enter a block, without prompts.
        blocks: How many blocks, from the first, have prompts.
        settings: Settings of DAP.
    """

    def __init__(self, dim: int, tokens: int, blocks: int, settings: DapSettings) -> None:
        super().__init__()
        self.dim, self.tokens, self.blocks, self.settings = dim, tokens, blocks, settings
        self.keys = nn.ParameterList()
        self.embeddings = nn.ParameterList()

    @classmethod
    def of(cls, backbone: Backbone, settings: DapSettings) -> PromptGenerator:
        """One that fits a backbone."""
        tokens = backbone.front + backbone.vit.patch_embed.num_patches
        depth = backbone.shape.depth
        return cls(backbone.dim, tokens, depth if settings.last else max(1, depth - 1), settings)

    def begin(self, task: int, draw: torch.Generator) -> None:
        """W and c are trained on the first task only, FiLM and LN on all, a key and an embedding on their own."""
        width = self.settings.embedding
        if task == 0:
            blocks, length, d = self.blocks, self.settings.length, self.dim
            bound = 1 / math.sqrt(width)  # as nn.Linear starts
            self.down = nn.Parameter(torch.zeros(blocks, length, self.tokens))
            self.down_bias = nn.Parameter(torch.zeros(blocks, length))
            self.film = nn.Parameter(
                torch.empty(blocks, 2 * d, width).uniform_(-bound, bound, generator=draw)
            )
            self.film_bias = nn.Parameter(torch.empty(blocks, 2 * d).uniform_(-bound, bound, generator=draw))
            self.norm = nn.Parameter(torch.ones(blocks, d))
            self.norm_bias = nn.Parameter(torch.zeros(blocks, d))
        else:
            self.down.requires_grad_(False)
            self.down_bias.requires_grad_(False)
        key = torch.empty(self.dim).uniform_(-KEYS, KEYS, generator=draw)
        self.keys.requires_grad_(False).append(nn.Parameter(key))
        self.embeddings.requires_grad_(False).append(nn.Parameter(torch.randn(width, generator=draw)))

    def forward(self, query: Tensor) -> tuple[Tuning, Tensor]:
        """While training, the newest task for all images; otherwise, for each image, the task of the nearest key."""
        similarity = cosines(query, torch.stack(list(self.keys)))
        if self.training:
            chosen = torch.full((len(query),), len(self.keys) - 1, device=query.device)
        else:
            chosen = similarity.argmax(dim=1)
        near = similarity.gather(1, chosen[:, None]).mean()
        return self.tuning_for(chosen), -self.settings.pull * near

    def tuning_for(self, chosen: Tensor) -> Tuning:
        """The tuning for images of these tasks [N]."""
        return GeneratedPrompts(self, torch.stack(list(self.embeddings))[chosen])

    def prompts(self, block: int, tokens: Tensor, embeddings: Tensor) -> Tensor:
        """Tokens [N, T, d] and embeddings [N, e] to prompts [N, P, d]."""
        normed = F.layer_norm(tokens, (self.dim,), self.norm[block], self.norm_bias[block], eps=1e-6)
        made = self.down[block] @ normed + self.down_bias[block][:, None]
        film = F.linear(embeddings, self.film[block], self.film_bias[block])
        gain, shift = (part / part.norm(dim=1, keepdim=True).detach() for part in film.chunk(2, dim=1))
        return gain[:, None] * made + shift[:, None]


@register()
class Dap(PromptLearner):
    """Prompts enter every block and are removed before the next one makes its own; the head reads the class token."""

    name: ClassVar[str] = "dap"
    title: ClassVar[str] = "DAP"
    tuning: ClassVar[str] = "prompts"
    idea: ClassVar[str] = "prompts made from the image's tokens in every block, scaled and shifted by task"
    Settings = DapSettings

    def make_pool(self) -> PromptPool:
        return PromptGenerator.of(self.backbone, self.settings)

    def new_head(self) -> GrowingLinear:
        return GrowingLinear(self.backbone.dim, std=self.settings.head_std)


@torch.no_grad()
def batch_vote_analysis(learner: Dap, pixels: Tensor, batch_size: int, only_voted: bool = False) -> Tensor:
    """Logits if every batch votes for one task, as DAP's released code does. An analysis, and no prediction.

    The released code evaluates batches of one task each, so the vote tells the learner what the batches have in common:
    that is information about the test set which no image has by itself. Compare the result with `learner.logits`.

    Args:
        learner: A learner that knows some tasks.
        pixels: Preprocessed images [N, 3, s, s]; neighbours vote together.
        batch_size: How many images vote together.
        only_voted: Whether classes of other tasks are ruled out, as the released code does for ImageNet-R.

    Returns:
        Logits [N, classes].
    """
    pool, device = learner.pool.eval(), learner.engine.fabric.device
    assert isinstance(pool, PromptGenerator)
    keys, parts = torch.stack(list(pool.keys)), []
    for some in pixels.split(batch_size):
        images = some.to(device)
        query = learner.backbone.forward(images).float()
        task = int(cosines(query, keys).argmax(dim=1).bincount().argmax())
        tuning = pool.tuning_for(torch.full((len(images),), task, device=device))
        logits = learner.linear.to(device)(learner.read(images, tuning)).float()
        if only_voted:
            inside = torch.zeros(learner.classes, dtype=torch.bool, device=device)
            inside[list(learner.positions()[task])] = True
            logits = logits.masked_fill(~inside, -math.inf)
        parts.append(logits.cpu())
    return torch.cat(parts)
