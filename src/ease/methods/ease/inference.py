"""Prediction of EASE within a budget of passes (anytime inference)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ease.errors import EaseError
from ease.heads.anytime import SubspacePass, within_budget
from ease.heads.complement import cosines
from ease.methods.ease.state import SubspaceEnsemble


class BudgetedPrediction(SubspaceEnsemble):
    """Each image visits only the subspaces it most likely belongs to, if there is a budget.

    Without a budget, or with one that allows every subspace, predictions are those of `head`.
    """

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self._budget: int | None = settings.budget

    @abstractmethod
    def weights(self) -> Tensor:
        """Weight of each subspace for each class, [S, C]."""

    def within(self, budget: int | None) -> None:
        """Spend at most `budget` passes per image from now on; None restores the setting `budget`."""
        if budget is not None and (budget < 1 or self.settings.reweight == "none"):
            raise EaseError(f"a budget of {budget} passes per image cannot be kept: give 1 or more, or none")
        self._budget = self.settings.budget if budget is None else budget

    def passes_per_image(self) -> int:
        passes = len(self.columns())
        return passes if self._budget is None else min(self._budget, passes)

    def saves_passes(self) -> bool:
        """Whether a prediction takes fewer passes than there are subspaces."""
        return self.passes_per_image() < len(self.columns())

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """Preprocessed images [N, 3, s, s] -> logits [N, classes], computing only the passes of the budget."""
        if not self.saves_passes():
            return super().logits(pixels)
        subspaces, prototypes = self.subspaces(), self.classifier()

        def run_pass(column: int, images: Tensor) -> Tensor:
            features = self.engine.features_of_pixels(pixels[images], [subspaces[column].tuning]).cpu()
            return cosines(features, prototypes[column : column + 1], self.settings.similarity == "dot")[0]

        return self.scores_within_budget(run_pass, len(pixels))

    def scores_within_budget(self, run_pass: SubspacePass, images: int) -> Tensor:
        """Logits [N, classes] of `images` images; see `ease.heads.anytime.within_budget`."""
        columns = self.columns()
        own = torch.tensor([columns.index(subspace) for subspace in self.bank.own_of_class().tolist()])
        return within_budget(run_pass, images, own, self.weights(), self.passes_per_image())
