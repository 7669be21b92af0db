"""Streams of up to a thousand tasks: what a task, a generation on disk and a prediction cost as tasks arrive.

Images run out long before the tasks do, so features are synthetic: every class has a mean, each subspace shifts it, and
no weights are trained. All else is real: the learner, its prototypes and statistics, every generation of the model
directory, opening it again. A pass through the backbone is measured by itself; the time of a prediction is that of its
passes plus that of the head.

    python -m benchmarks.long_streams --out runs/long-streams
    python -m benchmarks.long_streams --tasks 100 --rows strata
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.clock import timed
from ease.backbone import Reading, Tuning
from ease.backbone.zoo import load_backbone
from ease.methods import Learner, find_method, restore_learner, save_model
from ease.storage.files import make_folder, write_atomic
from ease.storage.manifest import ClassEntry
from ease.storage.model_directory import ModelDirectory
from ease.streams import ImageSet, Task
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.randomness import generator
from ease.training.usage import Phase

CLASSES, IMAGES, QUERIES = 2, 6, 32
"""Classes per task, images per class, and images that are predicted together."""
LOOKS = (1, 3, 10, 30, 100, 200, 300, 500, 700, 1000)
"""The numbers of tasks after which everything is measured."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "ease": ("ease", {"rank": 16, "adapt": "always"}),
    "ease, 10 subspaces": ("ease", {"rank": 16, "adapt": "always", "max_subspaces": 10}),
    "strata": ("strata", {}),
}


@dataclass(frozen=True)
class Look:
    """What was measured after so many tasks."""

    row: str
    tasks: int
    learn_seconds: float
    save_seconds: float
    open_seconds: float
    generation_bytes: int
    manifest_bytes: int
    folder_bytes: int
    memory_bytes: int
    passes: int
    head_seconds: float
    prediction_seconds: float
    accuracy: float


class SyntheticEngine(Engine):
    """Features that are drawn instead of computed; trainings that leave the weights as they are."""

    def fit(self, module: Any, loss: Any, images: ImageSet, training: Any, **how: Any) -> list[float]:
        """Train nothing."""
        module.eval()
        return [1.0]

    def features(
        self,
        images: ImageSet,
        tunings: Sequence[Tuning | None],
        phase: Phase = "prototypes",
        reading: Reading = "pooled",
    ) -> Tensor:
        """Class mean + shift of the class in the subspace + noise of the image, [S, N, d]."""
        width = self.backbone.width(reading)
        labels = images.labels.tolist()
        means = {c: torch.randn(width, generator=generator(self.seed, "mean", c)) for c in set(labels)}
        noise = torch.stack(
            [torch.randn(width, generator=generator(self.seed, "noise", int(i))) for i in images.indices]
        )
        plain = torch.stack([means[c] for c in labels]) + noise
        if list(tunings) == [None]:
            return plain[None]
        found = []
        for tuning in tunings:
            draw = generator(self.seed, "shift", "ptm" if tuning is None else _name(tuning))
            found.append(
                plain
                + 0.5 * torch.randn(len(means), width, generator=draw)[torch.tensor(labels) % len(means)]
            )
        return torch.stack(found)


_names: dict[int, str] = {}


def _name(tuning: Tuning) -> str:
    """A name that costs nothing: hashing all weights at every call would be measured instead."""
    return _names.setdefault(id(tuning), str(len(_names)))


class NoImages:
    """A source of images that are never looked at."""

    def __len__(self) -> int:
        return 2**31

    def load(self, index: int) -> Tensor:
        raise NotImplementedError("features are synthetic")

    def digest(self, index: int) -> str:
        return f"synthetic {index}"


def images_of(task: int, first: int = 0, count: int = IMAGES) -> ImageSet:
    """The images of a task's classes."""
    labels = np.repeat(np.arange(task * CLASSES, (task + 1) * CLASSES), count)
    numbers = labels * 1000 + first + np.tile(np.arange(count), CLASSES)
    return ImageSet(NoImages(), numbers.astype(np.int64), labels.astype(np.int64))


def resident() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def seconds_per_pass(engine: Engine) -> float:
    """One image through the real backbone, of a batch."""
    side = engine.backbone.pixels.size
    pixels = torch.zeros(QUERIES, 3, side, side)
    engine.features_of_pixels(pixels, [None])
    return min(timed(lambda: engine.features_of_pixels(pixels, [None]))[1] for _ in range(5)) / QUERIES


def entries(learner: Learner) -> list[ClassEntry]:
    """What a manifest says of each class."""
    classes = [(c, t) for t, members in enumerate(learner.positions()) for c in members]
    return [ClassEntry(id=c, name=f"class {c:05d}", task=t, count=IMAGES) for c, t in classes]


def look(
    row: str, learner: Learner, engine: Engine, folder: Path, learn: float, save: float, a_pass: float
) -> Look:
    """Open the model again, predict, and measure both."""
    directory = ModelDirectory(folder)
    _, opening = timed(lambda: restore_learner(directory, engine))
    old = max(0, len(learner.task_sizes) // 2)
    queries = images_of(old, first=500, count=QUERIES // CLASSES)
    tunings = [s.tuning for s in learner.subspaces()]
    features = engine.features(queries, tunings, "evaluation", learner.reading)
    learner.head(features)  # completes what is computed once after each change
    logits, head = timed(lambda: learner.head(features))
    passes, manifest = learner.passes_per_image(), directory.manifest()
    return Look(
        row=row,
        tasks=len(learner.task_sizes),
        learn_seconds=learn,
        save_seconds=save,
        open_seconds=opening,
        generation_bytes=sum(entry.size for entry in manifest.files.values()),
        manifest_bytes=directory.manifest_path.stat().st_size,
        folder_bytes=sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
        memory_bytes=resident(),
        passes=passes,
        head_seconds=head / len(queries),
        prediction_seconds=passes * a_pass + head / len(queries),
        accuracy=float((logits.argmax(1).numpy() == queries.labels).mean()),
    )


def run(row: str, tasks: int, limit: float) -> list[Look]:
    """Learn a stream; stop early after `limit` seconds."""
    name, settings = ROWS[row]
    backbone = load_backbone("ease-vit")
    engine = SyntheticEngine(backbone, Transforms.raw(backbone.pixels), seed=1)
    kind = find_method(name)
    learner = kind(engine, kind.Settings.model_validate(settings))
    a_pass = seconds_per_pass(engine)
    found: list[Look] = []
    begun, recent = time.monotonic(), []
    folder = Path(tempfile.mkdtemp())
    directory = ModelDirectory(folder)
    try:
        for index in range(tasks):
            classes = range(index * CLASSES, (index + 1) * CLASSES)
            task = Task(
                index,
                classes,
                tuple(f"class {c:05d}" for c in classes),
                images_of(index),
                images_of(index, count=0),
            )
            learn = timed(lambda task=task: learner.learn(task))[1]  # type: ignore[misc]
            save = timed(lambda: save_model(directory, learner, entries(learner)))[1]
            recent = [*recent[-9:], (learn, save)]
            if index + 1 in LOOKS:
                mean = np.mean(recent, axis=0)
                found.append(look(row, learner, engine, folder, float(mean[0]), float(mean[1]), a_pass))
                print(json.dumps(asdict(found[-1])), flush=True)
            if time.monotonic() - begun > limit:
                break
    finally:
        shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rows", default=";".join(ROWS), help="separated by semicolons")
    parser.add_argument("--limit", type=float, default=900, help="seconds per row")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = [each for row in asked.rows.split(";") for each in run(row, asked.tasks, asked.limit)]
    if asked.out is not None:
        make_folder(asked.out)
        write_atomic(
            asked.out / "looks.json", json.dumps([asdict(each) for each in found], indent=1).encode()
        )


if __name__ == "__main__":
    main()
