"""Streams of up to a thousand tasks: what a task, a generation on disk and a prediction cost as tasks arrive.

Images run out long before the tasks do, so features are synthetic: every class has a mean, each subspace shifts it, and
no weights are trained. All else is real: the learner, its prototypes and statistics, every generation of the model
directory, opening it again. A pass through the backbone is measured by itself; the time of a prediction is that of its
passes plus that of the head. All seconds are those of the processor: others on the machine do not count, nor does
waiting for the disk. Every row is measured in a process of its own.

    python -m benchmarks.long_streams --out runs/long-streams
    python -m benchmarks.long_streams --tasks 100 --rows strata
    python -m benchmarks.long_streams --table runs/long-streams      # the table of what was measured before
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
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

from benchmarks.clock import cpu_timed
from ease.backbone import Reading, Tuning
from ease.backbone.zoo import load_backbone
from ease.methods import Learner, find_method, restore_learner, save_model
from ease.storage.files import make_folder, write_atomic
from ease.storage.manifest import ClassEntry
from ease.storage.model_directory import ModelDirectory
from ease.streams import ImageSet, Task
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.hardware import resolve_precision
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
    first_save_seconds: float
    """Of a process that just opened the model: it reads the manifests of all generations."""
    open_seconds: float
    complete_seconds: float
    """To compute what the method computes once after each change, such as EASE's synthesised prototypes."""
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
    return min(cpu_timed(lambda: engine.features_of_pixels(pixels, [None]))[1] for _ in range(5)) / QUERIES


def entries(learner: Learner) -> list[ClassEntry]:
    """What a manifest says of each class."""
    classes = [(c, t) for t, members in enumerate(learner.positions()) for c in members]
    return [ClassEntry(id=c, name=f"class {c:05d}", task=t, count=IMAGES) for c, t in classes]


def reopened(directory: ModelDirectory, engine: Engine) -> tuple[float, float]:
    """The seconds that a new process needs to open a model, and then to save it again."""
    (learner, _), opening = cpu_timed(lambda: restore_learner(directory, engine))
    return opening, cpu_timed(lambda: save_model(directory, learner, entries(learner)))[1]


def look(
    row: str, learner: Learner, engine: Engine, folder: Path, learn: float, save: float, a_pass: float
) -> Look:
    """Open the model again, save it again, predict, and measure all of it."""
    directory = ModelDirectory(folder)
    opening, first_save = reopened(directory, engine)
    old = max(0, len(learner.task_sizes) // 2)
    queries = images_of(old, first=500, count=QUERIES // CLASSES)
    tunings = [s.tuning for s in learner.subspaces()]
    features = engine.features(queries, tunings, "evaluation", learner.reading)
    _, first = cpu_timed(lambda: learner.head(features))
    logits, head = min((cpu_timed(lambda: learner.head(features)) for _ in range(3)), key=lambda one: one[1])
    passes, manifest = learner.passes_per_image(), directory.manifest()
    return Look(
        row=row,
        tasks=len(learner.task_sizes),
        learn_seconds=learn,
        save_seconds=save,
        first_save_seconds=first_save,
        open_seconds=opening,
        complete_seconds=max(0.0, first - head),
        generation_bytes=sum(entry.size for entry in manifest.files.values()),
        manifest_bytes=directory.manifest_path.stat().st_size,
        folder_bytes=sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
        memory_bytes=resident(),
        passes=passes,
        head_seconds=head / len(queries),
        prediction_seconds=passes * a_pass + head / len(queries),
        accuracy=float((logits.argmax(1).numpy() == queries.labels).mean()),
    )


def synthetic_engine() -> SyntheticEngine:
    """An engine of the embedded ViT."""
    backbone = load_backbone("ease-vit")
    precision = resolve_precision("auto", backbone.device)
    return SyntheticEngine(backbone, Transforms.raw(backbone.pixels), seed=1, precision=precision)


def new_learner(row: str, engine: Engine) -> Learner:
    """The learner of a row."""
    name, settings = ROWS[row]
    kind = find_method(name)
    return kind(engine, kind.Settings.model_validate(settings))


def synthetic_task(index: int) -> Task:
    """A task of the stream."""
    classes = range(index * CLASSES, (index + 1) * CLASSES)
    names = tuple(f"class {c:05d}" for c in classes)
    return Task(index, classes, names, images_of(index), images_of(index, count=0))


def run(row: str, tasks: int, limit: float) -> list[Look]:
    """Learn a stream; stop early after `limit` seconds."""
    engine = synthetic_engine()
    learner = new_learner(row, engine)
    a_pass = seconds_per_pass(engine)
    found: list[Look] = []
    begun, recent = time.monotonic(), []
    folder = Path(tempfile.mkdtemp())
    directory = ModelDirectory(folder)
    try:
        for index in range(tasks):
            task = synthetic_task(index)
            learn = cpu_timed(lambda task=task: learner.learn(task))[1]  # type: ignore[misc]
            save = cpu_timed(lambda: save_model(directory, learner, entries(learner)))[1]
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


def measured(rows: Sequence[str], tasks: int, limit: float) -> list[Look]:
    """All rows, one after the other, each in a process of its own: what one held would count for the next."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return [each for row in rows for each in pool.apply(run, (row, tasks, limit))]


def bytes_text(number: float) -> str:
    """Bytes as people write them."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def seconds_text(seconds: float) -> str:
    """Two or three digits in the unit that suits them."""
    return (
        f"{1000 * seconds:.3g} ms"
        if seconds < 1
        else f"{seconds:,.3g} s"
        if seconds < 999
        else f"{seconds:,.0f} s"
    )


def table(looks: Sequence[Look]) -> str:
    """All looks as Markdown."""
    lines = [
        "| | tasks | learn | save | first save of a process | open | complete | on disk | of it history | manifest | "
        "memory | passes | one prediction |",
        "|---|" + "---:|" * 12,
    ]
    for each in looks:
        times = (
            each.learn_seconds,
            each.save_seconds,
            each.first_save_seconds,
            each.open_seconds,
            each.complete_seconds,
        )
        history = each.folder_bytes - each.generation_bytes - each.manifest_bytes
        sizes = (each.folder_bytes, history, each.manifest_bytes, each.memory_bytes)
        cells = [*map(seconds_text, times), *map(bytes_text, sizes), str(each.passes)]
        lines.append(
            f"| {each.row} | {each.tasks:,} | {' | '.join(cells)} | {seconds_text(each.prediction_seconds)} |"
        )
    return "\n".join(lines)


STYLES = {
    "ease": ("#d55e00", "o"),
    "ease, 10 subspaces": ("#0072b2", "s"),
    "strata": ("#009e73", "^"),
}
"""Colours that people with any kind of colour vision can tell apart, and marks for print."""
PANELS = {
    "learn a task, no training, no passes": ("learn_seconds", 1.0, "s"),
    "save after a task": ("save_seconds", 1.0, "s"),
    "open the model": ("open_seconds", 1.0, "s"),
    "model directory": ("folder_bytes", 1e-6, "MB"),
    "memory of the process": ("memory_bytes", 1e-6, "MB"),
    "predict one image": ("prediction_seconds", 1e3, "ms"),
}


def plot(looks: Sequence[Look], path: Path) -> None:
    """Small multiples: one panel per quantity, one line per row, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex=True, layout="constrained")
    for axis, (title, (field, factor, unit)) in zip(axes.flat, PANELS.items(), strict=True):
        for row in dict.fromkeys(each.row for each in looks):
            mine = [each for each in looks if each.row == row]
            colour, mark = STYLES.get(row, ("#555555", "x"))
            axis.plot(
                [each.tasks for each in mine],
                [factor * getattr(each, field) for each in mine],
                color=colour,
                marker=mark,
                markersize=5,
                linewidth=1.8,
                label=row,
            )
        axis.set(xscale="log", yscale="log")
        axis.set_title(f"{title}, {unit}", fontsize=11, loc="left")
        low, high = axis.get_ylim()
        if high / low < 10:  # at least one power of ten, so that noise does not look like growth
            middle = (low * high) ** 0.5
            axis.set_ylim(middle / 10**0.6, middle * 10**0.6)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_formatter(plain)
            each.set_minor_locator(NullLocator())
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("tasks learned (two classes each)")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rows", default=";".join(ROWS), help="separated by semicolons")
    parser.add_argument("--limit", type=float, default=3600, help="seconds per row")
    parser.add_argument("--out", type=Path, help="folder for looks.json and growth.png")
    parser.add_argument(
        "--table", type=Path, metavar="FOLDER", help="measure nothing, show what is in a folder"
    )
    asked = parser.parse_args()
    rows = asked.rows.split(";")
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}: known: {'; '.join(ROWS)}")
    if asked.table is not None:
        known = json.loads((asked.table / "looks.json").read_text())
        found, out = [Look(**each) for each in known], asked.table
    else:
        found, out = measured(rows, asked.tasks, asked.limit), asked.out
    print(table(found))
    if out is not None:
        make_folder(out)
        write_atomic(out / "looks.json", json.dumps([asdict(each) for each in found], indent=1).encode())
        plot(found, out / "growth.png")


if __name__ == "__main__":
    main()
