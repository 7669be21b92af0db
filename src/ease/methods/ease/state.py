"""What EASE has learned: the trained subspaces and the prototypes in them. How it is changed, counted and saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.backbone import Tuning
from ease.errors import EaseError
from ease.heads import PrototypeBank
from ease.heads.prototypes import PTM
from ease.methods._base import Costs, Files, Forgetting, Learner, Subspace
from ease.methods._frozen import FrozenTuning
from ease.storage.precision import Packed
from ease.streams import ImageSet

if TYPE_CHECKING:
    from typing_extensions import Self


class SubspaceEnsemble(Learner):
    """Frozen subspaces and the prototypes of all classes in them.

    Subspaces are numbered from 1 in the order in which they were trained; 0 is the pre-trained model.

    Attributes:
        frozen: The trained tuning of each subspace.
        bank: The real prototypes.
    """

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.frozen: list[FrozenTuning] = []
        self.bank = PrototypeBank()
        self._classifier: Tensor | None = None

    @abstractmethod
    def complete_prototypes(self) -> Tensor:
        """Compute the prototypes of all classes in all subspaces, [S, C, d]."""

    def classifier(self) -> Tensor:
        """The prototypes of all classes in all subspaces, [S, C, d], computed once after each change."""
        if self._classifier is None:
            self._classifier = self.complete_prototypes()
        return self._classifier

    @property
    def tunings(self) -> list[Tuning]:
        """The tuning of each trained subspace."""
        return [frozen.tuning for frozen in self.frozen]

    def columns(self) -> list[int]:
        """The subspaces in use, in the order of the classifier's first dimension."""
        needs_ptm = self.settings.ptm or PTM in self.bank.own or not self.frozen
        trained = range(1, len(self.frozen) + 1)
        # While its task is being learned, the newest subspace has no prototypes yet. A subspace is no longer in use
        # when all classes with prototypes in it were forgotten.
        return [PTM] * needs_ptm + [s for s in trained if self.bank.in_use(s) or not self.bank.with_real(s)]

    def tuning_of(self, subspace: int) -> Tuning | None:
        """The tuning of a subspace; None for the pre-trained model."""
        return None if subspace == PTM else self.frozen[subspace - 1].tuning

    def subspaces(self) -> list[Subspace]:
        hashes = ["ptm", *(frozen.hash for frozen in self.frozen)]
        return [Subspace(self.tuning_of(column), hashes[column]) for column in self.columns()]

    def prototypes_per_subspace(self) -> list[tuple[Tuning, Tensor]]:
        pairs = zip(self.columns(), self.classifier(), strict=True)
        return [(self.frozen[column - 1].tuning, rows) for column, rows in pairs if column != PTM]

    def features(self, images: ImageSet, subspaces: Sequence[int]) -> Tensor:
        """Features of images in these subspaces, [S, N, d]."""
        return self.engine.features(images, [self.tuning_of(subspace) for subspace in subspaces])

    # --- changing ---------------------------------------------------------------------------------

    def extend(self, images: ImageSet) -> None:
        """Old and new images count the same; in later subspaces the prototype of the class becomes a real one."""
        columns = self.columns()
        features = self.features(images, columns)
        labels = torch.from_numpy(images.labels)
        for position in labels.unique().tolist():
            mine = features[:, labels == position]
            self.bank.extend(position, mine.double().mean(dim=1).float(), mine.shape[1], columns)
        self._classifier = None

    def forget(self, position: int) -> Forgetting:
        """Remove the prototypes of a class.

        Real prototypes of other classes do not change; synthesised ones may. The adapter that was trained with the
        class stays.
        """
        if self.bank.synthesised:
            raise EaseError(
                "this model keeps prototypes made of single images (synthesis=pis), which cannot be made again: "
                "no class can be forgotten"
            )
        before = dict(zip(self.columns(), self.classifier(), strict=True))
        task, _ = self.bank.place(position)
        self.bank.forget(position)
        self.task_sizes[task] -= 1
        self._classifier = None
        after = dict(zip(self.columns(), self.classifier(), strict=True)) if self.classes else {}
        return Forgetting(_largest_turn(before, after, position), "the adapter that was trained with it")

    def with_parts(self, frozen: Sequence[FrozenTuning], bank: PrototypeBank) -> Self:
        """The same tasks with other subspaces and prototypes; this learner is left unchanged."""
        other = copy(self)
        other.task_sizes, other.frozen, other.bank = list(self.task_sizes), list(frozen), bank
        other._classifier = None
        return other

    # --- saving -----------------------------------------------------------------------------------

    def files(self) -> tuple[Files, dict[str, Any]]:
        cells = self.bank.packed()
        files = {f"subspaces/{i:04d}": dict(one.packed.tensors) for i, one in enumerate(self.frozen)}
        files |= {f"prototypes/{t:04d}": dict(packed.tensors) for t, packed in enumerate(cells)}
        meta: dict[str, Any] = {
            "subspaces": [one.spec() for one in self.frozen],
            "trained": self._trained(),
        }
        if any(packed.spec() for packed in cells):
            meta["prototypes"] = [packed.spec() for packed in cells]
        return files, meta

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        specs = enumerate(meta["subspaces"])
        self.frozen = [
            FrozenTuning.load(files[f"subspaces/{i:04d}"], spec, self.backbone) for i, spec in specs
        ]
        names = [name for name in sorted(files) if name.startswith("prototypes/")]
        cells = zip(names, meta.get("prototypes") or [{}] * len(names), strict=True)
        self.bank = PrototypeBank.of_packed([Packed.of(files[name], spec) for name, spec in cells])
        spaces = {*self.bank.own, *(space for _, space in (*self.bank.cells, *self.bank.later))}
        if not spaces <= set(range(len(self.frozen) + 1)):
            raise ValueError(f"it has {len(self.frozen)} subspaces, its prototypes are of {sorted(spaces)}")
        self._classifier = None

    def _trained(self) -> list[int]:
        """Per task: the parameters of its tuning and of the discarded head; 0 for tasks that trained no subspace."""
        counts, seen = [], {PTM}
        for size, own in zip(self.task_sizes, self.bank.own, strict=True):
            head = size * self.backbone.dim + 1
            counts.append(0 if own in seen else self.tunings[own - 1].parameter_count() + head)
            seen.add(own)
        return counts

    def costs(self) -> Costs:
        cells = [*self.bank.cells.values(), *self.bank.synthesised.values()]
        stored = sum(t.parameter_count() for t in self.tunings) + sum(c.numel() for c in cells)
        return Costs(self._trained(), stored)


def _largest_turn(before: dict[int, Tensor], after: dict[int, Tensor], position: int) -> float:
    """The largest change of another class's prototype, as 1 - cosine, when the class at `position` was removed."""
    turned = 0.0
    for subspace in before.keys() & after.keys():
        old = torch.cat([before[subspace][:position], before[subspace][position + 1 :]])
        if len(old):
            turns = 1 - F.cosine_similarity(old.double(), after[subspace].double(), dim=-1)
            turned = max(turned, float(turns.where((old != after[subspace]).any(dim=-1), 0.0).max()))
    return turned
