"""EASE with old images at hand: what prototypes are worth that need not be synthesised."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ease.engine.memory import Memory
from ease.heads import class_means
from ease.methods.ease import Ease
from ease.methods.registry import register
from ease.streams import Task


@register()
class UpperBound(Ease):
    """Old prototypes in new subspaces are measured on stored exemplars instead of being synthesised."""

    name: ClassVar[str] = "upper-bound"
    kind = "exemplar-based"
    idea: ClassVar[str] = "EASE whose old prototypes come from stored exemplars instead of the complement"

    def adapt(self, task: Task, memory: Memory | None) -> None:
        assert memory is not None
        super().adapt(task, memory)
        own = self._tuning(self.bank.own[-1])
        memory.remember(task.train, self.engine.features(task.train, [own])[0])

    def complement_newest(self, features: dict[int, Tensor], memory: Memory | None) -> None:
        """Real cells for all old classes: nothing is left to synthesise, whatever the settings say."""
        assert memory is not None
        if not len(memory):
            return super().complement_newest(features, memory)
        newest = len(self.tunings)
        found = self.engine.features(memory.images, [self._tuning(newest)])
        labels = torch.from_numpy(memory.images.labels)
        for old in range(self.bank.tasks - 1):
            rows = self.bank.rows(old)
            of_task = (labels >= rows.start) & (labels < rows.stop)
            means, _ = class_means(found[:, of_task], labels[of_task], range(rows.start, rows.stop))
            self.bank.cells[old, newest] = means[0]
