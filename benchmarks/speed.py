"""What our code saves over the released schedule: one table of ratios, each measured in this run.

The other side of every ratio is `benchmarks/naive.py`: separate passes of timm's ViT with the same adapters hooked in,
everything evaluated again at every stage; same threads, batch sizes, decoded images and random numbers. Short rows are
medians of seven turns, of the seconds and of the ratio within a turn; whole runs are made once, a stage of one after a
stage of the other. Beside each ratio stands its ceiling, the same ratio counted in multiply-adds.

DeiT-tiny is measured where EASE_SHARED names a folder with its weights and the CIFAR-100 subset.

    make bench
    python -m benchmarks.speed --rows forward,step --backbones ease-vit
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from benchmarks.cases import BATCH, CASES, Case, World, quick
from benchmarks.rows import QUICK, Grid, measure
from benchmarks.table import PARTS, Row, merged, read_rows, show, write
from ease.errors import EaseError, unknown
from ease.experiments.environment import versions
from ease.progress import Bars, Progress, Quiet


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder for table, JSON and plot"
    )
    parser.add_argument("--rows", default=",".join(PARTS), help=f"which of {', '.join(PARTS)}")
    parser.add_argument("--backbones", default=",".join(CASES), help="which backbones")
    parser.add_argument("--train", type=int, help="training images per class of whole runs")
    parser.add_argument("--test", type=int, help="test images per class of whole runs")
    parser.add_argument("--quick", action="store_true", help="seconds, for a test of the benchmark itself")
    return parser.parse_args(words)


def chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    """The names in a list with commas, in their usual order."""
    asked = [word.strip() for word in text.split(",") if word.strip()]
    for word in asked:
        if word not in known:
            raise unknown(what, word, known)
    return [name for name in known if name in asked]


def sized(case: Case, options: argparse.Namespace) -> Case:
    """With the number of images asked for."""
    case = quick(case) if options.quick else case
    asked = {"train": options.train, "test": options.test}
    return replace(case, **{name: count for name, count in asked.items() if count is not None})


def run(options: argparse.Namespace, progress: Progress) -> tuple[list[Row], list[str]]:
    """Measure what was asked for; rows are written after every part, so that a stopped benchmark keeps them."""
    parts = chosen(options.rows, PARTS, "rows")
    grid = QUICK if options.quick else Grid()
    rows, missing = read_rows(options.out, options.quick), []
    began = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    about = {"versions": versions(), "batch_size": BATCH, "quick": options.quick}
    for name in chosen(options.backbones, list(CASES), "backbone"):
        case = sized(CASES[name], options)
        lacks = case.lacks()
        if lacks is not None:
            progress.say(lacks)
            missing.append(lacks)
            continue
        world = World(case)
        for part in parts:
            with tempfile.TemporaryDirectory(prefix="ease-bench-") as folder:
                found = measure(part, world, grid, Path(folder), progress)
            rows = merged(rows, [replace(row, measured=began) for row in found])
            write(options.out, rows, about, [*notes(rows), *missing])
    return rows, [*notes(rows), *missing]


def notes(rows: Sequence[Row]) -> list[str]:
    """What the table does not say."""
    if not rows:
        return []
    began = sorted({row.measured for row in rows})
    lines = [
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; batches of {BATCH} where a row names none",
        "rows of several benchmarks, begun at " + ", ".join(began)
        if len(began) > 1
        else f"begun at {began[0]}",
    ]
    for row in (row for row in rows if "agreement" in row.more):
        lines += agreement(row)
    peaks = {row.backbone: row.more["peak_gflops"] for row in rows if "peak_gflops" in row.more}
    return lines + [f"matmul peak beside {name}: {peak:.0f} Gflop/s" for name, peak in peaks.items()]


def agreement(row: Row) -> list[str]:
    """Whether a whole run's two sides came to the same results."""
    same, average, more = row.more["agreement"], row.more["average"], row.more
    return [
        f"{row.backbone}: {more['train_per_class']} train and {more['test_per_class']} test images per class",
        f"{row.backbone}: with the same adapters {same['different']} of {same['compared']:,} predictions differ, "
        f"{same['unexplained']} of them where the naive margin is 1e-5 or more "
        f"({same['narrow']} margins are smaller); logits differ by at most {same['largest']:.1e}",
        f"{row.backbone}: trained separately, mean accuracy over stages is {average['naive']:.2f} % (naive) and "
        f"{average['ours']:.2f} % (ours)",
    ]


def main(words: Sequence[str] | None = None, progress: Progress | None = None) -> int:
    """The command."""
    options = parse(words)
    try:
        rows, lines = run(options, progress or (Quiet() if options.quick else Bars()))
    except EaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(rows, lines, f"ratios, {torch.get_num_threads()} threads")
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
