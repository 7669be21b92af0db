"""`ease learn` against what people write with scikit-learn on the same frozen features.

Class folders arrive in three steps. `ease learn` keeps sums and no image; the scikit-learn estimators keep the features
of all old images and are fitted again at every step. They get the pooled feature of the same backbone with the same
transform and, in a second block, exactly what `strata` reads: the class tokens and mean patch tokens of four layers.
Accuracy is over all classes after the last step.

Learning counts the CPU seconds of this process for all steps (decoding, features, fitting, writing); a prediction the
median milliseconds for one photo file at a time, the methods in turns; bytes what has to be kept to go on learning: the
model directory's current generation, or the features of old photos and the fitted estimator's arrays. The backbone is
not counted.

    EASE_SHARED=DIR python -m benchmarks.practitioner --out runs/practitioner.md
    python -m benchmarks.practitioner --sets digits --backbones ease-vit --with-ease
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.class_folders import BACKBONES, SETS, Folders, FolderSet, Model, generation_bytes
from benchmarks.clock import cpu_timed, timed
from benchmarks.rivals import RIVALS, Features, Labels, array_bytes
from benchmarks.speed import chosen
from ease.backbone import Layers, Reading
from ease.backbone.zoo import load_backbone
from ease.errors import EaseError
from ease.experiments.environment import versions
from ease.storage.files import make_folder, write_atomic
from ease.streams.intake import as_image_set, find_images
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

TIMED = 30
"""Photos that are predicted one at a time."""
BLOCKS: dict[str, Reading] = {"pooled feature": "pooled", "strata's features": Layers(4, patches=True)}
"""What the scikit-learn estimators are given: what most people would take, and what `strata` reads by default."""
APP = "ease learn"

Predict = Callable[[Path], object]


@dataclass(frozen=True)
class Row:
    """What one method reached on one set with one backbone.

    Attributes:
        method: its name.
        right: [N] which test photos it names rightly after the last step.
        seconds: CPU seconds for learning all steps.
        kept: bytes to go on with.
        predict: names a single photo.
        block: the feature that a scikit-learn estimator was given; empty for ours.
        milliseconds: for doing so, once that is measured.
    """

    method: str
    right: npt.NDArray[np.bool_]
    seconds: float
    kept: int
    predict: Predict
    block: str = ""
    milliseconds: float = math.nan

    @property
    def title(self) -> str:
        """Its name in the tables."""
        return f"{self.block}: {self.method}" if self.block else self.method

    @property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * float(self.right.mean())


@dataclass(frozen=True)
class Column:
    """All methods on one set with one backbone."""

    title: str
    photos: str
    rows: tuple[Row, ...]

    def best(self) -> Row:
        """The best of the scikit-learn estimators."""
        return max((row for row in self.rows if row.block), key=lambda row: row.accuracy)

    def gap(self, method: str) -> tuple[float, float]:
        """Points of accuracy above the best estimator, and the standard error of that paired difference."""
        own = next(row.right for row in self.rows if row.method == method)
        difference = own.astype(float) - self.best().right
        return 100 * difference.mean(), 100 * difference.std() / math.sqrt(len(difference))


class Photos:
    """The files of a set with their labels, positions among the sorted names of all classes."""

    def __init__(self, folders: Folders) -> None:
        self.names = sorted(folder.name for step in folders.steps for folder in step.iterdir())
        self.steps = [find_images([step]) for step in folders.steps]
        self.test = find_images([folders.test])

    def labels(self, files: Sequence[Path]) -> Labels:
        """[N]"""
        position = {name: at for at, name in enumerate(self.names)}
        return np.array([position[file.parent.name] for file in files], dtype=np.int64)


def learned_by_app(method: str, model: Model, folders: Folders, photos: Photos, work: Path) -> Row:
    """The row of `ease learn`."""
    classifier = model.new_classifier(work / method, method)
    seconds = sum(cpu_timed(partial(classifier.learn, step))[1] for step in folders.steps)
    logits = classifier.logits(photos.test)
    names = [classifier.classes[at] for at in logits.argmax(dim=1).tolist()]
    right = np.array(names) == [file.parent.name for file in photos.test]
    return Row(f"{APP}: {method}", right, seconds, generation_bytes(classifier), classifier.predict)


def learned_from_features(engine: Engine, reading: Reading, block: str, photos: Photos) -> list[Row]:
    """A row for each scikit-learn estimator on one kind of feature."""

    def features(files: Sequence[Path]) -> Features:
        return engine.features(as_image_set(files), [None], reading=reading)[0].numpy()

    parts, reading_seconds = cpu_timed(lambda: [features(files) for files in photos.steps])
    labels = [photos.labels(files) for files in photos.steps]
    asked, truth = features(photos.test), photos.labels(photos.test)
    together = sum(part.nbytes for part in parts) + sum(part.nbytes for part in labels)
    rows = []
    for name, rival in RIVALS.items():
        seconds = reading_seconds
        for step in range(1, len(parts) + 1):
            known, own = (np.concatenate(some[:step]) for some in (parts, labels))
            estimator, more = cpu_timed(partial(rival.fitted, known, own))
            seconds += more
        kept = array_bytes(estimator) + together * rival.needs_features
        predict = partial(_predicted, estimator, features)
        rows.append(Row(name, estimator.predict(asked) == truth, seconds, kept, predict, block))
    return rows


def _predicted(estimator: Any, features: Callable[[Sequence[Path]], Features], file: Path) -> object:
    return estimator.predict(features([file]))


def measure(
    photos_of: FolderSet,
    backbone: str,
    folders: Folders,
    work: Path,
    methods: Sequence[str],
    timed_photos: int,
) -> Column:
    """One column of the tables."""
    photos, model = Photos(folders), photos_of.model(backbone)
    rows = [learned_by_app(method, model, folders, photos, work / backbone) for method in methods]
    frozen = load_backbone(backbone, weights=model.weights, input_size=model.input_size)
    engine = Engine(frozen, Transforms(frozen.pixels))
    for block, reading in BLOCKS.items():
        rows += learned_from_features(engine, reading, block, photos)
    rows.sort(key=lambda row: bool(row.block))  # ours first
    step = max(1, len(photos.test) // timed_photos)
    times = [
        [timed(partial(row.predict, file))[1] for row in rows]
        for file in [photos.test[0], *photos.test[::step][:timed_photos]]
    ]
    times = times[1:]  # the first is a warm-up
    medians = [1000 * statistics.median(own) for own in zip(*times, strict=True)]
    images = f"{len(photos.names)} classes, {sum(map(len, photos.steps)):,} + {len(photos.test):,} photos"
    title = f"{photos_of.name}, {backbone.split('_patch')[0]} {frozen.pixels.size} px"
    return Column(
        title, images, tuple(replace(r, milliseconds=ms) for r, ms in zip(rows, medians, strict=True))
    )


def table(
    columns: Sequence[Column], heading: str, cell: Callable[[Row], str], more: Sequence[list[str]] = ()
) -> str:
    """Methods by sets, as Markdown."""
    lines = [
        f"| {heading} | {' | '.join(column.title for column in columns)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for at, row in enumerate(columns[0].rows):
        lines.append(f"| {row.title} | {' | '.join(cell(column.rows[at]) for column in columns)} |")
    lines += [f"| {' | '.join(cells)} |" for cells in more]
    return "\n".join(lines)


def report(columns: Sequence[Column], notes: Sequence[str]) -> str:
    """Everything, as Markdown."""
    if not columns:
        return "\n".join(notes) + "\n"
    gaps = [["best of scikit-learn", *(column.best().title for column in columns)]]
    for method in (row.method for row in columns[0].rows if not row.block):
        found = [column.gap(method) for column in columns]
        gaps.append(
            [f"{method}, less the best", *(f"{points:+.1f} ± {error:.1f}" for points, error in found)]
        )
    size = ["photos", *(column.photos for column in columns)]
    parts = [
        table(columns, "accuracy, %", lambda row: f"{row.accuracy:.1f}", [*gaps, size]),
        table(columns, "CPU seconds to learn", lambda row: f"{row.seconds:.1f}"),
        table(columns, "ms to predict one photo", lambda row: f"{row.milliseconds:.1f}"),
        table(columns, "kB kept", lambda row: f"{row.kept / 1000:,.0f}"),
        "\n".join(notes),
    ]
    return "\n\n".join(parts) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(SETS), help=f"which of {', '.join(SETS)}")
    parser.add_argument("--backbones", default=",".join(BACKBONES), help="which backbones")
    parser.add_argument("--with-ease", action="store_true", help="a row for `ease learn --method ease` too")
    parser.add_argument("--classes", type=int, help="only the first classes of each set")
    parser.add_argument("--train", type=int, help="photos per class to learn from, at most")
    parser.add_argument("--test", type=int, help="photos per class to test with, at most")
    parser.add_argument("--timed", type=int, default=TIMED, help="photos that are predicted one at a time")
    parser.add_argument("--out", type=Path, help="Markdown file for the tables")
    options = parser.parse_args(words)
    try:
        sets = [SETS[name] for name in chosen(options.sets, list(SETS), "set")]
        backbones = chosen(options.backbones, BACKBONES, "backbone")
    except EaseError as error:
        print(error, file=sys.stderr)
        return 2
    methods = ["strata", "ease"] if options.with_ease else ["strata"]
    made = versions()
    notes = [
        f"{made['threads']} threads; ease {made['ease']}, torch {made['torch']}, Python {made['python']}."
    ]
    columns: list[Column] = []
    for one in sets:
        one = replace(one, train=options.train or one.train, test=options.test or one.test)
        lacks = {backbone: one.lacks(backbone) for backbone in backbones}
        notes += [f"{reason}." for reason in lacks.values() if reason is not None]
        if all(lacks.values()):
            continue
        with tempfile.TemporaryDirectory(prefix="ease-practitioner-") as scratch:
            folders = one.write(Path(scratch), classes=options.classes)
            for backbone in (name for name, reason in lacks.items() if reason is None):
                print(f"{one.name} with {backbone} ...", file=sys.stderr, flush=True)
                columns.append(measure(one, backbone, folders, Path(scratch), methods, options.timed))
    text = report(columns, notes)
    if options.out is not None:
        make_folder(options.out.parent)
        write_atomic(options.out, text.encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
