"""Accuracy, confusions and calibration of a model on a folder of photos, with its worst classes as pictures."""

from __future__ import annotations

import base64
import csv
import io
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jinja2 import Environment, StrictUndefined
from torch import Tensor

from ease.app.calibration import auroc, expected_calibration_error
from ease.app.classifier import Classifier
from ease.app.prediction import no_finite_scores
from ease.errors import EaseError
from ease.progress import Progress
from ease.storage.contents import encode_json
from ease.storage.files import write_all
from ease.streams.images import jpeg_thumbnail
from ease.streams.intake import LabelledImages, collect_images

WORST_CLASSES = 6
"""Number of classes whose mistakes are shown as pictures."""
MISTAKES_SHOWN = 8
"""Number of pictures shown for each of them."""
MATRIX_CLASSES = 40
"""With more classes the page has no confusion matrix: it would be too large to read."""


@dataclass(frozen=True)
class Mistake:
    """An image that was taken for another class."""

    position: int
    taken_for: str
    confidence: float


@dataclass(frozen=True)
class Evaluation:
    """The result of scoring a model on labelled photos.

    Attributes:
        generation: Generation of the model.
        names: All classes of the model.
        confusion: [C, C] number of images of the row's class that were taken for the column's class.
        top5: Percentage of known images whose class is among the first five (or all, if there are fewer).
        ece_before: Expected calibration error of the plain softmax, in percent.
        ece_after: Expected calibration error with the model's temperature; None for an uncalibrated model.
        accepted: Percentage of known images that are not taken for unknown; None for an uncalibrated model.
        auroc: Area under the ROC curve of the unknown score, for images of classes the model does not know; None
            without such images.
        rejected: Percentage of those images that are taken for unknown.
        unknown_classes: Classes of the folder that the model does not know.
        mistakes: Mistakes by class, in order of decreasing confidence.
        notes: Remarks about the photos.
    """

    generation: int
    names: tuple[str, ...]
    confusion: np.ndarray
    top5: float
    ece_before: float
    ece_after: float | None
    accepted: float | None
    auroc: float | None
    rejected: float | None
    unknown_classes: tuple[str, ...]
    mistakes: dict[str, list[Mistake]]
    notes: tuple[str, ...]

    @property
    def images(self) -> int:
        """Number of images of classes that the model knows."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Percentage of these images recognised."""
        return 100 * float(np.trace(self.confusion)) / self.images

    def by_class(self) -> dict[str, float]:
        """Percentage of images recognised for each class that has images, the worst class first."""
        counts = self.confusion.sum(axis=1)
        rates = {
            n: 100 * float(self.confusion[i, i] / counts[i]) for i, n in enumerate(self.names) if counts[i]
        }
        return dict(sorted(rates.items(), key=lambda pair: (pair[1], pair[0])))

    def confusions(self, most: int = 10) -> list[tuple[str, str, int]]:
        """(class, class it was taken for, number of images), the most frequent first."""
        wrong = self.confusion - np.diag(np.diag(self.confusion))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = (np.unravel_index(flat, wrong.shape) for flat in order)
        return [(self.names[i], self.names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]

    def as_json(self) -> dict[str, Any]:
        """Everything but the pictures."""
        plain = ("generation", "top5", "ece_before", "ece_after", "accepted", "auroc", "rejected")
        return {
            **{name: getattr(self, name) for name in plain},
            "images": self.images,
            "accuracy": self.accuracy,
            "by_class": self.by_class(),
            "confusions": [list(row) for row in self.confusions()],
            "classes": list(self.names),
            "confusion": self.confusion.tolist(),
            "unknown_classes": list(self.unknown_classes),
            "notes": list(self.notes),
        }


def evaluate_folder(
    classifier: Classifier,
    folder: Path | str | None,
    unreadable: Literal["refuse", "skip"] = "refuse",
    progress: Progress | None = None,
    **shape: Any,
) -> tuple[Evaluation, LabelledImages]:
    """Score a model on a folder with one folder of photos per class, or on photos of another shape.

    Args:
        classifier: The model.
        folder: The photos. Classes that the model does not know are used to measure its unknown score.
        unreadable: Whether damaged files are an error (`refuse`) or left out (`skip`).
        progress: Where to show progress.
        shape: The further arguments of `collect_images`: labels, root, columns, allow_urls.

    Returns:
        The evaluation, and the photos it was made on.
    """
    photos = collect_images(folder, unreadable=unreadable, progress=progress, **shape)
    position = {name: i for i, name in enumerate(classifier.classes)}
    labels = np.array([position.get(photos.names[c], -1) for c in photos.images.labels])
    if not (labels >= 0).any():
        some = ", ".join(classifier.classes[:5]) or "none yet"
        where = folder if folder is not None else shape.get("labels")
        raise EaseError(f"no class folder in '{where}' is a class of the model (it knows: {some} ...)")
    logits = classifier.predictor.logits(photos.images, progress=progress)
    if not bool(classifier.calibration.confidences(logits).isfinite().all()):
        raise no_finite_scores(classifier.path)
    known, strange = logits[labels >= 0], logits[labels < 0]
    truth = torch.from_numpy(labels[labels >= 0])
    best = known.argmax(dim=1)
    confusion = np.zeros((len(position), len(position)), np.int64)
    np.add.at(confusion, (truth.numpy(), best.numpy()), 1)
    fitted = classifier.calibration
    within = known.topk(min(5, len(position)), dim=1).indices == truth[:, None]
    evaluation = Evaluation(
        generation=classifier.generation,
        names=tuple(classifier.classes),
        confusion=confusion,
        top5=100 * float(within.any(dim=1).double().mean()),
        ece_before=100 * expected_calibration_error(known.softmax(dim=1), truth),
        ece_after=100 * expected_calibration_error(fitted.confidences(known), truth)
        if fitted.calibrated
        else None,
        accepted=100 * _share(fitted.unknown(known) <= 0.5) if fitted.calibrated else None,
        auroc=auroc(fitted.unknown(known), fitted.unknown(strange))
        if fitted.calibrated and len(strange)
        else None,
        rejected=100 * _share(fitted.unknown(strange) > 0.5) if fitted.calibrated and len(strange) else None,
        unknown_classes=tuple(name for name in photos.names if name not in position),
        mistakes=_mistakes(classifier, known, truth, best, np.flatnonzero(labels >= 0)),
        notes=photos.notes,
    )
    return evaluation, photos


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _mistakes(
    classifier: Classifier, logits: Tensor, truth: Tensor, best: Tensor, positions: np.ndarray
) -> dict[str, list[Mistake]]:
    sure = classifier.calibration.confidences(logits).max(dim=1).values
    found: dict[str, list[Mistake]] = {}
    for at in torch.nonzero(best != truth)[:, 0].tolist():
        names = classifier.classes
        mistake = Mistake(int(positions[at]), names[int(best[at])], float(sure[at]))
        found.setdefault(names[int(truth[at])], []).append(mistake)
    return {name: sorted(all_of, key=lambda m: -m.confidence) for name, all_of in found.items()}


# --- files ----------------------------------------------------------------------------------------


def write_evaluation(evaluation: Evaluation, photos: LabelledImages, out: Path) -> list[Path]:
    """Write an HTML page, the confusion matrix as CSV, and all figures as JSON; returns the paths."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["class", *evaluation.names])
    writer.writerows(
        [name, *row] for name, row in zip(evaluation.names, evaluation.confusion.tolist(), strict=True)
    )
    contents = {
        "evaluation.html": _page(evaluation, photos).encode(),
        "confusion.csv": table.getvalue().encode(),
        "evaluation.json": encode_json(evaluation.as_json()),
    }
    return write_all(out, contents)


def _page(evaluation: Evaluation, photos: LabelledImages) -> str:
    source = (files("ease.app") / "evaluation.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    worst = [name for name in evaluation.by_class() if name in evaluation.mistakes][:WORST_CLASSES]
    largest = max(1, int((evaluation.confusion - np.diag(np.diag(evaluation.confusion))).max()))
    return template.from_string(source).render(
        e=evaluation,
        by_class=evaluation.by_class(),
        counts=dict(zip(evaluation.names, evaluation.confusion.sum(axis=1).tolist(), strict=True)),
        matrix=evaluation.confusion.tolist() if len(evaluation.names) <= MATRIX_CLASSES else None,
        shade=lambda row, column, count: _shade(
            row == column, count, int(evaluation.confusion[row].sum()), largest
        ),
        worst=[
            (name, _most_frequent_mistake(evaluation, name), _pictures(evaluation, photos, name))
            for name in worst
        ],
    )


def _shade(right: bool, count: int, total: int, largest: int) -> str:
    """A CSS class: by the share of the row for right answers, by the largest confusion for wrong ones."""
    share = count / max(1, total) if right else count / largest
    return f"{'right' if right else 'wrong'}{min(4, int(np.ceil(share * 4)))}" if count else "none"


def _most_frequent_mistake(evaluation: Evaluation, name: str) -> str:
    return Counter(m.taken_for for m in evaluation.mistakes[name]).most_common(1)[0][0]


def _pictures(evaluation: Evaluation, photos: LabelledImages, name: str) -> list[tuple[str, Mistake]]:
    return [
        (_thumbnail(photos.images.image(m.position)), m) for m in evaluation.mistakes[name][:MISTAKES_SHOWN]
    ]


def _thumbnail(image: Tensor) -> str:
    """A data URI, so that the page is a single file."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg_thumbnail(image)).decode()}"
