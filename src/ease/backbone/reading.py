"""What is read of the backbone's output: the pooled feature, all tokens, or the class tokens of several blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ease.errors import EaseError


@dataclass(frozen=True)
class Layers:
    """The class tokens that leave the last `count` blocks, side by side: [N, count * d], the earliest block first.

    On a model without a class token the mean patch token takes its place.

    Attributes:
        count: how many blocks, counted from the end.
        patches: whether the mean patch tokens of these blocks follow, for another count * d numbers.
        normed: whether every token goes through the model's final norm first, as the last block's always does.
    """

    count: int
    patches: bool = False
    normed: bool = True

    def __str__(self) -> str:
        """Names the reading in the key of a stored feature."""
        return f"layers({self.count}){'+patches' * self.patches}{'-raw' * (not self.normed)}"

    def check(self, depth: int) -> None:
        """Refuse to read blocks that the model does not have."""
        if not 1 <= self.count <= depth:
            raise EaseError(
                f"cannot read {self.count} layers of a model with {depth} blocks: choose 1 to {depth}"
            )

    def class_token_alone(self, vit: Any) -> bool:
        """Whether only the first token of each block is read."""
        return has_class_token(vit) and not self.patches

    def width(self, vit: Any) -> int:
        """Numbers per image."""
        return self.count * vit.embed_dim * (2 if has_class_token(vit) and self.patches else 1)

    def summary(self, vit: Any, tokens: Tensor, skipped: int) -> list[Tensor]:
        """One block's tokens [N, T, d] as [N, d] each: the class token and, where it is read, the mean patch token.

        Args:
            vit: the model.
            tokens: after the final norm, if it applies.
            skipped: prompt tokens between the model's own prefix tokens and the patches.
        """
        found = [tokens[:, 0]] if has_class_token(vit) else []
        if self.patches or not found:
            found.append(tokens[:, vit.num_prefix_tokens + skipped :].mean(dim=1))
        return found

    @staticmethod
    def side_by_side(summaries: list[list[Tensor]]) -> Tensor:
        """The summaries of all blocks, [N, width]: class tokens first, then mean patch tokens."""
        return torch.cat([block[part] for part in range(len(summaries[0])) for block in summaries], dim=-1)


Reading = Literal["pooled", "tokens"] | Layers
"""`pooled`: the model's own feature, [N, d]. `tokens`: all tokens after the final norm, [N, T, d]. Or `Layers`."""


def has_class_token(vit: Any) -> bool:
    """Whether the first token is a class token."""
    return vit.cls_token is not None
