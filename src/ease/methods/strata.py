"""Strata, this project's own method: second-order prototypes from several layers, in one pass.

A class is represented by its mean feature. An image is assigned to the class whose mean is most similar, by the cosine
around the mean of all classes, after both were whitened by the within-class covariance of all images seen so far. The
feature is the concatenation of the class tokens and the mean patch tokens of the model's last blocks. Means and
covariance are running sums, so the order of tasks does not matter and nothing is forgotten. The model is the
pre-trained model (PTM), or the PTM with one adapter that was trained on the first task.

Origins: prototypes with a covariance are from FeCAM (Goswami et al., NeurIPS 2023) and SLDA (Hayes and Kanan, 2020),
class tokens of several layers and adaptation in the first session from LayUP (Ahrens et al., TMLR 2024), running
second-order sums on a once-adapted model from RanPAC (McDonnell et al., NeurIPS 2023). New is their combination with a
shrinkage in closed form, towards the covariances of the separate tokens, and a centred cosine. No setting has to be
tuned for a dataset. The statistics and the shrinkage are in `ease.heads.whitened`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.backbone import Layers, Tuning
from ease.errors import EaseError
from ease.heads.class_left_out import class_left_out_scores
from ease.heads.left_out import left_out_scores
from ease.heads.stored_scatter import scatter_of, scatter_tensors
from ease.heads.triangle import packed_triangle
from ease.heads.whitened import WhitenedHead
from ease.methods._base import Costs, Files, Forgetting
from ease.methods._capabilities import Compaction
from ease.methods._first_session import AdapterSettings, FirstSession
from ease.methods._registry import register
from ease.methods._tuned_head import train_tuning
from ease.storage.precision import Packed, lossless
from ease.streams import ImageSet, Task
from ease.streams.images import chosen_by_content
from ease.training.memory import Memory

FEW_IMAGES = 5
"""With fewer images per class than this, no adapter is trained."""
HELD_OUT = 0.25
"""The share of each class of the first task that decides whether its adapter is kept."""


class StrataSettings(AdapterSettings):
    """Settings of Strata. Those of the parent class say how the adapter is trained, if there is one."""

    layers: int = Field(
        4, ge=1, description="number of last blocks whose class tokens are read; all if there are fewer"
    )
    patches: bool = Field(True, description="read the mean patch tokens of these blocks as well")
    adapt: Literal["never", "first", "auto"] = Field(
        "never",
        description="whether task 1 trains an adapter; auto: keep it if it helps on images held out of task 1",
    )
    epochs: int = Field(4, ge=0, description="epochs on the images of task 1")
    min_steps: int = Field(
        60, ge=0, description="epochs are added until the adapter was trained for this many steps"
    )
    batch_size: int = Field(16, ge=1, description="images per step, summed over all processes")
    lr: float = Field(0.2, gt=0, description="initial learning rate")
    sigma: float = Field(10.0, gt=0, description="initial value of the training head's learned scale")

    def for_images(self, images: int) -> StrataSettings:
        """The settings with the number of epochs that a first task of so many images gets."""
        if not self.epochs:
            return self
        steps = math.ceil(images / self.batch_size)
        return self.model_copy(update={"epochs": max(self.epochs, math.ceil(self.min_steps / steps))})


@register()
class Strata(FirstSession):
    """`score_c = cos(Sigma^-1/2 (h - g), Sigma^-1/2 (mu_c - g))`, g the mean of the class means mu_c.

    Attributes:
        sums: Class means, image counts and the pooled scatter of h, the tokens of the last blocks.
        storage: The precision in which they are saved: `fp32` unless the model was compacted.
    """

    name: ClassVar[str] = "strata"
    title: ClassVar[str] = "Strata"
    state_title: ClassVar[str] = "within-class covariance"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = (
        "class means in the metric of the pooled covariance, of several layers; one pass (ours)"
    )
    remark: ClassVar[tuple[str, ...]] = (
        "EASE is the paper's method, Strata is ours.",
        "Strata was verified at this scale only, never on a ViT-B.",
    )
    Settings = StrataSettings
    shaped_by = ("rank", "scale", "dropout")
    thorough_settings: ClassVar[dict[str, Any]] = {"adapt": "auto"}
    extends_exactly = True

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.reading = Layers(min(settings.layers, self.backbone.shape.depth), settings.patches)
        self.sums = self._new_sums()
        self.storage = "fp32"
        self._scatter: dict[str, Tensor] | None = None  # as saved, if not in fp32
        self._trained_first = 0

    def _new_sums(self) -> WhitenedHead:
        width = self.backbone.width(self.reading)
        return WhitenedHead(width, parts=width // self.backbone.dim)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        if task.index == 0 and self.settings.adapt != "never":
            self._adapt_first(task)
        self.collect(task, self._features(task.train), torch.from_numpy(task.train.labels))

    def _adapt_first(self, task: Task) -> None:
        """Train the adapter of task 1. With `adapt = auto`, keep it only if it helps on held-out images."""
        if len(task.classes) < 2 or len(task.train) < FEW_IMAGES * len(task.classes):
            self.engine.report(
                f"the first task has too little to adapt to ({len(task.train)} images of {len(task.classes)} classes): "
                "the pre-trained model is used as it is"
            )
            return
        if self.settings.adapt == "first":
            self.keep(self._train(task))
            return
        rest, held = _split(task.train)
        tuning = self._train(replace(task, train=rest)).freeze()
        plain, adapted = (self._accuracy(t, task, rest, held) for t in (None, tuning))
        if adapted > plain:
            self.keep(tuning)
        self.engine.report(
            f"{len(held)} held-out images of the first task: {plain:.1f} % right with the pre-trained model, "
            f"{adapted:.1f} % with the adapter, which was {'kept' if adapted > plain else 'dropped'}"
        )

    def _train(self, task: Task) -> Tuning:
        training = self.settings.for_images(len(task.train))
        tuning = train_tuning(self.engine, partial(self.new_tuned_head, task), task, training)
        self._trained_first += tuning.parameter_count() + len(task.classes) * self.backbone.dim + 1
        return tuning

    def _accuracy(self, tuning: Tuning | None, task: Task, rest: ImageSet, held: ImageSet) -> float:
        """Accuracy in percent on the held-out images of a head that is made of the other images."""
        head = self._new_sums()
        head.grow(len(task.classes))
        both = ImageSet(
            rest.source,
            np.concatenate([rest.indices, held.indices]),
            np.concatenate([rest.labels, held.labels]),
        )
        features = self.engine.features(both, [tuning], reading=self.reading)[0]
        head.add(features[: len(rest)], torch.from_numpy(rest.labels) - task.classes.start)
        right = head.scores(features[len(rest) :]).argmax(dim=1) == torch.from_numpy(held.labels)
        return 100 * float(right.double().mean())

    def _features(self, images: ImageSet) -> Tensor:
        """Features of images, [1, N, K]."""
        return self.engine.features(images, [self.tuned], reading=self.reading)

    def collect(self, task: Task, features: Tensor, labels: Tensor) -> None:
        self.sums.grow(len(task.classes))
        self.sums.add(features[0], labels)
        self._round_as_saved()
        if task.index > 0 or self.tuned is None:  # the adapter was trained on all images of task 1
            self.left_out = left_out_scores(self.sums, features[0], labels)

    def extend(self, images: ImageSet) -> None:
        """The result is the same as if these images had been among the first ones of their class."""
        self.sums.add(self._features(images)[0], torch.from_numpy(images.labels))
        self._round_as_saved()

    def label_scores(self, features: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Known and new images count alike: known classes are among those that an image may look like."""
        return class_left_out_scores(self.sums, features[0], labels, classes)

    def forget(self, position: int) -> Forgetting:
        before = self.sums.whitening().directions
        self.sums.forget(position)
        self.task_sizes[self.task_of(position)] -= 1
        others = torch.cat([before[:position], before[position + 1 :]])
        turned = 1 - (others * self.sums.whitening().directions).sum(dim=1)
        kept = "the pooled covariance of all classes, in which its share cannot be separated from that of the others"
        return Forgetting(float(turned.max()) if len(turned) else 0.0, kept)

    def compacted(self, compaction: Compaction) -> Strata:
        """Reduce the precision of the statistics and the adapter, and factor the adapter's matrices.

        With int8 the class means are stored in fp16: in directions in which images of a class hardly vary, small
        differences between the means decide, and 8 bits cannot represent them. Images that are learned later are added
        to the stored sums, which are then rounded again. In fp16 this changes almost nothing. In int8 the errors would
        accumulate, so the scatter is stored in fp16 from then on, until the model is compacted again.
        """
        if compaction.max_subspaces is not None:
            raise EaseError(
                "a model of 'strata' takes one pass per image, however many classes it knows: "
                "leave max_subspaces (--max-subspaces) out"
            )
        if compaction.energy is not None and self.tuned is None:
            raise EaseError(
                "energy (--energy) is for the matrices of adapters, and this model of 'strata' has none: leave it out"
            )
        other = copy(self)
        other.task_sizes, other.sums = list(self.task_sizes), deepcopy(self.sums)
        storage = compaction.storage or self.storage
        if storage != self.storage:
            other._round(storage)
        if self.frozen is not None:
            other.frozen = self.frozen.repacked(compaction.storage, compaction.energy, self.backbone)
        return other

    def _round_as_saved(self) -> None:
        """Round the statistics as saving does, so that learning on gives the same result after a restart."""
        self._round("fp16" if self.storage == "int8" else self.storage)

    def _round(self, storage: str) -> None:
        self.storage = storage
        if storage == "fp32":
            self._scatter = None
            self.sums.round_as_saved()
            return
        self._scatter = scatter_tensors(self.sums.scatter, storage)
        means = Packed({"means": self.sums.means.float()}).repacked("fp16").unpacked()
        self._load_sums({**means, "counts": self.sums.counts}, self._scatter, self.sums.freedom)

    def _load_sums(self, state: Mapping[str, Tensor], scatter: Mapping[str, Tensor], freedom: int) -> None:
        whole = packed_triangle(scatter_of(scatter, self.storage, self.sums.width))
        self.sums.load_state({**state, "scatter": whole}, freedom)

    def head(self, features: Tensor) -> Tensor:
        return self.sums.scores(features[0])

    def directions(self, features: Tensor) -> Tensor:
        """The whitened features, normalised."""
        return F.normalize(self.sums.whitening().whitened(features[0]), dim=-1)

    def alike_from(self) -> float:
        return self.sums.alike_from()

    def files(self) -> tuple[Files, dict[str, Any]]:
        files, meta = super().files()
        state, at, specs = self.sums.state(), 0, []
        for task, size in enumerate(self.task_sizes):
            part = {name: state[name][at : at + size].clone() for name in ("means", "counts")}
            packed = lossless(part, "fp32" if self.storage == "fp32" else "fp16")
            files[f"prototypes/{task:04d}"] = dict(packed.tensors)
            specs.append(packed.spec())
            at += size
        files["learner/scatter"] = self._scatter or {"scatter": state["scatter"]}
        if self.storage != "fp32":
            meta |= {"prototypes": specs, "scatter": {"storage": self.storage}}
        adapted = self.tuned is not None
        counted = {"freedom": self.sums.freedom, "trained_first": self._trained_first}
        return files, {**meta, "adapted": adapted, **counted}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        super().load_files(files, meta)
        names = [f"prototypes/{task:04d}" for task in range(len(self.task_sizes))]
        specs = meta.get("prototypes") or [{}] * len(names)
        parts = [Packed.of(files[name], spec).unpacked() for name, spec in zip(names, specs, strict=True)]
        empty = {"means": torch.zeros(0, self.sums.width), "counts": torch.zeros(0, dtype=torch.int64)}
        state = {name: torch.cat([empty[name], *(part[name] for part in parts)]) for name in empty}
        scatter = Packed.of(files["learner/scatter"], meta.get("scatter") or {})
        self.storage = scatter.storage
        self._scatter = None if self.storage == "fp32" else dict(scatter.tensors)
        self._load_sums(state, scatter.tensors, meta["freedom"])
        self._trained_first = meta["trained_first"]

    def trained(self) -> list[int]:
        return [self._trained_first, *[0] * (len(self.task_sizes) - 1)] if self.task_sizes else []

    def costs(self) -> Costs:
        width = self.sums.width
        return Costs(self.trained(), self.tuned_weights() + self.classes * width + width * (width + 1) // 2)


def _split(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Split images into (rest, held out), per class and by content, so that the order of the files does not matter."""
    digests = [images.digest(i) for i in range(len(images))]
    held: set[str] = set()
    for label in np.unique(images.labels):
        held |= chosen_by_content(
            (d for d, c in zip(digests, images.labels, strict=True) if c == label), HELD_OUT
        )
    is_held = np.array([digest in held for digest in digests], dtype=bool)
    return images.take(np.flatnonzero(~is_held)), images.take(np.flatnonzero(is_held))
