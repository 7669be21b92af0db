"""How long `ease learn` takes for ten classes of thirty photos, and a prediction of `strata` against EASE's.

Learning is measured in a process of its own: its CPU seconds until the model is made are the start-up (imports, loading
the backbone), those for `Classifier.learn` are the rest. Predictions take one photo file at a time from two models of
ten tasks, in turns; EASE has one subspace per task and is trained for one short epoch, which the time of a prediction
does not depend on.

    EASE_SHARED=DIR python -m benchmarks.app_seconds --out runs/app-seconds.md
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks.class_folders import BACKBONES, SETS, Folders, FolderSet, Model
from benchmarks.clock import REPEATS, Pair, alternating
from benchmarks.speed import chosen
from ease.backbone.zoo import EMBEDDED
from ease.errors import EaseError
from ease.storage.files import make_folder, write_atomic
from ease.streams.intake import find_images

CLASSES, PHOTOS, TASKS = 10, 30, 10
SHORT = {"epochs": 1, "adapt": "always"}
"""Settings of EASE for a model whose predictions are only timed."""


def photos_for(backbone: str) -> FolderSet:
    """Glyphs for the embedded ViT, real photos for DeiT-tiny."""
    return SETS["glyphs" if backbone == EMBEDDED else "photos-42"]


def first_photos(folders: Folders, classes: int, photos: int) -> dict[str, list[Path]]:
    """The first classes with so many photos. Nothing is tested here, so test photos fill up what is missing."""
    found = {}
    for folder in sorted(folders.steps[0].iterdir()):
        files = [*find_images([folder]), *find_images([folders.test / folder.name])]
        if len(files) >= photos and len(found) < classes:
            found[folder.name] = files[:photos]
    return found


def learn_once(model: Model, photos: dict[str, list[Path]], path: Path, threads: int) -> tuple[float, float]:
    """CPU seconds of this process until it learns, and for learning."""
    torch.set_num_threads(threads)
    classifier = model.new_classifier(path)
    start = time.process_time()
    classifier.learn(photos)
    return start, time.process_time() - start


def learning(model: Model, photos: dict[str, list[Path]], work: Path) -> tuple[float, float]:
    """`learn_once` in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(learn_once, model, photos, work / "learned", torch.get_num_threads()).result()


def predicting(model: Model, photos: dict[str, list[Path]], tasks: int, work: Path, repeats: int) -> Pair:
    """Seconds per photo of EASE with so many tasks and of strata with the same tasks."""
    makers = {"ease": SHORT, "strata": {}}
    models = [model.new_classifier(work / name, name, settings) for name, settings in makers.items()]
    names = list(photos)
    for task in range(tasks):
        part = {name: photos[name] for name in names[task::tasks]}
        for classifier in models:
            classifier.learn(part)
    asked = [files[-1] for files in photos.values()]
    ease, strata = (lambda c=c: [c.predict(file) for file in asked] for c in models)
    pair = alternating(ease, strata, repeats)
    return Pair(pair.naive / len(asked), pair.ours / len(asked), pair.ratio)


def measure(backbone: str, small: bool, work: Path) -> str:
    """The line of a backbone."""
    classes, photos, tasks = (4, 5, 2) if small else (2 * CLASSES, PHOTOS, TASKS)
    one = photos_for(backbone)
    folders = one.write(work / "photos", steps=1, classes=classes if small else None)
    model = one.model(backbone)
    many = first_photos(folders, classes, photos)
    learned = dict(list(many.items())[: len(many) // 2])
    startup, seconds = learning(model, learned, work)
    few = {
        name: files[:6] for name, files in many.items()
    }  # two classes a task, so that EASE has what to tell apart
    pair = predicting(model, few, tasks, work, 1 if small else REPEATS)
    count = sum(map(len, learned.values()))
    return (
        f"| {backbone}, {one.name} | {len(learned)} classes, {count} photos | {startup:.1f} | {seconds:.1f} | "
        f"{1000 * pair.ours:.1f} | {1000 * pair.naive:.1f} | {pair.ratio:.1f}x |"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbones", default=",".join(BACKBONES), help="which backbones")
    parser.add_argument("--quick", action="store_true", help="seconds, for a test of the benchmark itself")
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    options = parser.parse_args(words)
    try:
        backbones = chosen(options.backbones, BACKBONES, "backbone")
    except EaseError as error:
        print(error, file=sys.stderr)
        return 2
    lines, notes = [], [f"{torch.get_num_threads()} threads."]
    for backbone in backbones:
        lacks = photos_for(backbone).lacks(backbone)
        if lacks is not None:
            notes.append(f"{lacks}.")
            continue
        with tempfile.TemporaryDirectory(prefix="ease-seconds-") as scratch:
            lines.append(measure(backbone, options.quick, Path(scratch)))
    tasks = 2 if options.quick else TASKS
    head = [
        "| | learned | CPU s, start-up | CPU s, learning | ms per photo, strata | "
        f"ms per photo, EASE with {tasks} tasks | EASE / strata |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    text = "\n".join([*(head if lines else []), *lines, "", *notes]) + "\n"
    if options.out is not None:
        make_folder(options.out.parent)
        write_atomic(options.out, text.encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
