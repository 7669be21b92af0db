"""What is left: the ten operations that take most of a stage's time, by torch's profiler.

A few tasks are learned; the last one's learning and evaluation are profiled. The profiler slows short operations down,
so the shares are near the truth, the seconds above it.

    python -m benchmarks.left --backbone ease-vit
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import World, asked_for, parser_for_one_case
from benchmarks.clock import timed
from benchmarks.runs import OurRun
from ease.storage.files import make_folder, write_atomic

TOP = 10


def operations(work: Callable[[], object]) -> tuple[dict[str, float], float]:
    """Seconds that each operation spends itself, and seconds in all."""
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        _, whole = timed(work)
    found = {event.key: event.self_cpu_time_total / 1e6 for event in watched.key_averages()}
    return found, whole


def table(learning: tuple[dict[str, float], float], evaluation: tuple[dict[str, float], float]) -> str:
    """The largest operations as Markdown; what is in none of them is Python, files and waiting."""
    phases, whole = (learning[0], evaluation[0]), learning[1] + evaluation[1]
    totals = {name: sum(phase.get(name, 0.0) for phase in phases) for phase in phases for name in phase}
    largest = sorted(totals, key=lambda name: -totals[name])[:TOP]
    lines = [
        "| operation | learning s | evaluation s | share |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {phases[0].get(name, 0.0):.3f} | {phases[1].get(name, 0.0):.3f} "
            f"| {100 * totals[name] / whole:.1f} % |"
            for name in largest
        ),
    ]
    outside = [spent - sum(found.values()) for found, spent in (learning, evaluation)]
    lines.append(
        f"| outside of operations | {outside[0]:.3f} | {outside[1]:.3f} | {100 * sum(outside) / whole:.1f} % |"
    )
    return "\n".join([*lines, ""])


def profiled(world: World, stages: int) -> str:
    """The table of the last of so many stages."""
    tasks = world.stream.tasks[:stages]
    with tempfile.TemporaryDirectory(prefix="ease-bench-") as folder:
        run = OurRun(world, Path(folder))
        for task in tasks[:-1]:
            run.stage(task)
        learning = operations(lambda: run.learn(tasks[-1]))
        evaluation = operations(lambda: run.evaluate(tasks[-1]))
    return table(learning, evaluation)


def main() -> None:
    parser = parser_for_one_case(__doc__)
    parser.add_argument("--stages", type=int, default=5, help="how many tasks are learned")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()
    text = profiled(asked_for(options), options.stages)
    print(text)
    make_folder(options.out)
    write_atomic(options.out / f"profile-{options.backbone}.md", text.encode())


if __name__ == "__main__":
    main()
