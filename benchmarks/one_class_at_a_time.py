"""A hundred tasks of one class each: does `strata` end where one task of all classes ends, and does a task stay cheap?

Both models learn the same photos through `Classifier.learn`. The table gives the CPU seconds of each tenth task, and
the bytes of the current generation: the pooled scatter, the class means, and the manifest with the list of classes and
the history of learning. The whole folder also keeps earlier generations, for `rollback`.

    EASE_SHARED=DIR python -m benchmarks.one_class_at_a_time --out runs/one-class-at-a-time.md
    python -m benchmarks.one_class_at_a_time --set glyphs --backbone ease-vit
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.class_folders import BACKBONES, DEIT, SETS, FolderSet, generation_bytes
from benchmarks.clock import cpu_timed
from ease import Classifier
from ease.storage.files import make_folder, write_atomic
from ease.storage.model_directory import ModelDirectory
from ease.streams.intake import find_images


@dataclass(frozen=True)
class TaskCosts:
    """After one more class: CPU seconds for it, and bytes."""

    seconds: float
    scatter: int
    means: int
    generation: int
    folder: int


def costs(classifier: Classifier, seconds: float) -> TaskCosts:
    """What the current generation takes."""
    files = ModelDirectory(classifier.path).manifest().files

    def size(kind: str) -> int:
        return sum(entry.size for name, entry in files.items() if name.startswith(kind))

    folder = sum(path.stat().st_size for path in classifier.path.rglob("*") if path.is_file())
    return TaskCosts(seconds, size("learner/"), size("prototypes/"), generation_bytes(classifier), folder)


def measure(photos: FolderSet, backbone: str, classes: int | None, work: Path) -> str:
    """Learn both ways and compare, as Markdown."""
    folders = photos.write(work, steps=1, classes=classes)
    whole, test = folders.steps[0], find_images([folders.test])
    model = photos.model(backbone)
    together = model.new_classifier(work / "together")
    seconds_together = cpu_timed(partial(together.learn, whole))[1]
    alone, found = model.new_classifier(work / "alone"), []
    for folder in sorted(whole.iterdir()):
        seconds = cpu_timed(partial(alone.learn, {folder.name: find_images([folder])}))[1]
        found.append(costs(alone, seconds))
    scores = [classifier.logits(test) for classifier in (together, alone)]
    truth = [file.parent.name for file in test]
    names = [
        [c.classes[at] for at in s.argmax(dim=1).tolist()]
        for c, s in zip((together, alone), scores, strict=True)
    ]
    rates = [100 * statistics.fmean(a == b for a, b in zip(own, truth, strict=True)) for own in names]
    order = [together.classes.index(name) for name in alone.classes]
    apart = float((scores[0][:, torch.tensor(order)] - scores[1]).abs().max())
    others = sum(a != b for a, b in zip(*names, strict=True))
    tasks = len(found)
    return "\n".join(
        [
            f"{photos.name}, {backbone}: {tasks} classes, {len(find_images([whole])):,} + {len(test):,} photos, "
            f"{torch.get_num_threads()} threads.",
            "",
            "| | accuracy, % | CPU seconds to learn | kB, current generation |",
            "|---|---:|---:|---:|",
            f"| one task of {tasks} classes | {rates[0]:.2f} | {seconds_together:.1f} | "
            f"{generation_bytes(together) / 1000:,.0f} |",
            f"| {tasks} tasks of one class | {rates[1]:.2f} | {sum(one.seconds for one in found):.1f} | "
            f"{found[-1].generation / 1000:,.0f} |",
            "",
            f"{others} of {len(test):,} predictions differ; scores differ by at most {apart:.1e}.",
            "",
            "| tasks | CPU seconds for one, median of ten | kB scatter | kB means | kB manifest | "
            "kB current generation | MB folder with all generations |",
            "|---:|---:|---:|---:|---:|---:|---:|",
            *(_line(found, at) for at in _shown(tasks)),
            "",
        ]
    )


def _shown(tasks: int) -> list[int]:
    """Numbers of tasks that get a line."""
    return sorted({1, *range(10, tasks + 1, 10), tasks})


def _line(found: Sequence[TaskCosts], tasks: int) -> str:
    here = found[tasks - 1]
    seconds = statistics.median(one.seconds for one in found[max(0, tasks - 10) : tasks])
    manifest = here.generation - here.scatter - here.means
    kilobytes = (f"{value / 1000:,.1f}" for value in (here.scatter, here.means, manifest, here.generation))
    return f"| {tasks} | {seconds:.2f} | {' | '.join(kilobytes)} | {here.folder / 1e6:.1f} |"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", dest="photos", choices=list(SETS), default="cifar100-200")
    parser.add_argument("--backbone", choices=BACKBONES, default=DEIT)
    parser.add_argument("--classes", type=int, help="only the first ones; all by default")
    parser.add_argument("--train", type=int, default=15, help="photos per class to learn from")
    parser.add_argument("--test", type=int, default=10, help="photos per class to test with")
    parser.add_argument("--out", type=Path, help="Markdown file for the tables")
    options = parser.parse_args(words)
    photos = replace(SETS[options.photos], train=options.train, test=options.test)
    lacks = photos.lacks(options.backbone)
    if lacks is not None:
        print(lacks)
        return 0
    with tempfile.TemporaryDirectory(prefix="ease-one-class-") as scratch:
        text = measure(photos, options.backbone, options.classes, Path(scratch))
    if options.out is not None:
        make_folder(options.out.parent)
        write_atomic(options.out, text.encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
