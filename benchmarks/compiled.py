"""Whether `torch.compile` pays: a step of training as it is and compiled, in turns, and what compiling costs.

Compiling needs a C++ compiler. Every new process compiles anew unless torch finds its cache.

    python -m benchmarks.compiled --backbone ease-vit
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.cases import CASES, World, quick
from benchmarks.clock import alternating, timed
from ease.methods.ease import Ease


def steps(world: World, batch: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """One step of training on random pixels: as it is, and compiled."""
    side, task, settings = world.backbone.pixels.size, world.stream.tasks[0], world.settings
    pixels = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(batch))
    labels = torch.arange(batch) % len(task.classes)

    def step(compiled: bool) -> Callable[[], float]:
        module = Ease(world.engine(), settings).new_subspace(task).train()
        optimizer = settings.make_optimizer(module)
        forward = torch.compile(module) if compiled else module

        def work() -> float:
            loss = F.cross_entropy(forward(pixels), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.detach())

        return work

    return step(False), step(True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", choices=list(CASES), default="ease-vit")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 48])
    parser.add_argument("--quick", action="store_true", help="seconds, for a test of the benchmark itself")
    options = parser.parse_args()
    case = CASES[options.backbone]
    case = quick(case) if options.quick else case
    lacks = case.lacks()
    if lacks is not None:
        raise SystemExit(lacks)
    world = World(case)
    for batch in options.batch:
        plain, compiled = steps(world, batch)
        _, first = timed(compiled)
        pair = alternating(plain, compiled)
        saved = pair.naive - pair.ours
        pays = f"pays after {first / saved:,.0f} steps" if saved > 0 else "never pays"
        print(
            f"{case.backbone}, batch {batch}: a step {1e3 * pair.naive:.1f} ms, compiled {1e3 * pair.ours:.1f} ms "
            f"({pair.ratio:.2f}x); compiling took {first:.0f} s: {pays}"
        )


if __name__ == "__main__":
    main()
