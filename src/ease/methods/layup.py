"""LayUP (Ahrens et al., TMLR 2024): ridge regression on the concatenated class tokens of the last blocks.

The model is the pre-trained model, or the pre-trained model with one adapter that was trained on the first task.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ease.backbone import Layers
from ease.heads.ridge import RidgeHead
from ease.methods._base import Costs, Files, Forgetting
from ease.methods._first_session import AdapterSettings, FirstSession
from ease.methods._registry import register
from ease.streams import ImageSet, Task

RIDGES = [*(10.0 ** (half / 2) for half in range(-8, 7)), 1e-8]
"""Values of lambda in the order in which they are tried; of equally good ones the first is taken."""
FOLDS = 4


class LayupSettings(AdapterSettings):
    """Settings of LayUP. Those of the parent class say how the adapter is trained, if there is one."""

    layers: int = Field(
        6, ge=1, description="number of last blocks whose class tokens are read; all if there are fewer"
    )
    adapt: Literal["never", "first"] = Field("never", description="whether task 1 trains an adapter")
    lr: float = Field(0.003, gt=0, description="initial learning rate")
    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    sigma: float = Field(30.0, gt=0, description="initial value of the training head's learned scale")


@register()
class Layup(FirstSession):
    """`logits = h W` with h the class tokens of the last blocks and W = (G + lambda I)^-1 C.

    G = sum h h^T and the class sums C are sums over images, so for a fixed lambda learning task after task gives the
    same result as learning all tasks at once.

    Attributes:
        sums: G and C.
        ridge: Lambda, chosen on the latest task.
    """

    name: ClassVar[str] = "layup"
    title: ClassVar[str] = "LayUP"
    state_title: ClassVar[str] = "sums for the ridge regression"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "class tokens of the last 6 blocks, ridge regression from running sums"
    Settings = LayupSettings
    shaped_by = ("rank", "scale", "dropout")

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.reading = Layers(min(settings.layers, self.backbone.shape.depth), normed=False)
        self.sums = RidgeHead(self.backbone.width(self.reading))
        self.ridge = 1.0
        self._head_trained = 0
        self._weights: Tensor | None = None

    def adapts_to(self, task: Task) -> bool:
        if task.index > 0 or self.settings.adapt == "never":
            return False
        if len(task.classes) < 2:
            self.engine.report(
                "the first task has a single class, which an adapter learns nothing from: "
                "the pre-trained model is used as it is"
            )
            return False
        self._head_trained = len(task.classes) * self.backbone.dim + 1
        return True

    def collect(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Choose lambda by cross-validation on this task, if it has enough images, and add its images to the sums."""
        self.sums.grow(len(task.classes))
        counts = labels.bincount(minlength=task.classes.stop)[task.classes.start :]
        if len(task.classes) > 1 and int(counts.min()) >= FOLDS:
            self.ridge = self.sums.cross_validated_ridge(RIDGES, features[0], labels, FOLDS)
        self._add(features[0], labels)

    def _add(self, features: Tensor, labels: Tensor) -> None:
        self.sums.add(features, labels)
        self._weights = None

    def extend(self, images: ImageSet) -> None:
        """The sums become the same as if these images had been among the first of their class; lambda stays."""
        features = self.engine.features(images, [self.tuned], reading=self.reading)[0]
        self._add(features, torch.from_numpy(images.labels))

    def forget(self, position: int) -> Forgetting:
        """Remove the output of a class. The weights of the other classes do not change."""
        task = self.task_of(position)
        self.sums.forget(position)
        self.task_sizes[task] -= 1
        self._weights = None
        kept = "the sum of products of all features, in which its share cannot be separated from that of the others"
        if task == 0 and self.tuned is not None:
            kept += ", and the adapter that was trained with it"
        return Forgetting(0.0, kept)

    def head(self, features: Tensor) -> Tensor:
        if self._weights is None:
            self._weights = self.sums.solve([ridge for ridge in sorted(RIDGES) if ridge >= self.ridge])
        return (features[0].double() @ self._weights.to(features.device)).float()

    def files(self) -> tuple[Files, dict[str, Any]]:
        """W follows from the sums, so it is not stored."""
        files, meta = super().files()
        files["learner/sums"] = self.sums.state()
        return files, {**meta, "ridge": self.ridge, "head_trained": self._head_trained}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        super().load_files(files, meta)
        self.ridge, self._head_trained = meta["ridge"], meta["head_trained"]
        self.sums.load_state(files["learner/sums"])
        self._weights = None

    def trained(self) -> list[int]:
        first = self.tuned_weights() + self._head_trained
        return [first, *[0] * (len(self.task_sizes) - 1)] if self.task_sizes else []

    def costs(self) -> Costs:
        width = len(self.sums.gram)
        return Costs(self.trained(), self.tuned_weights() + width * (width + 1) // 2 + width * self.classes)
