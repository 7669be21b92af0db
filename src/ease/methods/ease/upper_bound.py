"""The upper bound of EASE: old prototypes are measured on stored exemplars instead of being synthesised."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ease.heads import class_means
from ease.methods._base import Kind
from ease.methods._registry import register
from ease.methods.ease.method import Ease
from ease.streams import Task
from ease.training.memory import Memory


@register()
class UpperBound(Ease):
    """EASE with exemplars. Its figures bound what synthesised prototypes can reach."""

    name: ClassVar[str] = "upper-bound"
    title: ClassVar[str] = "Upper bound"
    kind: ClassVar[Kind] = "exemplar-based"
    idea: ClassVar[str] = "EASE whose old prototypes come from stored exemplars instead of the complement"
    # The stored exemplars and the prototypes measured on them would no longer agree.
    extend = None  # type: ignore[assignment]
    forget = None  # type: ignore[assignment]
    compacted = None  # type: ignore[assignment]

    def adapt(self, task: Task, memory: Memory | None) -> None:
        assert memory is not None
        super().adapt(task, memory)
        own = self.tuning_of(self.bank.own[-1])
        memory.remember(task.train, self.engine.features(task.train, [own])[0])

    def complement_newest(self, features: dict[int, Tensor], memory: Memory | None) -> None:
        """Measure all old classes in the newest subspace, so that no prototype has to be synthesised."""
        assert memory is not None
        if not len(memory):
            return super().complement_newest(features, memory)
        newest = len(self.frozen)
        found = self.engine.features(memory.images, [self.tuning_of(newest)])
        labels = torch.from_numpy(memory.images.labels)
        for old in range(self.bank.tasks - 1):
            rows = self.bank.rows(old)
            of_task = (labels >= rows.start) & (labels < rows.stop)
            means, _ = class_means(found[:, of_task], labels[of_task], range(rows.start, rows.stop))
            self.bank.cells[old, newest] = means[0]
