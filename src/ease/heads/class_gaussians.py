"""A Gaussian per class from which features can be drawn, so that a classifier can be trained again without images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from ease.heads.triangle import packed_triangle, unpacked_triangle

Covariance = Literal["full", "low-rank", "diagonal"]


class GaussianSettings(BaseModel):
    """How the covariance of a class is stored."""

    covariance: Covariance = Field(
        "full",
        description="of a class: all d (d + 1) / 2 numbers, some directions and a diagonal, or a diagonal",
    )
    covariance_rank: int = Field(16, ge=1, description="directions per class, for low-rank covariances")


class ClassGaussians:
    """Mean and covariance of every class; no image and no feature is kept.

    A covariance is stored when its class is new and never changes; a mean can be moved. Of a `full` covariance one
    triangle is stored. A `low-rank` one is `F^T F` of its leading k directions F [k, d] plus the diagonal of what they
    leave out, so that the variance of every single feature is exact. Everything is computed in double precision and
    stored in single precision.

    Args:
        width: Feature width d.
        covariance: The form of the covariances.
        rank: Directions k of a `low-rank` covariance; fewer if d is smaller.
    """

    def __init__(self, width: int, covariance: Covariance = "full", rank: int = 16) -> None:
        self.width, self.covariance, self.rank = width, covariance, min(rank, width)
        self.means = torch.zeros(0, width)
        self._spreads: list[dict[str, Tensor]] = []
        """What is stored of each class's covariance."""

    @classmethod
    def of(cls, width: int, settings: Any) -> ClassGaussians:
        """No classes yet, with the form that `GaussianSettings` name."""
        return cls(width, settings.covariance, settings.covariance_rank)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.means)

    def add(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Add the next classes with their features [N, d]; labels [N] are positions of classes."""
        for position in classes:
            mine = features[labels == position].double()
            mean = mine.mean(dim=0)
            apart = mine - mean
            self._spreads.append(self._stored(apart.mT @ apart / max(len(mine) - 1, 1)))
            self.means = torch.cat([self.means, mean.float()[None]])

    def move(self, shift: Tensor) -> None:
        """Move the means of the first classes by `shift` [C', d]."""
        self.means = self.means.clone()
        self.means[: len(shift)] += shift

    def covariance_of(self, position: int) -> Tensor:
        """The covariance [d, d] of a class as it is stored, in double precision."""
        stored = {name: value.double() for name, value in self._spreads[position].items()}
        if self.covariance == "full":
            return unpacked_triangle(stored["triangle"], self.width)
        diagonal = stored["diagonal"].diag()
        if self.covariance == "diagonal":
            return diagonal
        return stored["directions"].mT @ stored["directions"] + diagonal

    def roots(self, ridge: float) -> list[Tensor]:
        """Per class a factor R with `R R^T = Sigma + ridge I`, in single precision, to be given to `draw`.

        R is lower triangular [d, d] for full covariances. The others are drawn without a [d, d] matrix; their factor
        is the standard deviations [d] of what is independent in every feature.
        """
        if self.covariance != "full":
            return [(s["diagonal"].double() + ridge).sqrt().float() for s in self._spreads]
        found = []
        for position in range(self.classes):
            matrix = self.covariance_of(position)
            # Rounded to single precision, a covariance of few images can have slightly negative eigenvalues, but none
            # below this; that of a single image is zero.
            rounding = torch.finfo(torch.float32).eps * float(matrix.norm()) + torch.finfo(torch.float32).tiny
            matrix.diagonal().add_(ridge + rounding)
            found.append(torch.linalg.cholesky(matrix).float())
        return found

    def draw(self, position: int, count: int, root: Tensor, generator: torch.Generator) -> Tensor:
        """Draw features [count, d] of a class around zero; the mean is added by who draws."""
        noise = torch.randn(count, self.width, generator=generator)
        if self.covariance == "full":
            return noise @ root.mT
        drawn = noise * root
        if self.covariance == "low-rank":
            directions = self._spreads[position]["directions"]
            drawn += torch.randn(count, len(directions), generator=generator) @ directions
        return drawn

    def _stored(self, covariance: Tensor) -> dict[str, Tensor]:
        if self.covariance == "full":
            return {"triangle": packed_triangle(covariance).float()}
        diagonal = covariance.diagonal()
        if self.covariance == "diagonal":
            return {"diagonal": diagonal.float()}
        values, vectors = torch.linalg.eigh(covariance)
        leading = slice(self.width - self.rank, None)
        directions = values[leading].clamp(min=0).sqrt()[:, None] * vectors[:, leading].mT
        rest = (diagonal - directions.square().sum(dim=0)).clamp(min=0)
        return {"directions": directions.float(), "diagonal": rest.float()}

    def spreads(self, classes: range) -> dict[str, Tensor]:
        """The stored covariances of some classes, by name, [C', ...]."""
        some = [self._spreads[position] for position in classes]
        return {name: torch.stack([spread[name] for spread in some]) for name in some[0]}

    def load(self, means: Tensor, spreads: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore `means` and, task by task, what `spreads` returned."""
        shapes = self._shapes()
        self.means, self._spreads = means, []
        for part in spreads:
            if set(part) != set(shapes) or any(v.shape[1:] != shapes[n] for n, v in part.items()):
                raise ValueError(
                    f"{ {n: list(v.shape) for n, v in part.items()} } are no {self.covariance} covariances"
                )
            rows = zip(*part.values(), strict=True)
            self._spreads += [dict(zip(part, row, strict=True)) for row in rows]
        if means.shape != (len(self._spreads), self.width):
            raise ValueError(f"means {list(means.shape)} do not fit {len(self._spreads)} covariances")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        width = self.width
        if self.covariance == "full":
            return {"triangle": (width * (width + 1) // 2,)}
        directions = {"directions": (self.rank, width)} if self.covariance == "low-rank" else {}
        return {**directions, "diagonal": (width,)}
