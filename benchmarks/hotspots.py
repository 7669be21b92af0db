"""Where the time of a run goes: the ten operations that take most of it, by the profiler's own time.

    python benchmarks/hotspots.py
    python benchmarks/hotspots.py --dataset cifar100 --protocol "B0 Inc5" --limit-per-class 4 --data-root DIR \
        --backbone deit_tiny_patch16_224 --weights FILE --input-size 128

Operations include what they wait for: on two threads a product's time is that of the slower one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ease.config import resolve
from ease.studies.run import start_run

TOP = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--protocol", default="B0 Inc3")
    parser.add_argument("--limit-per-class", type=int, default=6)
    for name in ("backbone", "weights", "data-root"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--input-size", type=int)
    args = parser.parse_args()
    config, notes = resolve({**vars(args), "method": "ease"}, preset="small")
    with tempfile.TemporaryDirectory() as folder, profile(activities=[ProfilerActivity.CPU]) as watched:
        record = start_run(config, Path(folder) / "run", notes)
    found = watched.key_averages()
    whole = sum(one.self_cpu_time_total for one in found)
    seconds = record["seconds"]
    print(
        f"{record['dataset']} {record['protocol']}, {record['backbone']}, {torch.get_num_threads()} threads: "
        f"{seconds['total']:.0f} s, of which training {seconds['train']:.0f}, prototypes {seconds['prototypes']:.0f}, "
        f"evaluation {seconds['evaluation']:.0f}; waiting for images {seconds['waiting']:.1f}\n"
    )
    print("| operation | share of the time | calls |\n|---|---:|---:|")
    for one in sorted(found, key=lambda one: -one.self_cpu_time_total)[:TOP]:
        print(f"| `{one.key}` | {100 * one.self_cpu_time_total / whole:.1f} % | {one.count} |")


if __name__ == "__main__":
    main()
