"""Chooses a preset's settings without looking at test images.

Every method of a preset gets the same budget of candidates. A candidate learns the stream's first tasks from two
thirds of their training images and is scored on the third that was held out. This is done for several orders of the
classes; the mean accuracy over stages and orders decides (see `chosen`). Results are kept after every candidate, so a
stopped search continues.

Glyphs take turns in nine fonts: every third image is a slanted one. The test images are of other families, and nearer
to that is a whole family held out, the serifs: --turns 9 --held 6 7 8.

    python benchmarks/search.py small --out docs/results/small-search
    python benchmarks/search.py bench-small --jobs 2 --out docs/results/bench-small/search
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ease.backbone.zoo import load_backbone
from ease.errors import EaseError
from ease.experiments.metrics import score_stage
from ease.experiments.predictor import Predictor
from ease.methods import find_method
from ease.storage.files import make_folder, write_atomic, write_json
from ease.streams import Dataset
from ease.streams.datasets import load_dataset
from ease.streams.protocol import class_order, make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.features import FeatureStore
from ease.training.memory import Memory


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """All combinations."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def rates(*values: float, **fixed: Any) -> list[dict[str, Any]]:
    """The same settings at several rates."""
    return [{"batch_size": 16, **fixed, "lr": value} for value in values]


# `small`: twelve candidates for each method that trains; epochs and batch size are what a demo of six minutes affords.
_DEMO: dict[str, list[Any]] = {"epochs": [4], "batch_size": [16]}
_SMALL = {
    "ease": [
        *grid(**_DEMO, sigma=[10.0, 20.0], lr=[0.05, 0.1, 0.2, 0.4]),
        *grid(**_DEMO, sigma=[10.0, 20.0], lr=[0.1, 0.2], ptm=[True]),
    ],
    "finetune": grid(**_DEMO, schedule=["constant", "cosine"], lr=[0.001, 0.002, 0.003, 0.005, 0.01, 0.03]),
    "simplecil": [{}],
}

# `bench-small`: five rates for each method that trains, and nothing else is varied. Four epochs; two where public
# settings give a method half of the others' (DER, MEMO) or train twice per task (FOSTER). Cosine heads start at
# scale 10, since a scale of 1 hardly moves in so few steps. Everything else is the method's default.
_WHOLE = (0.0005, 0.001, 0.002, 0.005, 0.01)
_ADAPTER = (0.025, 0.05, 0.1, 0.2, 0.4)
_PROMPT = (0.001, 0.003, 0.01, 0.03, 0.1)
_BENCH = {
    "finetune": rates(*_WHOLE, epochs=4),
    "finetune-adapter": rates(0.01, 0.02, 0.05, 0.1, 0.2, epochs=4),
    "lwf": rates(*_WHOLE, epochs=4),
    "sdc": rates(*_WHOLE, epochs=4),
    "l2p": rates(*_PROMPT, epochs=4),
    "dualprompt": rates(*_PROMPT, epochs=4),
    "coda-prompt": rates(*_PROMPT, epochs=4),
    "simplecil": [{}],
    "adam-finetune": rates(*_WHOLE, epochs=4, sigma=10.0),
    "adam-vpt-shallow": rates(0.03, 0.1, 0.3, 1.0, 3.0, epochs=4, sigma=10.0),
    "adam-vpt-deep": rates(0.03, 0.1, 0.3, 1.0, 3.0, epochs=4, sigma=10.0),
    "adam-ssf": rates(0.01, 0.02, 0.05, 0.1, 0.2, epochs=4, sigma=10.0),
    "adam-adapter": rates(*_ADAPTER, epochs=4, sigma=10.0),
    "ranpac": rates(*_ADAPTER, epochs=4, sigma=10.0),
    "ease": rates(*_ADAPTER, epochs=4, sigma=10.0),
    "icarl": rates(*_WHOLE, epochs=4),
    "der": rates(*_WHOLE, epochs=2),
    "foster": rates(*_WHOLE, epochs=2),
    "memo": rates(*_WHOLE, epochs=2, later_epochs=2),
    "joint": rates(*_WHOLE, epochs=4),
}

# `relatives`: the two published relatives of strata. FeCAM has two released shrinkages, (1, 0) and (10, 10). LayUP has
# no adapter by default; with one there is the released recipe (20 epochs, batches of 48, rate .003) and five rates in
# the four epochs that `bench-small` gives to all. AdamW wants smaller rates than SGD. For photos, with 15 images of a
# class to learn from and 30 to score: --dataset cifar100 --limit-per-class 45 --tasks 3 --held 1 2.
_RELATIVES: dict[str, list[dict[str, Any]]] = {
    "simplecil": [{}],
    "fecam": [
        *grid(alpha1=[0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0], alpha2=[0.0]),
        {"alpha1": 1.0, "alpha2": 1.0},
        {"alpha1": 10.0, "alpha2": 10.0},
    ],
    "layup": [
        {},
        {"adapt": "first"},
        *rates(0.0003, 0.001, 0.003, 0.01, 0.03, epochs=4, adapt="first"),
    ],
}

# `fast`: what may save half of `small`'s training time, beside `small` itself. Rates around its own, since a shorter
# training may want another one.
_SHORT: dict[str, list[Any]] = {"batch_size": [16], "sigma": [10.0]}
_FAST = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[4], **_SHORT, lr=[0.2, 0.3], drop_patches=[0.5, 0.6]),
        *grid(epochs=[2], **_SHORT, lr=[0.2, 0.4], schedule=["cosine", "one-cycle"]),
        *grid(epochs=[2], **_SHORT, lr=[0.1, 0.2], schedule=["cosine", "one-cycle"], start=["previous"]),
        *grid(epochs=[3], **_SHORT, lr=[0.2, 0.3], drop_patches=[0.5], schedule=["one-cycle"]),
        *grid(epochs=[3], **_SHORT, lr=[0.1, 0.2], drop_patches=[0.5], start=["previous"]),
    ]
}
# `fast-long`: over more tasks, and with longer trainings, since an epoch without half of the patches is half as long.
_DROP: dict[str, list[Any]] = {**_SHORT, "drop_patches": [0.5]}
_FAST_LONG = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[4], **_DROP, lr=[0.2, 0.3]),
        *grid(epochs=[4], **_DROP, lr=[0.2], start=["first"]),
        *grid(epochs=[5], **_SHORT, lr=[0.2, 0.3], drop_patches=[0.6]),
        *grid(epochs=[3], **_DROP, lr=[0.2], start=["previous"]),
    ]
}

# `fast-family`: scored on a family of fonts that was held out, since warm starts that gained in `fast-long` lost on the
# test images' families; with the PTM as one more subspace, which no training changes.
_FAST_FAMILY = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[4], **_DROP, lr=[0.2]),
        *grid(epochs=[4], **_DROP, lr=[0.2, 0.3], ptm=[True]),
        *grid(epochs=[4], **_DROP, lr=[0.2], start=["first"]),
        *grid(epochs=[4], **_DROP, lr=[0.2], start=["first"], ptm=[True]),
    ]
}

# `fast-clip`: the same family held out, with clipped gradients, since without them the first steps of most trainings
# undo more than they do.
_CLIP: dict[str, list[Any]] = {**_SHORT, "clip": [1.0]}
_FAST_CLIP = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[4], **_CLIP, lr=[0.2], drop_patches=[0.5]),
        *grid(epochs=[4], **_CLIP, lr=[0.2], drop_patches=[0.5], ptm=[True]),
        *grid(epochs=[4], **_CLIP, lr=[0.4], drop_patches=[0.5], ptm=[True]),
        *grid(epochs=[2], **_CLIP, lr=[0.2], ptm=[True]),
    ]
}

# `fast-head`: as many steps as `small`, of half as many images each, from a head that starts at the class means. Scored
# on photos as well, since what `fast-clip` found was good for glyphs alone: --dataset cifar100 --turns 2 --held 1.
_EIGHT: dict[str, list[Any]] = {"batch_size": [8], "sigma": [10.0], "lr": [0.2], "drop_patches": [0.2]}
_FAST_HEAD = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[2], **_EIGHT, clip=[1.0], ptm=[True]),
        *grid(epochs=[2], **_EIGHT, clip=[1.0], head=["means"]),
        *grid(epochs=[2], **_EIGHT, clip=[1.0, 2.0], ptm=[True], head=["means"]),
    ]
}

# `fast-batch`: still fewer images per step, and a rate that falls by step: by epoch, two epochs end at half of it. On
# photos with twice as many images: --limit-per-class 40.
_BY_STEP: dict[str, list[Any]] = {
    "sigma": [10.0],
    "lr": [0.2],
    "clip": [1.0],
    "head": ["means"],
    "schedule": ["cosine-by-step"],
}
_FAST_BATCH = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[2], batch_size=[8], **_BY_STEP, drop_patches=[0.2]),
        *grid(epochs=[2], batch_size=[6], **_BY_STEP, drop_patches=[0.2], ptm=[True]),
        *grid(epochs=[2], batch_size=[4], **_BY_STEP, drop_patches=[0.2, 0.3]),
    ]
}

# `fast-threads`: for the embedded ViT, whose steps of four images are too short for two threads to share.
_FAST_THREADS = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[2], batch_size=[8], **_BY_STEP, drop_patches=[0.2, 0.3, 0.4, 0.5]),
        *grid(epochs=[2], batch_size=[6], **_BY_STEP, drop_patches=[0.3, 0.4]),
        *grid(epochs=[2], batch_size=[4], **_BY_STEP, drop_patches=[0.4]),
    ]
}

# `fast-hardest`: later epochs visit only the images whose loss was highest, and may so be more of them.
_FAST_HARDEST = {
    "ease": [
        *grid(epochs=[4], **_SHORT, lr=[0.2]),
        *grid(epochs=[2], batch_size=[4], **_BY_STEP, drop_patches=[0.2]),
        *grid(epochs=[2], batch_size=[4], **_BY_STEP, drop_patches=[0.2], hardest=[0.75, 0.6]),
        *grid(epochs=[3], batch_size=[4], **_BY_STEP, drop_patches=[0.2], hardest=[0.4, 0.3]),
    ]
}
SEARCHES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "small": _SMALL,
    "bench-small": _BENCH,
    "relatives": _RELATIVES,
    "fast": _FAST,
    "fast-long": _FAST_LONG,
    "fast-family": _FAST_FAMILY,
    "fast-clip": _FAST_CLIP,
    "fast-head": _FAST_HEAD,
    "fast-batch": _FAST_BATCH,
    "fast-threads": _FAST_THREADS,
    "fast-hardest": _FAST_HARDEST,
}
EXEMPLARS = 2
"""Per class, for the methods that keep some: 4 % of 45 images."""


def held_out(
    data: Dataset, protocol: str, seed: int, tasks: int, turns: int = 3, held: Sequence[int] = (2,)
) -> Dataset:
    """The classes of the first tasks, their training images split in two. The test set is not touched.

    Of every `turns` images of a class, those at the places `held` are held out.
    """
    stream = make_stream(data, protocol, seed)
    order = class_order(len(data.class_names), seed)[: stream.tasks[tasks - 1].classes.stop]
    train = data.train.of_classes(order, relabel=order.index)
    rank = np.concatenate([np.arange(np.sum(train.labels == c)) for c in range(len(order))])
    chosen = np.isin(rank % turns, held)
    return replace(
        data,
        class_names=tuple(data.class_names[c] for c in order),
        train=train.take(np.flatnonzero(~chosen)),
        test=train.take(np.flatnonzero(chosen)),
        keep_order=True,
    )


@dataclass(frozen=True)
class Place:
    """Where candidates are tried."""

    dataset: str
    data_root: Path | None
    protocol: str
    backbone: str
    weights: str | None
    input_size: int | None
    limit_per_class: int | None
    tasks: int
    turns: int
    held: list[int]

    def data(self, seed: int) -> Dataset:
        data = _dataset(self.dataset, self.data_root, self.limit_per_class)
        return held_out(data, self.protocol, seed, self.tasks, self.turns, self.held)


def add_place(parser: argparse.ArgumentParser) -> None:
    """The options that a `Place` is made of."""
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--protocol", default="B0 Inc6")
    parser.add_argument("--backbone", default="ease-vit")
    parser.add_argument("--weights")
    parser.add_argument("--input-size", type=int)
    parser.add_argument("--limit-per-class", type=int)
    parser.add_argument("--tasks", type=int, default=2, help="of the stream, from the first")
    parser.add_argument("--turns", type=int, default=3, help="of so many images of a class")
    parser.add_argument("--held", type=int, nargs="+", default=[2], help="those at these places are held out")


@cache
def _dataset(name: str, root: Path | None, limit: int | None) -> Dataset:
    return load_dataset(name, root, limit)


def score(place: Place, method: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Mean held-out accuracy over the stages, and what it took."""
    backbone = load_backbone(place.backbone, weights=place.weights, input_size=place.input_size)
    data = place.data(seed)
    learner_type = find_method(method)
    engine = Engine(backbone, Transforms(backbone.pixels, data.augmentation), seed=seed)
    learner = learner_type(engine, learner_type.Settings.model_validate(settings))
    memory = Memory(EXEMPLARS, "herding", seed) if learner.kind == "exemplar-based" else None
    predictor, accuracy, start = Predictor(learner, FeatureStore()), [], time.perf_counter()
    stream = make_stream(data, place.protocol)
    try:
        for task in stream.tasks:
            learner.learn(task, memory)
            seen = stream.tasks[: task.index + 1]
            logits = predictor.logits([t.test for t in seen])
            labels = np.concatenate([t.test.labels for t in seen])
            accuracy.append(score_stage(logits.numpy(), labels, learner.task_sizes).accuracy)
    except EaseError as error:  # it diverged: as bad as can be
        return {"average": 0.0, "last": 0.0, "seconds": 0.0, "failed": str(error)}
    return {
        "average": float(np.mean(accuracy)),
        "last": accuracy[-1],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("search", choices=SEARCHES)
    add_place(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1994])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="candidates tried at once, one thread each")
    parser.add_argument("--out", type=Path, required=True, help="writes OUT.json and OUT.md")
    args = parser.parse_args()
    place = Place(**{field.name: getattr(args, field.name) for field in fields(Place)})
    file = args.out.with_suffix(".json")
    make_folder(file.parent)
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    candidates = {m: c for m, c in SEARCHES[args.search].items() if not args.methods or m in args.methods}
    wanted = [
        {"method": method, "seed": seed, "settings": settings}
        for method, each in candidates.items()
        for settings in each
        for seed in args.seeds
    ]
    left = [key for key in wanted if not any(key.items() <= row.items() for row in found)]
    start = partial(torch.set_num_threads, 1 if args.jobs > 1 else torch.get_num_threads())
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn"), start) as pool:
        for key, result in zip(left, pool.map(partial(_score, place), left), strict=True):
            found.append({**key, **result})
            print(found[-1], flush=True)
            write_json(file, found)
    write_atomic(args.out.with_suffix(".md"), markdown(found, candidates, args, place).encode())


def _score(place: Place, key: dict[str, Any]) -> dict[str, Any]:
    return score(place, **key)


def markdown(
    found: list[dict[str, Any]],
    candidates: dict[str, list[dict[str, Any]]],
    args: argparse.Namespace,
    place: Place,
) -> str:
    """The search as a page."""
    data = place.data(args.seeds[-1])
    lines = [
        f"# How the settings for {args.dataset} {args.protocol} were chosen",
        "",
        f"`python benchmarks/search.py {args.search} {_where(args)}--tasks {args.tasks} --turns {args.turns} "
        f"--held {' '.join(map(str, args.held))} --jobs {args.jobs} --out {args.out}`",
        "",
        f"Backbone `{args.backbone}`. First {args.tasks} tasks of the class orders of seeds {args.seeds}: "
        f"{len(data.train)} training images, scored on {len(data.test)} images held out of the training data. "
        "Scoring looks at no test image. The mean over stages and orders decides; among candidates within one standard "
        "error of the best the smallest rate is taken (bold), since a rate at the edge may fail in a task the search "
        "has not seen.",
        "",
        "| method | settings | mean % | last % | by seed | s |",
        "|---|---|---:|---:|---|---:|",
    ]
    for method, each in candidates.items():
        rows = []
        for settings in each:
            runs = [r for r in found if r["method"] == method and r["settings"] == settings]
            mean, last = (float(np.mean([r[key] for r in runs])) for key in ("average", "last"))
            seconds = float(np.mean([r["seconds"] for r in runs]))
            rows.append(Row(settings, mean, last, [r["average"] for r in runs], seconds))
        winner = chosen(rows, len(data.test) * len(args.seeds))
        for row in rows:
            text = ", ".join(f"{key} {value}" for key, value in row.settings.items()) or "-"
            text = f"**{text}**" if row is winner else text
            seeds = " / ".join(f"{value:.2f}" for value in row.each)
            lines.append(
                f"| {method} | {text} | {row.mean:.2f} | {row.last:.2f} | {seeds} | {row.seconds:.0f} |"
            )
    return "\n".join(lines) + "\n"


def _where(args: argparse.Namespace) -> str:
    """The options that lead to the images and the backbone, as the reader would give them."""
    given = {
        "--dataset": args.dataset,
        "--data-root": args.data_root and "DIR",
        "--protocol": f'"{args.protocol}"',
        "--backbone": args.backbone,
        "--weights": args.weights and "FILE",
        "--input-size": args.input_size,
        "--limit-per-class": args.limit_per_class,
        "--methods": args.methods and " ".join(args.methods),
    }
    return "".join(f"{option} {value} " for option, value in given.items() if value is not None)


class Row(NamedTuple):
    """One candidate's figures over all orders."""

    settings: dict[str, Any]
    mean: float
    last: float
    each: list[float]
    seconds: float


def chosen(rows: list[Row], images: int) -> Row:
    """The one-standard-error rule: of those as good as the best, within what so few images can tell, the calmest."""
    best = max(rows, key=lambda row: row.mean)
    error = 100 * np.sqrt(best.mean / 100 * (1 - best.mean / 100) / images)
    near = [row for row in rows if row.mean >= best.mean - error]
    return min(near, key=lambda row: (row.settings.get("lr", 0), -row.mean))


if __name__ == "__main__":
    main()
