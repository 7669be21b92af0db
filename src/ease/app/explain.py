"""Why a model gave an answer: the patches that spoke for it, and what separates it from the nearest classes.

Some patches of the image, chosen at random, are covered with the image's mean colour, and the model scores the result;
this is repeated with other patches. A linear model of the scores, fitted by ridge regression, says what each patch
contributes. Covering patches together shows what single covers miss: where two patches show the same thing, covering
one of them changes nothing. The scores of all classes come from the same passes, and any method can be explained, since
nothing but its scores is needed. Why this and not gradients or attention: docs/results/explanations.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ease.app.prediction import Prediction
from ease.errors import EaseError, unknown
from ease.experiments.predictor import PredictionCancelledError
from ease.training.randomness import generator

if TYPE_CHECKING:
    from ease.app.classifier import Classifier

COVERED = 0.3
"""Share of the patches that each cover hides."""
COVERS_PER_PATCH = 2
"""Number of covers, and so of passes, for each patch of the map."""
FEWEST_COVERS = 32
LARGEST_SIDE = 8
"""Rows of the map, at most: of a larger grid, neighbouring patches are covered together, to limit the passes."""
RIDGE = 0.1
"""Strength of the ridge penalty, relative to the variance of the covers."""
AT_ONCE = 16
"""Covered images that are scored together: a prediction that arrives meanwhile waits for one such batch."""

Map = tuple[tuple[float, ...], ...]
Through = Callable[[Callable[[], Tensor]], Tensor]


class NearClass(BaseModel):
    """A class that was not the answer, and what separates it from the answer.

    Attributes:
        name: The class.
        score: Its score (logit).
        difference: The score of the explained class minus this one.
        heat: What each patch contributes to this difference, from -1 (speaks for this class) to 1 (for the answer).
    """

    model_config = ConfigDict(frozen=True)

    name: str
    score: float
    difference: float = Field(description="the score of the explained class minus this one")
    heat: Map = Field(description="[rows][columns]: what each patch contributes to the difference, -1 to 1")


class Explanation(BaseModel):
    """Why a model gave an answer.

    Attributes:
        prediction: The answer.
        name: The class that is explained: the answer, unless another one was asked for.
        score: Its score (logit).
        method: How the maps were computed, in one sentence.
        rows: Rows of the maps. They divide the part of the image that the model sees: its centre.
        columns: Columns of the maps.
        heat: What each patch contributes to the score of the explained class, from -1 (against it) to 1 (for it). The
            strongest patch of each map has the value 1 or -1.
        nearest: The nearest other classes, the nearest first.
        class_picture: Whether the model has kept a small picture of the explained class.
    """

    model_config = ConfigDict(frozen=True)

    prediction: Prediction
    name: str = Field(description="the class that is explained")
    score: float
    method: str = Field(description="how the maps were computed, in one sentence")
    rows: int
    columns: int
    heat: Map = Field(description="[rows][columns]: what each patch contributes to the score, -1 to 1")
    nearest: tuple[NearClass, ...] = Field(description="the nearest other classes, the nearest first")
    class_picture: bool = Field(description="whether a small picture of the class was kept")

    @property
    def sentence(self) -> str:
        """The explanation in a few words."""
        if not self.nearest:
            return f"like {self.name} because of the marked patches; the model knows no other class"
        return f"like {self.name} rather than {self.nearest[0].name} because of the marked patches"


def explain_pixels(
    classifier: Classifier,
    pixels: Tensor,
    top_k: int = 3,
    name: str | None = None,
    *,
    cancelled: Callable[[], bool] | None = None,
    through: Through | None = None,
) -> Explanation:
    """Explain the answer for an image as the backbone reads it. See `Classifier.explain`.

    Args:
        classifier: The model.
        pixels: [1, 3, s, s], as `Classifier.pixels` returns them.
        top_k: Number of other classes to compare with.
        name: The class to explain; the answer if None.
        cancelled: Asked before each batch; if it returns True, the work ends with `PredictionCancelledError`.
        through: Calls each pass through the model, for a caller that has a thread for it.
    """
    if top_k < 0:
        raise EaseError(f"top_k must be 0 or more, not {top_k}")
    predictor, names = classifier.predictor, classifier.classes
    if name is not None and name not in names:
        raise unknown("class", name, names)
    call = through or (lambda work: work())

    def scored(images: Tensor) -> Tensor:
        if cancelled is not None and cancelled():
            raise PredictionCancelledError
        return call(lambda: predictor.logits(images)).double()

    plain = scored(pixels)
    prediction = classifier.predictions(plain.float(), min(len(names), max(1, top_k + 1)))[0]
    asked = int(plain[0].argmax()) if name is None else names.index(name)
    others = [at for at in plain[0].argsort(descending=True).tolist() if at != asked][:top_k]
    patches = classifier.learner.backbone.vit.patch_embed.grid_size
    rows, columns = (math.ceil(side / math.ceil(side / LARGEST_SIDE)) for side in patches)
    hidden = _covers(rows * columns)
    masks = _on_pixels(hidden, rows, columns, patches, pixels.shape[-2:])
    mean = pixels.mean(dim=(2, 3), keepdim=True)
    scores = torch.cat([scored(torch.where(part, mean, pixels)) for part in masks.split(AT_ONCE)])
    parts = _contributions(hidden, scores[:, [asked, *others]])

    def heat(values: Tensor) -> Map:
        scale = float(values.abs().max())
        shown = values / scale if scale > 0 else values
        return tuple(tuple(row) for row in shown.view(rows, columns).tolist())

    return Explanation(
        prediction=prediction,
        name=names[asked],
        score=float(plain[0, asked]),
        method=f"a patch counts by how much the score falls when it is covered with the mean colour, "
        f"fitted to {len(hidden)} covers of random patches",
        rows=rows,
        columns=columns,
        heat=heat(parts[:, 0]),
        nearest=tuple(
            NearClass(
                name=names[at],
                score=float(plain[0, at]),
                difference=float(plain[0, asked] - plain[0, at]),
                heat=heat(parts[:, 0] - parts[:, 1 + place]),
            )
            for place, at in enumerate(others)
        ),
        class_picture=classifier.thumbnail(names[asked]) is not None,
    )


def _covers(patches: int) -> Tensor:
    """Which patches each cover hides, bool [covers, patches]; the same for every image of this size."""
    count = max(FEWEST_COVERS, COVERS_PER_PATCH * patches)
    draws = torch.rand(count, patches, generator=generator(0, "explain", patches))
    return draws < COVERED


def _on_pixels(hidden: Tensor, rows: int, columns: int, patches: Any, size: Any) -> Tensor:
    """Covers [M, rows * columns] as masks of the image, bool [M, 1, s, s]. Cells are whole patches of the backbone."""
    cells = hidden.view(-1, rows, columns)
    for dim, (cell_count, patch_count, side) in enumerate(
        zip((rows, columns), patches, size, strict=True), start=1
    ):
        at = torch.arange(side) * patch_count // side // math.ceil(patch_count / cell_count)
        cells = cells.index_select(dim, at)
    return cells[:, None]


def _contributions(hidden: Tensor, scores: Tensor) -> Tensor:
    """What each patch contributes to each score, [patches, K], by ridge regression.

    Args:
        hidden: bool [M, patches].
        scores: [M, K], the scores of the covered images.
    """
    inputs = hidden.double() - hidden.double().mean(dim=0)
    penalty = RIDGE * len(hidden) * COVERED * (1 - COVERED)
    gram = inputs.mT @ inputs + penalty * torch.eye(inputs.shape[1], dtype=torch.float64)
    return -torch.linalg.solve(gram, inputs.mT @ (scores - scores.mean(dim=0)))
