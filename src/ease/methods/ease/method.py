"""EASE (Zhou et al., CVPR 2024): expandable subspace ensemble for class-incremental learning.

Every task trains an adapter of its own on the frozen pre-trained model (Eq. 4-5), which spans a subspace. A class is
represented by its mean feature, the prototype, in every subspace (Eq. 7). Old classes have no images when a new
subspace is trained, so their prototypes in it are synthesised from those of similar new classes (Eq. 8-9). A prediction
compares an image with the prototypes of all classes in all subspaces (Eq. 10-11) and gives the subspace of a class's
own task more weight than the others (Eq. 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ease.backbone import Tuning
from ease.heads import CosineHead, class_means
from ease.heads.complement import (
    Synthesis,
    complete,
    cosines,
    diagonal,
    linear_map,
    nearest_images,
    semantic,
    transported,
)
from ease.heads.prototypes import PTM, best_separating
from ease.heads.widening import side_by_side
from ease.methods._capabilities import Compaction
from ease.methods._frozen import FrozenTuning
from ease.methods._registry import register
from ease.methods._tuned_head import TunedHead, fit_task, train_tuning
from ease.methods.ease.compaction import compacted_ease
from ease.methods.ease.inference import BudgetedPrediction
from ease.methods.ease.settings import EaseSettings
from ease.streams import Task
from ease.training.fit import Training, VisitingOrder
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import build_tuning

FEW_IMAGES = 5
"""With fewer images per class than this, `adapt = auto` trains no adapter."""


@register()
class Ease(BudgetedPrediction):
    """Subspace b is trained on task b alone and never changes again (Eq. 4-6).

    What has been learned is in `frozen`, the trained tunings, and in `bank`, the real prototypes.
    """

    name: ClassVar[str] = "ease"
    title: ClassVar[str] = "EASE"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "one adapter per task; prototypes in all subspaces, missing ones synthesised"
    Settings = EaseSettings

    # --- learning: subspaces (Eq. 4-6) and prototypes (Eq. 7-9) -----------------------------------

    def adapt(self, task: Task, memory: Memory | None) -> None:
        expands = self._expands(task)
        if expands:
            self.frozen.append(FrozenTuning.of(self.train_subspace(task), self.backbone))
        columns = self.columns()
        features = self.features(task.train, columns)
        labels = torch.from_numpy(task.train.labels)
        means, counts = class_means(features, labels, task.classes)
        if expands:
            own = len(self.frozen)
        else:
            own = columns[best_separating(features, labels, task.classes, means, self.bank, columns)]
        self.bank.add_task(means, counts, columns, own)
        if expands:
            self.complement_newest(dict(zip(columns, features, strict=True)), memory)
        self._classifier = None

    def _expands(self, task: Task) -> bool:
        limit = self.settings.max_subspaces
        if limit is not None and len(self.frozen) >= limit:
            return False
        if self.settings.adapt != "auto":
            return self.settings.adapt == "always" or (self.settings.adapt == "first" and task.index == 0)
        return len(task.classes) > 1 and len(task.train) >= FEW_IMAGES * len(task.classes)

    def train_subspace(
        self, task: Task, start: TunedHead | None = None, order: VisitingOrder | None = None
    ) -> Tuning:
        """Eq. 5: train a new tuning together with a cosine head that is discarded afterwards.

        Args:
            task: The task whose training images are used.
            start: What to train instead of a new subspace; for replaying another training.
            order: Visiting order of the images by epoch; for replaying another training.

        Returns:
            The trained tuning.
        """
        training = self._training(task)
        if start is None:
            return train_tuning(self.engine, partial(self.new_subspace, task), task, training).freeze()
        fit_task(self.engine, start, task, training, order=order)
        return start.tuning.freeze()

    def new_subspace(self, task: Task) -> TunedHead:
        """A new tuning, which does not change the pre-trained model yet (Eq. 4), and its training head."""
        draw = generator(self.engine.seed, "init", task.index)
        settings = self.settings
        tuning = build_tuning(settings.tuning, self.backbone.shape, settings.tuning_config(), draw)
        negatives = self._negatives(task)
        head = CosineHead(self.backbone.dim, len(task.classes), settings.sigma, draw, negatives)
        return TunedHead(self.backbone, tuning, head)

    def _negatives(self, task: Task) -> Tensor | None:
        """A task of one class is trained against the real prototypes of the old classes."""
        if len(task.classes) > 1 or not self.bank.tasks:
            return None
        return torch.cat([self.bank.cells[t, self.bank.own[t]] for t in range(self.bank.tasks)])

    def _training(self, task: Task) -> Training:
        settings = self.settings
        sizes = [*self.task_sizes, len(task.classes)]
        if task.index == 0 or sizes[0] == sizes[1]:
            return settings
        later = {"epochs": settings.later_epochs, "lr": settings.later_lr}
        return settings.model_copy(update={name: value for name, value in later.items() if value is not None})

    def complement_newest(self, features: dict[int, Tensor], memory: Memory | None) -> None:
        """Compute prototypes of old classes in the newest subspace that depend on the new images (PIS).

        All other variants of Eq. 8-9 depend on real prototypes only; `classifier` computes them when needed.

        Args:
            features: Features [N, d] of the newest task's images, by subspace.
            memory: Old images, for methods that may keep some.
        """
        settings, newest = self.settings, len(self.frozen)
        if settings.synthesis != "pis" or settings.complement == "none" or settings.diagonal:
            return
        for old in range(self.bank.tasks - 1):
            space = self.bank.own[old]
            self.bank.synthesised[old, newest] = nearest_images(
                self.bank.cells[old, space], features[space], features[newest], settings.neighbours
            )

    # --- prediction (Eq. 10-12) -------------------------------------------------------------------

    def complete_prototypes(self) -> Tensor:
        """Eq. 10: the prototypes of all classes in all subspaces, real and synthesised, [S, C, d]."""
        if self.settings.diagonal:
            return diagonal(self.bank, self.columns(), always={PTM})
        references = None if self.settings.complement == "none" else self.settings.complement
        return complete(self.bank, self.columns(), references, self._synthesis())

    def _synthesis(self) -> Synthesis | None:
        """How a missing prototype follows from real ones (Eq. 8-9 for pps); None for pis, which needs images."""
        kinds: dict[str, Synthesis | None] = {
            "pps": semantic,
            "pis": None,
            "lr": partial(linear_map, ridge=self.settings.ridge),
            "ot": partial(transported, regularisation=self.settings.transport),
        }
        return kinds[self.settings.synthesis]

    def weights(self) -> Tensor:
        """Eq. 12: weight of each subspace for each class, [S, C]: 1 for its own, alpha for others, beta for the PTM."""
        columns = torch.tensor(self.columns())
        is_own = columns[:, None] == self.bank.own_of_class()[None, :]
        # As an additional subspace (setting `ptm`) the PTM has weight beta for every class. Where it is only in use
        # because some class has no other subspace, it is treated like any other.
        additional = (columns == PTM)[:, None] & self.settings.ptm
        others = ~is_own & ~additional
        share = self.settings.alpha * others.float()
        if self.settings.reweight == "average":
            share = share / others.sum(dim=0).clamp(min=1)
        return share + is_own.float() + self.settings.beta * additional.float()

    def head(self, features: Tensor) -> Tensor:
        """Eq. 12 with each subspace normalised separately; Eq. 11, one cosine over everything, without reweighting."""
        dot = self.settings.similarity == "dot"
        prototypes = self.classifier().to(features.device)
        if self.settings.reweight == "none":
            return cosines(side_by_side(features)[None], side_by_side(prototypes)[None], dot)[0]
        each = cosines(features, prototypes, dot)
        if self.saves_passes():
            return self.scores_within_budget(lambda column, images: each[column, images], features.shape[1])
        return torch.einsum("snc,sc->nc", each, self.weights().to(features.device))

    # --- capabilities -----------------------------------------------------------------------------

    @classmethod
    def shared_trainings(cls, settings: Mapping[str, Any]) -> str:
        """Most variants of EASE differ only in how prototypes are used."""
        return f"{settings['tuning']} {settings['rank']}"

    def compacted(self, compaction: Compaction) -> Ease:
        return compacted_ease(self, compaction)
