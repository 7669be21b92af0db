"""EASE (Zhou et al., CVPR 2024): an adapter per task, prototypes in every subspace, and no old image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ease.backbone import Tuning
from ease.errors import EaseError
from ease.heads import CosineHead, PrototypeBank, class_means
from ease.heads.anytime import Look, within_budget
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
from ease.heads.prototypes import best_separating
from ease.methods._base import Costs, Files, Forgetting, Learner, Subspace
from ease.methods._compaction import Compaction, unpacked_tuning
from ease.methods._registry import register
from ease.methods._tuned_head import TunedHead, fit_task, tuned_for
from ease.methods.ease.compaction import compacted_ease
from ease.storage.precision import Packed, lossless
from ease.streams import ImageSet, Task
from ease.training.fit import Order, Training
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import build_tuning

TUNING_SETTINGS = {
    "adapter": ("rank", "scale", "dropout", "bias", "reads"),
    "vpt-shallow": ("length",),
    "vpt-deep": ("length",),
    "ssf": (),
    "lora": ("rank",),
}
"""Which settings shape each kind of tuning."""

PTM = 0
"""Subspace 0 is the pre-trained model; adapter i is subspace i + 1."""

FEW_IMAGES = 5
"""Below this many images per class an adapter learns noise."""


class EaseSettings(Training):
    """Defaults are the released CIFAR-100 settings."""

    lr: float = Field(0.025, gt=0)
    later_epochs: int | None = Field(
        None, ge=0, description="after task 1, if it differs in size from the others"
    )
    later_lr: float | None = Field(
        None, gt=0, description="after task 1, if it differs in size from the others"
    )
    start: Literal["fresh", "first", "previous"] = Field(
        "fresh",
        description="where a new subspace starts: as the PTM, as the first one, or as the one before it",
    )
    drop_patches: float = Field(
        0.0, ge=0, lt=1, description="share of the patches that an image loses while training, for speed"
    )
    hardest: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of an epoch's images that the next one visits, those with the highest loss",
    )
    sigma: float = Field(1.0, gt=0, description="where the training head's learned scale starts")
    head: Literal["random", "means"] = Field(
        "random",
        description="where the training head starts: at random, or as the PTM's mean features of each class",
    )
    tuning: Literal["adapter", "vpt-shallow", "vpt-deep", "ssf", "lora"] = Field(
        "adapter", description="what builds a subspace"
    )
    length: int = Field(5, ge=1, description="prompt tokens, for vpt")
    rank: int = Field(64, ge=1, description="projection dim r of the adapter")
    scale: float = Field(0.1, description="of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="inside the adapter, while training")
    bias: bool = Field(True, description="of the adapter's two linears")
    reads: Literal["stream", "normed"] = Field("stream", description="the adapter's input: x1, or norm2(x1)")
    alpha: float = Field(0.1, ge=0, description="weight of the subspaces that are not a task's own (Eq. 12)")
    reweight: Literal["average", "sum", "none"] = Field(
        "average",
        description="alpha / (b - 1) as released, alpha as in the text, or one cosine over everything",
    )
    complement: Literal["triangle", "newest", "none"] = Field(
        "triangle",
        description="renew all missing prototypes (released), only the newest column (text), or leave zeros",
    )
    synthesis: Literal["pps", "pis", "lr", "ot"] = Field(
        "pps",
        description="missing prototypes from similar classes, similar images, a linear map, or transport",
    )
    neighbours: int = Field(20, ge=1, description="for pis: images that an old class is made of, k")
    ridge: float = Field(
        0.001, ge=0, description="for lr: penalty, in mean squared lengths of the references"
    )
    transport: float = Field(0.01, ge=1e-3, description="for ot: entropic regularisation")
    diagonal: bool = Field(
        False, description="only own-subspace prototypes (ablation: task-specific adapters)"
    )
    ptm: bool = Field(False, description="the PTM as one more subspace")
    beta: float = Field(1.0, ge=0, description="weight of the PTM subspace")
    similarity: Literal["cosine", "dot"] = "cosine"
    adapt: Literal["auto", "always", "first", "never"] = Field(
        "auto",
        description="which tasks add a subspace; auto: not those with one class or under 5 images per class",
    )
    budget: int | None = Field(
        None, ge=1, description="passes per image, spent on the likeliest subspaces; all of them if unset"
    )

    @model_validator(mode="after")
    def _can_be_split(self) -> EaseSettings:
        if self.budget is not None and self.reweight == "none":
            raise ValueError("one cosine over everything needs all passes: choose another reweight")
        return self


@register()
class Ease(Learner):
    """Subspace b is learned for task b alone and never changes again (Eq. 4-6).

    Attributes:
        tunings: one per subspace.
        packed: how each of them is saved.
        bank: the prototypes.
        storages: how a task's prototypes are saved, where not in fp32.
    """

    name: ClassVar[str] = "ease"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "one adapter per task; prototypes in all subspaces, missing ones synthesised"
    Settings = EaseSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.tunings: list[Tuning] = []
        self._hashes: list[str] = []
        self.packed: list[Packed] = []
        self.bank = PrototypeBank()
        self.storages: dict[int, str] = {}
        self._classifier: Tensor | None = None
        self._first_look: tuple[ImageSet, Tensor] | None = None
        self._budget: int | None = settings.budget

    def adapt(self, task: Task, memory: Memory | None) -> None:
        expands = self._expands(task)
        if expands:
            self._keep(self.train_subspace(task))
        columns = self.columns()
        features = self._features(task.train, columns)
        labels = torch.from_numpy(task.train.labels)
        means, counts = class_means(features, labels, task.classes)
        if expands:
            own = len(self.tunings)
        else:
            own = columns[best_separating(features, labels, task.classes, means, self.bank, columns)]
        self.bank.add_task(means, counts, columns, own)
        if expands:
            self.complement_newest(dict(zip(columns, features, strict=True)), memory)
        self._classifier = None

    def _features(self, images: ImageSet, columns: Sequence[int]) -> Tensor:
        """[S, N, d] in these subspaces; the PTM's are there already if it was asked where the head should start."""
        look, self._first_look = self._first_look, None
        if look is None or look[0] is not images or PTM not in columns:
            return self.engine.features(images, [self._tuning(c) for c in columns])
        return torch.cat(
            [look[1], self.engine.features(images, [self._tuning(c) for c in columns if c != PTM])]
        )

    def complement_newest(self, features: dict[int, Tensor], memory: Memory | None) -> None:
        """What old classes get in the subspace just learned, if it takes more than real prototypes.

        Args:
            features: of the newest task's images, [N, d] by subspace.
            memory: old images, for who may have them.
        """
        settings, newest = self.settings, len(self.tunings)
        if settings.synthesis != "pis" or settings.complement == "none" or settings.diagonal:
            return
        for old in range(self.bank.tasks - 1):
            space = self.bank.own[old]
            self.bank.synthesised[old, newest] = nearest_images(
                self.bank.cells[old, space], features[space], features[newest], settings.neighbours
            )

    def extend(self, images: ImageSet) -> None:
        """Old and new images are weighed alike; in later subspaces the class's prototype becomes real."""
        columns = self.columns()
        features = self.engine.features(images, [self._tuning(c) for c in columns])
        labels = torch.from_numpy(images.labels)
        for position in labels.unique().tolist():
            mine = features[:, labels == position]
            self.bank.extend(position, mine.double().mean(dim=1).float(), mine.shape[1], columns)
        self._classifier = None

    def forget(self, position: int) -> Forgetting:
        """Its prototypes go; adapters, which were shaped by its images among others, stay as they are.

        Real prototypes of other classes stay bit for bit; synthesised ones may turn.
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

    def _keep(self, tuning: Tuning, packed: Packed | None = None, known_by: str | None = None) -> None:
        """It never changes again, so it is hashed once, and saved as it was loaded."""
        self.tunings.append(tuning.to(self.backbone.device).freeze())
        self.packed.append(packed or Packed(tuning.state_dict()))
        self._hashes.append(known_by or tuning.fingerprint())

    def remade(
        self, bank: PrototypeBank, subspaces: Sequence[tuple[Tuning, Packed]], storages: Mapping[int, str]
    ) -> Ease:
        """The same tasks with other subspaces and prototypes (see `ease_compaction`); this one stays as it is."""
        other = copy(self)
        other.task_sizes, other.bank, other.storages = list(self.task_sizes), bank, dict(storages)
        other.tunings, other.packed, other._hashes, other._classifier = [], [], [], None
        known = dict(zip(map(id, self.tunings), self._hashes, strict=True))
        for tuning, packed in subspaces:
            other._keep(tuning, packed, known.get(id(tuning)))
        return other

    def compacted(self, compaction: Compaction) -> Ease:
        """Narrower numbers, thinner adapters and fewer subspaces, as asked for."""
        return compacted_ease(self, compaction)

    def _expands(self, task: Task) -> bool:
        if self.settings.adapt != "auto":
            return self.settings.adapt == "always" or (self.settings.adapt == "first" and task.index == 0)
        return len(task.classes) > 1 and len(task.train) >= FEW_IMAGES * len(task.classes)

    def train_subspace(
        self, task: Task, start: TunedHead | None = None, order: Order | None = None
    ) -> Tuning:
        """Eq. 5: only the new tuning and a throw-away cosine head learn.

        Args:
            task: whose images.
            start: what to train instead of a new subspace,
            order: and in which order; both for those who replay another training.
        """
        training, hardest = self._training(task), self.settings.hardest
        if start is None:
            new = partial(self.new_subspace, task)
            return tuned_for(self.engine, new, task, training, hardest=hardest).freeze()
        fit_task(self.engine, start, task, training, hardest=hardest, order=order)
        return start.tuning.freeze()

    def new_subspace(self, task: Task) -> TunedHead:
        """An untrained tuning, which leaves the PTM as it is, and its head."""
        draw = generator(self.engine.seed, "init", task.index)
        config = {name: getattr(self.settings, name) for name in TUNING_SETTINGS[self.settings.tuning]}
        tuning = build_tuning(self.settings.tuning, self.backbone.shape, config, draw)
        if self.settings.start != "fresh" and self.tunings:
            old = self.tunings[0 if self.settings.start == "first" else -1]
            if old.config() == tuning.config():
                tuning.load_state_dict(old.state_dict())
        head = CosineHead(
            self.backbone.dim, len(task.classes), self.settings.sigma, draw, self._negatives(task)
        )
        if self.settings.head == "means":
            head.start_as(self._ptm_means(task))
        return TunedHead(self.backbone, tuning, head, self.settings.drop_patches)

    def _ptm_means(self, task: Task) -> Tensor:
        """The task's prototypes before anything is learned, [classes, d]."""
        if self._first_look is None or self._first_look[0] is not task.train:
            self._first_look = task.train, self.engine.features(task.train, [None])
        labels = torch.from_numpy(task.train.labels)
        return class_means(self._first_look[1], labels, task.classes)[0][0]

    def _negatives(self, task: Task) -> Tensor | None:
        """A class that comes alone is told from the old classes' real prototypes."""
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

    def columns(self) -> list[int]:
        """The subspaces in use, in the order of the classifier's columns."""
        needs_ptm = self.settings.ptm or PTM in self.bank.own or not self.tunings
        learned = range(1, len(self.tunings) + 1)
        # The newest has no prototypes while its task is being learned; one whose classes were all forgotten is idle.
        return [PTM] * needs_ptm + [s for s in learned if self.bank.in_use(s) or not self.bank.with_real(s)]

    def _tuning(self, column: int) -> Tuning | None:
        return None if column == PTM else self.tunings[column - 1]

    def subspaces(self) -> list[Subspace]:
        return [
            Subspace(self._tuning(column), "ptm" if column == PTM else self._hashes[column - 1])
            for column in self.columns()
        ]

    def classifier(self) -> Tensor:
        """Eq. 10: all prototypes, real and synthesised, [S, C, d]."""
        if self._classifier is None:
            columns, kind = self.columns(), self.settings.complement
            if self.settings.diagonal:
                self._classifier = diagonal(self.bank, columns, always={PTM})
            else:
                kind = None if kind == "none" else kind
                self._classifier = complete(self.bank, columns, kind, self._synthesis())
        return self._classifier

    def _synthesis(self) -> Synthesis | None:
        """How a missing prototype follows from real ones; None for PIS, where images were needed."""
        kinds: dict[str, Synthesis | None] = {
            "pps": semantic,
            "pis": None,
            "lr": partial(linear_map, ridge=self.settings.ridge),
            "ot": partial(transported, regularisation=self.settings.transport),
        }
        return kinds[self.settings.synthesis]

    def weights(self) -> Tensor:
        """How much each subspace counts for each class, [S, C]: 1 for its own, alpha for others, beta for the PTM."""
        columns = torch.tensor(self.columns())
        is_own = columns[:, None] == self.bank.own_of_class()[None, :]
        # As an extra subspace the PTM counts beta for every class. In use only because some class has no other, it is
        # a subspace like all: then no class has more weight in total than another.
        extra = (columns == PTM)[:, None] & self.settings.ptm
        others = ~is_own & ~extra
        share = self.settings.alpha * others.float()
        if self.settings.reweight == "average":
            share = share / others.sum(dim=0).clamp(min=1)
        return share + is_own.float() + self.settings.beta * extra.float()

    def head(self, features: Tensor) -> Tensor:
        """Eq. 12, each subspace normalised on its own; Eq. 11 as one cosine when nothing is reweighted."""
        dot = self.settings.similarity == "dot"
        prototypes = self.classifier().to(features.device)
        if self.settings.reweight == "none":
            return cosines(_side_by_side(features), _side_by_side(prototypes), dot)[0]
        each = cosines(features, prototypes, dot)
        if self._saves_passes():
            return self._anytime(lambda column, here: each[column, here], features.shape[1])
        return torch.einsum("snc,sc->nc", each, self.weights().to(features.device))

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """Preprocessed images [N, 3, s, s] -> [N, classes], within the budget if there is one."""
        if not self._saves_passes():
            return super().logits(pixels)
        subspaces, prototypes = self.subspaces(), self.classifier()

        def look(column: int, here: Tensor) -> Tensor:
            features = self.engine.features_of_pixels(pixels[here], [subspaces[column].tuning]).cpu()
            return cosines(features, prototypes[column : column + 1], self.settings.similarity == "dot")[0]

        return self._anytime(look, len(pixels))

    def _anytime(self, look: Look, images: int) -> Tensor:
        assert self._budget is not None
        columns = self.columns()
        own = torch.tensor([columns.index(subspace) for subspace in self.bank.own_of_class().tolist()])
        return within_budget(look, images, own, self.weights(), self._budget)

    def within(self, budget: int | None) -> None:
        if budget is not None and (budget < 1 or self.settings.reweight == "none"):
            raise EaseError(f"a budget of {budget} passes per image cannot be kept: give 1 or more, or none")
        self._budget = self.settings.budget if budget is None else budget

    def _saves_passes(self) -> bool:
        return self._budget is not None and self._budget < len(self.columns())

    def passes_per_image(self) -> int:
        passes = len(self.columns())
        return passes if self._budget is None else min(self._budget, passes)

    def files(self) -> tuple[Files, dict[str, Any]]:
        pairs = list(zip(self.tunings, self.packed, strict=True))
        kinds = [{"kind": t.kind, "config": t.config(), **packed.spec()} for t, packed in pairs]
        cells = [lossless(self.bank.state(t), self.storages.get(t, "fp32")) for t in range(self.bank.tasks)]
        files = {f"subspaces/{i:04d}": dict(packed.tensors) for i, packed in enumerate(self.packed)}
        files |= {f"prototypes/{t:04d}": dict(packed.tensors) for t, packed in enumerate(cells)}
        meta: dict[str, Any] = {"subspaces": kinds, "trained": self._trained()}
        if any(packed.spec() for packed in cells):
            meta["prototypes"] = [packed.spec() for packed in cells]
        return files, meta

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        self.tunings, self._hashes, self.packed = [], [], []
        for i, spec in enumerate(meta["subspaces"]):
            packed = Packed.of(files[f"subspaces/{i:04d}"], spec)
            tuning = unpacked_tuning(spec["kind"], self.backbone, spec["config"], packed)
            self._keep(tuning, packed if packed.spec() else None)  # plain weights need no second copy
        names = [name for name in sorted(files) if name.startswith("prototypes/")]
        specs = meta.get("prototypes") or [{}] * len(names)
        cells = [Packed.of(files[name], spec) for name, spec in zip(names, specs, strict=True)]
        self.bank = PrototypeBank.of_states([packed.unpacked() for packed in cells])
        self.storages = {t: packed.storage for t, packed in enumerate(cells) if packed.storage != "fp32"}
        self._classifier = None

    def _trained(self) -> list[int]:
        """Per task: its tuning and the head that was thrown away; nothing where it has no subspace of its own."""
        counts = []
        for size, own, seen in zip(self.task_sizes, self.bank.own, _firsts(self.bank.own), strict=True):
            head = size * self.backbone.dim + 1
            counts.append(self.tunings[own - 1].parameter_count() + head if seen else 0)
        return counts

    def costs(self) -> Costs:
        cells = [*self.bank.cells.values(), *self.bank.synthesised.values()]
        stored = sum(t.parameter_count() for t in self.tunings) + sum(c.numel() for c in cells)
        return Costs(self._trained(), stored)


@register()
class UpperBound(Ease):
    """Old prototypes in new subspaces are measured on stored exemplars instead of being synthesised."""

    name: ClassVar[str] = "upper-bound"
    kind = "exemplar-based"
    idea: ClassVar[str] = "EASE whose old prototypes come from stored exemplars instead of the complement"
    compacted = None  # type: ignore[assignment]
    """The images it keeps belong to the prototypes that were measured on them: they would no longer agree."""

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


def _largest_turn(before: dict[int, Tensor], after: dict[int, Tensor], position: int) -> float:
    """How far any other class's prototype turned when the class at `position` went, as 1 - cosine."""
    turned = 0.0
    for subspace in before.keys() & after.keys():
        old = torch.cat([before[subspace][:position], before[subspace][position + 1 :]])
        if len(old):
            turns = 1 - F.cosine_similarity(old.double(), after[subspace].double(), dim=-1)
            turned = max(turned, float(turns.where((old != after[subspace]).any(dim=-1), 0.0).max()))
    return turned


def _side_by_side(subspaces: Tensor) -> Tensor:
    """[S, N, d] -> [1, N, S*d], the concatenation of Eq. 6."""
    return subspaces.transpose(0, 1).flatten(1)[None]


def _firsts(values: list[int]) -> list[bool]:
    """Whether each value is a subspace seen for the first time."""
    return [value != PTM and value not in values[:i] for i, value in enumerate(values)]
