"""Which labels of a folder of photos look wrong, before anything is learned from it.

Every photo is scored by a head that has learned all photos of the folder but that one, together with the classes that
a model knows already (`ease.heads.class_left_out`). `ease.heads.label_noise` turns these scores into probabilities,
and says which threshold has the false-alarm rate that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ease.app.classifier import METHOD, Classifier
from ease.app.near_duplicates import near_duplicates, thumbnails
from ease.backbone.zoo import load_backbone
from ease.errors import EaseError
from ease.experiments.predictor import PredictionCancelledError
from ease.heads.label_noise import LabelNoise
from ease.methods import JudgesLabels, Learner, find_method
from ease.progress import Progress, Quiet
from ease.streams.intake import LabelledImages
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.hardware import app_precision

FALSE_ALARMS = 0.02
"""The expected share of photos with right labels that are named nevertheless."""
FEW_WRONG = 0.01
"""The share of wrong labels that is assumed at least when a finding is said to be more or less sure."""
TOLD_APART = 0.65
"""Two classes look the same if fewer of their photos are nearer to their own class than to the other; 0.5 is chance.

One class cut into two halves at random: .28 to .64 on glyphs and photos; different classes: .92 or more with a backbone
that suits the photos. See docs/results/explanations.md."""
FEW_PHOTOS = 5
"""Classes with fewer photos are not said to look the same."""
AT_ONCE = 16
"""Photos that go through the backbone together."""

Kind = Literal["unlike", "like-other", "duplicate", "same-classes"]
T = TypeVar("T")
Through = Callable[[Callable[[], T]], T]


class Finding(BaseModel):
    """Something about the labels of a folder that a person should look at.

    Attributes:
        kind: `like-other`: a photo looks like another class. `unlike`: it looks unlike its class, and like no other
            either. `duplicate`: photos that show the same picture. `same-classes`: two classes that look the same.
        files: Names of the photos; of two classes that look the same, a few of each.
        label: The class of the first photo; `class` in JSON.
        other: The other class, if there is one.
        score: How sure it is, from 0 to 1: the probability that the label is wrong; for duplicates how alike they are.
        sentence: The finding in words.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    kind: Kind
    files: tuple[str, ...]
    label: str = Field(alias="class", description="the class of the first photo")
    other: str | None = Field(None, description="the other class, if there is one")
    score: float = Field(description="how sure it is, from 0 to 1")
    sentence: str


class Audit(BaseModel):
    """What was found in a folder of photos.

    Attributes:
        images: Number of photos.
        classes: Number of classes in the folder.
        findings: The surest first.
        false_alarms: The expected share of photos with right labels among which `unlike` and `like-other` are said.
        wrong_labels: The estimated share of wrong labels; None if it cannot be estimated.
        notes: Remarks about the photos and about what could not be checked.
    """

    model_config = ConfigDict(frozen=True)

    images: int
    classes: int
    findings: tuple[Finding, ...]
    false_alarms: float = Field(description="expected share of photos with right labels that are named")
    wrong_labels: float | None = Field(description="estimated share of wrong labels; null if unknown")
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The audit as JSON values."""
        return self.model_dump(mode="json", by_alias=True)


def audit(
    photos: LabelledImages,
    classifier: Classifier | None = None,
    *,
    false_alarms: float = FALSE_ALARMS,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    through: Through[Any] | None = None,
) -> Audit:
    """Look for wrong labels, near-duplicates and classes that look the same. Nothing is changed.

    Args:
        photos: The photos, as `collect_images` returns them.
        classifier: A model whose classes and photos are compared with the folder's. Without one, the folder is compared
            with itself, seen through the embedded backbone.
        false_alarms: The expected share of photos with right labels that are named nevertheless, between 0 and 0.5.
        progress: Where to show progress.
        cancelled: Asked before each batch; if it returns True, the work ends with `PredictionCancelledError`.
        through: Calls each pass through the backbone, for a caller that has a thread for it.

    Returns:
        The findings, the surest first.

    Example:
        >>> import numpy as np
        >>> from ease.streams.intake import collect_images
        >>> rng = np.random.default_rng(0)
        >>> shades = lambda value: [rng.integers(value, value + 40, (16, 16, 3), np.uint8) for _ in range(8)]
        >>> dark, bright = shades(0), shades(200)
        >>> mixed = {"dark": [*dark[1:], bright[0]], "bright": bright[1:]}  # a bright image among the dark ones
        >>> audit(collect_images(mixed)).findings[0].files
        ('dark[7]',)
    """
    if not 0 < false_alarms < 0.5:
        raise EaseError(f"the false-alarm rate must lie between 0 and 0.5, not {false_alarms:g}")
    folder = _Folder(photos, classifier)
    small, scores = folder.scored(
        progress or Quiet(), cancelled or (lambda: False), through or (lambda work: work())
    )
    same = folder.same_classes(scores)
    doubted, wrong = folder.doubted(scores, false_alarms, {(f.label, f.other) for f in same})
    findings = [*doubted, *same, *folder.duplicates(small)]
    return Audit(
        images=len(photos.images),
        classes=len(photos.names),
        findings=tuple(sorted(findings, key=lambda finding: -finding.score)),
        false_alarms=false_alarms,
        wrong_labels=wrong,
        notes=(*photos.notes, *folder.notes),
    )


class _Folder:
    """The photos of a folder among the classes of a model."""

    def __init__(self, photos: LabelledImages, classifier: Classifier | None) -> None:
        self.photos, self.notes = photos, list[str]()
        self.learner: Learner = _embedded() if classifier is None else classifier.learner
        known = [] if classifier is None else classifier.classes
        if not isinstance(self.learner, JudgesLabels):
            self.notes.append(
                f"a model of '{self.learner.name}' cannot judge labels: the folder was compared with itself, "
                "and not with the classes of the model"
            )
            engine = self.learner.engine
            self.learner, known = find_method(METHOD)(engine, find_method(METHOD).Settings()), []
        self.names = [*known, *(name for name in photos.names if name not in known)]
        position = {name: at for at, name in enumerate(self.names)}
        self.labels = torch.tensor([position[photos.names[c]] for c in photos.images.labels.tolist()])
        self.counts = torch.bincount(self.labels, minlength=len(self.names))
        again = [name for name in photos.names if name in known]
        if again:
            self.notes.append(
                f"the model knows {len(again)} of these classes ('{again[0]}'{' ...' * (len(again) > 1)}): "
                "photos that it has learned from already are judged too mildly"
            )

    def file(self, at: int) -> str:
        """What messages call a photo."""
        images = self.photos.images
        names = getattr(images.source, "names", None)
        index = int(images.indices[at])
        return str(names[index]) if names and names[index] else f"{self.names[int(self.labels[at])]}[{at}]"

    def scored(
        self, progress: Progress, cancelled: Callable[[], bool], through: Through[Any]
    ) -> tuple[Tensor, Tensor]:
        """Thumbnails [N, D], and left-out scores [N, C]; NaN in the row of a class's only photo."""
        images, learner, engine = self.photos.images, self.learner, self.learner.engine
        tunings = [subspace.tuning for subspace in learner.subspaces()]
        small, features = [], []
        with progress.bar("looking at photos", len(images)) as advance:
            for start in range(0, len(images), AT_ONCE):
                if cancelled():
                    raise PredictionCancelledError
                batch = images.take(list(range(start, min(start + AT_ONCE, len(images)))))
                pixels = engine.pixels(batch)
                small.append(thumbnails(pixels))
                features.append(through(_features(learner, pixels, tunings)))
                advance(len(batch))
        assert isinstance(learner, JudgesLabels)
        scores = learner.label_scores(torch.cat(features, dim=1), self.labels, len(self.names))
        return torch.cat(small), scores

    def doubted(
        self, scores: Tensor, false_alarms: float, same: set[tuple[str, str | None]]
    ) -> tuple[list[Finding], float | None]:
        """Photos whose labels look wrong, and the estimated share of such labels.

        Half of the false alarms are given to each of two tests: a label that is improbable beside the other classes,
        and a score of the own class that is low in itself, as that of a photo that shows none of the classes.
        """
        judged = torch.nonzero(scores.isfinite().all(dim=1))[:, 0]
        alone = len(scores) - len(judged)
        if alone:
            photos = "1 photo is" if alone == 1 else f"{alone} photos are"
            self.notes.append(f"{photos} the only one of the class, and could not be judged")
        if scores.shape[1] < 2 or not len(judged):
            if scores.shape[1] < 2:
                self.notes.append("there is a single class: labels cannot be compared, only copies are found")
            return [], None
        own_scores, labels = scores[judged].double(), self.labels[judged]
        noise = LabelNoise.fit(own_scores, labels)
        probable, rate = noise.of_labels(labels), false_alarms / 2
        own = own_scores.gather(1, labels[:, None])[:, 0]
        lowest = noise.threshold(own_scores, rate)
        improbable, low = probable < noise.threshold(noise.probabilities, rate), own < lowest
        doubts, found = noise.doubts(labels, FEW_WRONG), []
        for at in torch.nonzero(improbable | low)[:, 0].tolist():
            best = int(own_scores[at].argmax())
            mine, theirs = self.names[int(labels[at])], self.names[best]
            if (mine, theirs) in same or (theirs, mine) in same:
                continue
            file = self.file(int(judged[at]))
            # A photo may be nearest to a class and still unlike it.
            resembles = best != int(labels[at]) and float(own_scores[at, best]) >= lowest
            likely = f"{100 * float(noise.probabilities[at, best]):.0f} %"
            sentence = (
                f"{file} looks like '{theirs}' ({likely}), not like '{mine}' ({100 * float(probable[at]):.0f} %)"
                if resembles
                else f"{file} looks unlike the other photos of '{mine}', and like no other class"
            )
            found.append(
                Finding(
                    kind="like-other" if resembles else "unlike",
                    files=(file,),
                    label=mine,
                    other=theirs if resembles else None,
                    score=float(doubts[at]),
                    sentence=sentence,
                )
            )
        return found, noise.wrong

    def same_classes(self, scores: Tensor) -> list[Finding]:
        """Pairs of classes whose photos are not nearer to their own class than to the other."""
        fit = scores.isfinite().all(dim=1)
        own = scores.gather(1, self.labels[:, None])
        nearer = (own > scores).double()
        shares = {
            label: nearer[fit & (self.labels == label)].mean(dim=0)
            for label in torch.unique(self.labels).tolist()
            if int(self.counts[label]) >= FEW_PHOTOS
        }
        found = []
        for first, share in shares.items():
            for second in range(len(self.names)):
                if second == first or (second in shares and second < first):
                    continue
                if second not in shares and int(self.counts[second]):
                    continue  # too few photos to tell
                both = [float(share[second])]
                if second in shares:
                    both.append(float(shares[second][first]))
                told = sum(both) / len(both)
                if told >= TOLD_APART:
                    continue
                one, other = self.names[first], self.names[second]
                files = [self.file(at) for c in (first, second) for at in self._of_class(c)[:3]]
                found.append(
                    Finding(
                        kind="same-classes",
                        files=tuple(files),
                        label=one,
                        other=other,
                        score=min(1.0, 2 * (1 - told)),
                        sentence=f"'{one}' and '{other}' look the same to this model: {100 * told:.0f} % of their "
                        "photos are nearer to their own class than to the other, and 50 % would be chance",
                    )
                )
        return found

    def duplicates(self, small: Tensor) -> list[Finding]:
        """Groups of photos that show the same picture."""
        found = []
        for group, likeness in near_duplicates(small):
            names = [self.names[int(self.labels[at])] for at in group]
            others = [name for name in names if name != names[0]]
            files = tuple(self.file(at) for at in group)
            listed = " and ".join(files[:2]) + (f" and {len(files) - 2} more" if len(files) > 2 else "")
            where = "of two classes: one label must be wrong" if others else "of one class"
            found.append(
                Finding(
                    kind="duplicate",
                    files=files,
                    label=names[0],
                    other=others[0] if others else None,
                    score=likeness if others else likeness / 2,  # within a class they do little harm
                    sentence=f"{listed} show the same picture, {where}",
                )
            )
        return found

    def _of_class(self, label: int) -> list[int]:
        return [int(at) for at in torch.nonzero(self.labels == label)[:, 0]]


def _features(learner: Learner, pixels: Tensor, tunings: list[Any]) -> Callable[[], Tensor]:
    return lambda: learner.engine.features_of_pixels(pixels, tunings, learner.reading).cpu()


def _embedded() -> Learner:
    """A learner that knows nothing, on the embedded backbone."""
    method, backbone = find_method(METHOD), load_backbone()
    engine = Engine(backbone, Transforms(backbone.pixels), precision=app_precision())
    return method(engine, method.Settings())
