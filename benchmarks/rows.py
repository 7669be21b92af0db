"""The measurements. Each function takes one world and gives its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.arithmetic import Arithmetic, naive_work, our_work
from benchmarks.cases import World, as_naive
from benchmarks.clock import REPEATS, Pair, alternating, cpu_timed, matmul_peak
from benchmarks.memory import in_a_child
from benchmarks.naive import NaiveEase
from benchmarks.runs import Taught, race
from benchmarks.table import Row, best
from ease.errors import EaseError
from ease.methods.ease import Ease
from ease.progress import Progress
from ease.streams import Stream
from ease.training.hardware import computes_bf16
from ease.tuning import Adapter

NEVER_BELOW = 0.97
FASTER_FEATURES, FASTER_STEPS = 1.7, 1.5
"""How many times faster bf16 should be."""
MEMORY = (256, 16)
"""MB given to --feature-memory."""


@dataclass(frozen=True)
class Grid:
    """How much of the short measurements is made."""

    subspaces: Sequence[int] = (1, 5, 10, 20)
    ranks: Sequence[int] = (16, 64)
    batches: Sequence[int] = (1, 8, 32)
    steps: Sequence[int] = (16, 48)
    main: int = 10
    """Subspaces of the single figures: latency, share of the peak, the best batch."""
    repeats: int = REPEATS
    matmul: int = 2048
    is_quick: bool = False


QUICK = Grid((1, 3), (16,), (1, 2), (4,), main=3, repeats=1, matmul=256, is_quick=True)


class Short:
    """What the short measurements share: both implementations with the same adapters, and random pixels."""

    def __init__(self, world: World, grid: Grid) -> None:
        self.world, self.grid = world, grid
        self.naive = world.naive()

    def arithmetic(self, rank: int) -> Arithmetic:
        return Arithmetic.of(self.world.backbone.vit, rank)

    def row(self, part: str, what: str, pair: Pair, ceiling: float, wanted: float | None = None) -> Row:
        name = self.world.case.backbone
        return Row(name, part, what, 1e3 * pair.naive, 1e3 * pair.ours, "ms", pair.ratio, ceiling, wanted)

    def forward(self, adapters: list[Adapter], batch: int) -> Pair:
        """All subspaces of a batch: one pass of timm each, against one call. Checked to be the same, then timed."""
        pixels, backbone = self.world.pixels(batch), self.world.backbone
        subspaces = [as_naive(adapter, self.naive) for adapter in adapters]

        @torch.no_grad()
        def naive() -> Tensor:
            return torch.stack([self.naive.vit(pixels, subspace) for subspace in subspaces])

        def ours() -> Tensor:
            return backbone.features(pixels, adapters)

        wanted = naive()
        if (ours() - wanted).abs().max() > 1e-5 * max(1.0, float(wanted.abs().max())):
            raise EaseError("both implementations give different features: the benchmark means nothing")
        return alternating(naive, ours, self.grid.repeats)

    def step(self, batch: int) -> Pair:
        """One step of training: forwards, backwards, update."""
        world, settings = self.world, self.world.settings
        subspace, head = self.naive.begin(0)
        weights = [*subspace.parameters(), *head.parameters()]
        plain = torch.optim.SGD(
            weights, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        naive = partial(self.naive.step, subspace, head, plain, world.pixels(batch), world.labels(batch))
        return alternating(naive, world.training_step(batch), self.grid.repeats)


def forward_rows(world: World, grid: Grid, progress: Progress) -> list[Row]:
    """Many subspaces of one batch."""
    short = Short(world, grid)
    cells = [(r, s, n) for r in grid.ranks for s in grid.subspaces for n in grid.batches]
    rows, found = [], {}
    with progress.bar(f"{world.case.backbone}: forward", len(cells)) as advance:
        for rank, subspaces, batch in cells:
            pair = short.forward(world.adapters(subspaces, rank), batch)
            work = short.arithmetic(rank)
            ceiling = subspaces * work.separate() / work.together(subspaces)
            what = f"forward, S = {subspaces}, r = {rank}, batch {batch}"
            found[rank, subspaces, batch] = short.row("forward", what, pair, ceiling, NEVER_BELOW)
            rows.append(found[rank, subspaces, batch])
            advance(1)
    top = best([row for (_, subspaces, _), row in found.items() if subspaces == grid.main])
    wanted = None if grid.is_quick else (1.25 if world.backbone.shape.depth <= 6 else 1.1)
    return [*rows, replace(top, what=f"best of these at S = {grid.main}: {top.what}", wanted=wanted)]


def step_rows(world: World, grid: Grid, progress: Progress) -> list[Row]:
    """One step of training, at the run's batch size and at the released one."""
    short, work = Short(world, grid), Arithmetic.of(world.backbone.vit, world.settings.rank)
    classes = len(world.stream.tasks[0].classes)
    ceiling = work.step(classes, work.tokens) / work.step(classes, 1)
    rows = []
    with progress.bar(f"{world.case.backbone}: training step", len(grid.steps)) as advance:
        for batch in grid.steps:
            what = f"training step, r = {world.settings.rank}, batch {batch}"
            rows.append(short.row("step", what, short.step(batch), ceiling, NEVER_BELOW))
            advance(1)
    return rows


def latency_rows(world: World, grid: Grid, progress: Progress) -> list[Row]:
    """One prepared image to its logits."""
    short = Short(world, grid)
    tasks = world.stream.tasks[: grid.main]
    few = replace(world.stream, tasks=tuple(replace(t, train=t.train.limit(1)) for t in tasks))
    adapters = world.adapters(len(tasks), world.settings.rank)
    with progress.bar(f"{world.case.backbone}: latency", 2) as advance:
        ours, naive = _taught(world, few, adapters)
        advance(1)
        pixels = world.pixels(1)
        pair = alternating(lambda: naive.logits(pixels), lambda: ours.logits(pixels), grid.repeats)
        advance(1)
    work = short.arithmetic(world.settings.rank)
    ceiling = len(tasks) * work.separate() / work.together(len(tasks))
    what = f"one image to logits, S = {len(tasks)}, r = {world.settings.rank}"
    return [short.row("latency", what, pair, ceiling, NEVER_BELOW)]


def _taught(world: World, stream: Stream, adapters: list[Adapter]) -> tuple[Ease, NaiveEase]:
    """Both learners with these subspaces and prototypes of the stream's images."""
    ours, naive = Taught(world.engine(), world.settings), world.naive(stream)
    ours.given = adapters
    for task, adapter in zip(stream.tasks, adapters, strict=True):
        ours.learn(task)
        naive.keep(as_naive(adapter, naive))
        naive.add_prototypes()
    naive.complement()
    return ours, naive


def peak_rows(world: World, grid: Grid, progress: Progress) -> list[Row]:
    """How much of the machine's matmul peak the model's own multiply-adds reach."""
    short, rank, batch = Short(world, grid), max(grid.ranks), max(grid.batches)
    work, steps = short.arithmetic(rank), max(grid.steps)
    training, classes = short.arithmetic(world.settings.rank), len(world.stream.tasks[0].classes)
    with progress.bar(f"{world.case.backbone}: share of the matmul peak", 3) as advance:
        peak = matmul_peak(grid.matmul, grid.repeats)
        advance(1)
        forward = short.forward(world.adapters(grid.main, rank), batch)
        advance(1)
        step = short.step(steps)
        advance(1)

    def row(what: str, pair: Pair, naive: int, ours: int) -> Row:
        works = ((naive, pair.naive), (ours, pair.ours))
        shares = [100 * 2 * count / seconds / peak for count, seconds in works]
        what = f"share of the matmul peak: {what}"
        more = {"peak_gflops": peak / 1e9}
        name = world.case.backbone
        return Row(name, "peak", what, shares[0], shares[1], "%", shares[1] / shares[0], more=more)

    return [
        row(
            f"forward, S = {grid.main}, r = {rank}, batch {batch}",
            forward,
            batch * grid.main * work.separate(),
            batch * work.together(grid.main),
        ),
        row(
            f"training step, batch {steps}",
            step,
            steps * training.step(classes, training.tokens),
            steps * training.step(classes, 1),
        ),
    ]


def precision_rows(world: World, grid: Grid, progress: Progress) -> list[Row]:
    """bf16 against fp32, both by our code; none where the machine emulates bf16.

    The seconds are those of the processor, so that other programs on the machine do not count.
    """
    name, batch = world.case.backbone, max(grid.batches)
    if not computes_bf16(torch.device("cpu")):
        progress.say(f"{name}: this machine does not compute bf16 natively, so its rows are left out")
        return []
    exact, rough = world.engine(), world.engine(precision="bf16-mixed")
    pixels = world.pixels(batch)
    pairs = []
    with progress.bar(f"{name}: precision", 2 + len(grid.steps)) as advance:
        for subspaces in (1, grid.main):
            tunings = world.adapters(subspaces, max(grid.ranks))
            works = (partial(e.features_of_pixels, pixels, tunings) for e in (exact, rough))
            what = f"features, S = {subspaces}, r = {max(grid.ranks)}, batch {batch}"
            pairs.append((what, alternating(*works, grid.repeats, cpu_timed), FASTER_FEATURES))
            advance(1)
        for steps in grid.steps:
            works = (world.training_step(steps, precision=p) for p in ("32-true", "bf16-mixed"))
            what = f"training step, r = {world.settings.rank}, batch {steps}"
            pairs.append((what, alternating(*works, grid.repeats, cpu_timed), FASTER_STEPS))
            advance(1)
    return [
        Row(
            name,
            "precision",
            f"bf16 (ours) over fp32 (naive): {what}",
            1e3 * pair.naive,
            1e3 * pair.ours,
            "ms",
            pair.ratio,
            wanted=None if grid.is_quick else wanted,
        )
        for what, pair, wanted in pairs
    ]


def memory_rows(world: World, grid: Grid, progress: Progress) -> list[Row]:
    """Peak memory of a run, against the naive one's and what `--feature-memory` allows on top."""
    name, rows = world.case.backbone, []
    with progress.bar(f"{name}: memory", 1 + len(MEMORY)) as advance:
        # The naive run needs the same for few test images as for many: it keeps nothing of them.
        naive = in_a_child("naive", name, 0, is_crowded=False, is_quick=grid.is_quick)
        advance(1)
        for budget in MEMORY:
            ours = in_a_child("ours", name, budget, is_crowded=budget == min(MEMORY), is_quick=grid.is_quick)
            advance(1)
            what = f"peak memory with {ours['features'] / 2**20:.0f} MB of features; naive + {budget} MB over ours"
            figures = naive["peak"] / 2**20, ours["peak"] / 2**20
            allowed = (figures[0] + budget) / figures[1]
            rows.append(Row(name, "memory", what, *figures, "MB", allowed, wanted=1.0))
    return rows


def run_rows(world: World, folder: Path, grid: Grid, progress: Progress) -> list[Row]:
    """A whole run of both, by phase."""
    found, tasks, epochs = race(world, folder, progress), world.stream.tasks, world.settings.epochs
    work = Arithmetic.of(world.backbone.vit, world.settings.rank)
    images = [len(t.train) for t in tasks], [len(t.test) for t in tasks]
    counts = [make(work, *images, epochs, len(tasks[0].classes)) for make in (naive_work, our_work)]
    where = f"{len(tasks)} stages of {world.case.dataset}"
    about = {
        "stages": {
            side: [stage.seconds["evaluation"] for stage in getattr(found, side)]
            for side in ("naive", "ours")
        },
        "agreement": asdict(found.agreement),
        "average": dict(zip(("naive", "ours"), found.averages, strict=True)),
        "seconds": {side: [stage.seconds for stage in getattr(found, side)] for side in ("naive", "ours")},
        "train_per_class": world.case.train,
        "test_per_class": world.case.test,
    }
    asked = {"whole": None if grid.is_quick else 2.5, "evaluation": None if grid.is_quick else 6.0}

    def row(name: str, seconds: tuple[float, float], phase: str) -> Row:
        pair, (naive, ours) = Pair.once(*seconds), (getattr(count, phase) for count in counts)
        more = about if phase == "whole" else {}
        what = f"{name}, {where}, {epochs} epochs" if phase == "whole" else f"{name}, {where}"
        return Row(
            world.case.backbone, "run", what, *pair[:2], "s", pair.ratio, naive / ours, asked.get(phase), more
        )

    return [
        row("whole run", found.whole, "whole"),
        row("evaluation phase", found.seconds("evaluation"), "evaluation"),
        row("prototype phase", found.seconds("prototypes"), "prototypes"),
        row("training phase", found.seconds("train"), "train"),
    ]


Measure = Callable[[World, Grid, Progress], list[Row]]
SHORT: dict[str, Measure] = {
    "forward": forward_rows,
    "step": step_rows,
    "latency": latency_rows,
    "peak": peak_rows,
    "memory": memory_rows,
    "precision": precision_rows,
}


def measure(part: str, world: World, grid: Grid, folder: Path, progress: Progress) -> list[Row]:
    """The rows of one part. `folder` is for a run's files."""
    return run_rows(world, folder, grid, progress) if part == "run" else SHORT[part](world, grid, progress)
