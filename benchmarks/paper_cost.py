"""What the paper's exhibits cost at full scale: cells, passes through ViT-B/16, and rough GPU hours.

Passes are images x subspaces, from the published image counts. Hours rest on two assumed speeds, which were not
measured here: so many images per second forwards, and a third of that in training. Cells that several exhibits share
are counted in each; `all` counts them once.

    python benchmarks/paper_cost.py --speed 1000
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ease.config import RunConfig
from ease.experiments.plans.paper import Measurement, exhibits, measurements
from ease.methods import find_method
from ease.streams.datasets.dataset_info import DATASET_INFO
from ease.streams.protocol import task_sizes

TRAINING = 3
"""Forward passes that one training pass costs: forwards, and twice that backwards."""


def passes(config: RunConfig, trained: bool = True) -> tuple[float, float]:
    """Training passes and forward passes of one run, as the formulas in docs/methods say."""
    data = DATASET_INFO[config.dataset]
    classes = min(config.limit_classes or data.classes, data.classes)
    tasks = task_sizes(config.protocol, classes)
    train, test = data.train / data.classes, data.test / data.classes
    stages, seen = range(1, len(tasks) + 1), [sum(tasks[:b]) for b in range(1, len(tasks) + 1)]
    epochs, method = config.settings.get("epochs", 0), config.method
    learned = epochs * train * classes
    again = test * sum(seen)  # every stage looks at all classes seen
    if method in ("ease", "upper-bound"):
        prototypes = train * sum(size * b for size, b in zip(tasks, stages, strict=True))
        return (learned if trained else 0, prototypes + test * classes * len(tasks))
    if find_method(method).per_image:
        return learned, learned + 2 * again
    if method == "simplecil":
        return 0, (train + test) * classes
    if method.startswith("adam"):
        return epochs * train * tasks[0], 2 * (train + test) * classes
    if method in ("der", "foster", "memo"):
        old = epochs * train * sum(size * (b - 1) for size, b in zip(tasks, stages, strict=True))
        return learned * (2 if method == "foster" else 1), old + test * classes * len(tasks)
    return learned, again + (learned if method in ("lwf", "icarl", "sdc") else 0)


def total(found: Sequence[Measurement]) -> tuple[int, float, float]:
    """Cells, training passes and forward passes; what is shared is trained once."""
    cells = {each.cell.name: each.cell for each in found}
    known: set[str] = set()
    training = forwards = 0.0
    for cell in cells.values():
        fresh = cell.shares is None or cell.shares not in known
        known |= {cell.shares} if cell.shares else set()
        one, other = passes(cell.config, fresh)
        training, forwards = training + one, forwards + other
    return len(cells), training, forwards


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", type=float, default=1000, help="images per second forwards")
    speed = parser.parse_args().speed
    plans = {name: measurements(exhibit, "full") for name, exhibit in exhibits().items()}
    plans["all"] = [each for plan in plans.values() for each in plan]
    print("| exhibit | cells | training passes | forward passes | GPU hours, roughly |")
    print("|---|---:|---:|---:|---:|")
    for name, plan in plans.items():
        cells, training, forwards = total(plan)
        hours = (TRAINING * training + forwards) / speed / 3600
        print(f"| {name} | {cells} | {training / 1e6:.1f} M | {forwards / 1e6:.1f} M | {hours:.0f} |")


if __name__ == "__main__":
    main()
