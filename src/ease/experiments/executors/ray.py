"""Runs cells on the nodes of a Ray cluster. The folder of the grid, which all nodes must share, stays the truth."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ease
from ease.cluster import HERE, connected, node_name
from ease.config import RunConfig
from ease.errors import EaseError, one_line
from ease.experiments.cells import Cell, Outcome
from ease.experiments.executors import Work
from ease.progress import Advance, Progress

RETRIES = 10
"""How often a unit is tried again after its node or its process was lost. Errors are never a reason to try again."""
BASE_MEMORY = 2**30
"""Bytes that a run needs besides its caches."""
_LOOK = 1.0
"""Seconds between two looks at what the nodes are doing."""


@dataclass(frozen=True)
class RayCluster:
    """One Ray task for each unit of cells.

    A task whose node or process is lost is started again elsewhere, where it continues from what lies in the folders of
    its cells. Leases see to it that a process that was only taken for dead does not write any more. When this process
    is interrupted or killed, Ray ends its tasks; the same command goes on.

    Attributes:
        address: of a running cluster; `local` starts one on this machine.
        retries: see `RETRIES`.
    """

    address: str = HERE
    retries: int = RETRIES

    def outcomes(self, work: Work, units: Sequence[Sequence[Cell]], progress: Progress) -> Iterator[Outcome]:
        """See `Executor`."""
        for unit in units:
            for cell in unit:
                _check_one_process(cell.config)
        if not units:
            return
        with connected(self.address) as ray, ExitStack() as ending:
            run = ray.remote(_attempt_unit)
            pending: dict[Any, Sequence[Cell]] = {}
            ending.callback(_cancel, ray, pending)
            for unit in units:
                hints = resource_hints(unit)
                _say_if_no_node_fits(ray, unit, hints, progress)
                task = run.options(max_retries=self.retries, retry_exceptions=False, **hints)
                pending[task.remote(work, list(unit), os.getcwd(), ease.__version__)] = unit
            board = ending.enter_context(_Board(work, progress))
            while pending:
                ready, _ = ray.wait(list(pending), num_returns=1, timeout=_LOOK)
                for reference in ready:
                    yield from _outcomes(ray, reference, pending.pop(reference))
                board.look([cell for unit in pending.values() for cell in unit])


def resource_hints(unit: Sequence[Cell]) -> dict[str, float]:
    """What a unit asks a node for: cores, GPUs and bytes of memory, by the configuration of its largest cell."""
    configs = [cell.config for cell in unit]
    return {
        "num_cpus": max(config.cpus for config in configs),
        "num_gpus": max(float(config.accelerator in ("cuda", "gpu")) for config in configs),
        "memory": max(
            BASE_MEMORY + (config.feature_memory + config.image_memory) * 2**20 for config in configs
        ),
    }


def _check_one_process(config: RunConfig) -> None:
    if config.devices * config.nodes > 1:
        raise EaseError(
            "a cell on a Ray cluster is one process: leave out devices and nodes, or leave out --ray "
            "and start the command with torchrun"
        )


def _say_if_no_node_fits(ray: Any, unit: Sequence[Cell], hints: dict[str, float], progress: Progress) -> None:
    asked = {"CPU": hints["num_cpus"], "GPU": hints["num_gpus"], "memory": hints["memory"]}
    for node in ray.nodes():
        if node["Alive"] and all(node["Resources"].get(name, 0) >= asked[name] for name in asked):
            return
    progress.say(
        f"{unit[0].name} waits for a node with {asked['CPU']:g} cores, {asked['GPU']:g} GPUs and "
        f"{asked['memory'] / 2**30:.1f} GB of memory: the cluster has none yet"
    )


def _cancel(ray: Any, pending: dict[Any, Sequence[Cell]]) -> None:
    """End what still runs; it can be continued."""
    for reference in pending:
        ray.cancel(reference, force=True)


def _attempt_unit(
    work: Work, unit: list[Cell], folder: str, version: str
) -> list[tuple[int, str | None]]:  # pragma: no cover - on a node
    """Attempt cells on a node; errors as text, since not every error can be pickled."""
    import torch

    node = node_name()
    if version != ease.__version__:
        raise EaseError(f"{node} has ease {ease.__version__} in place of {version}: install the same there")
    if not Path(folder).is_dir():
        raise EaseError(
            f"{node} has no folder {folder}: all nodes must share it, start the command elsewhere"
        )
    os.chdir(folder)  # relative paths mean the same as for the command
    torch.set_num_threads(max(cell.config.cpus for cell in unit))
    errors = [work.attempt(cell, None, node) for cell in unit]
    return [(i, None if error is None else str(error)) for i, error in enumerate(errors)]


def _outcomes(ray: Any, reference: Any, unit: Sequence[Cell]) -> list[Outcome]:
    try:
        errors = dict(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
        kind = "" if isinstance(cause, EaseError) else f"{type(cause).__name__}: "
        return [(cell, EaseError(f"{kind}{one_line(str(cause))[-400:]}")) for cell in unit]
    except ray.exceptions.RayError as error:
        reason = one_line(str(error))[:200]
        return [(cell, EaseError(f"its node or its process was lost too often: {reason}")) for cell in unit]
    return [(cell, None if errors[i] is None else EaseError(errors[i])) for i, cell in enumerate(unit)]


@dataclass
class _Board:
    """One bar for each cell that a node works on, by what the leases say."""

    work: Work
    progress: Progress
    bars: dict[str, tuple[ExitStack, Advance, str, int]] = field(default_factory=dict)

    def __enter__(self) -> _Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.look([])

    def look(self, cells: Sequence[Cell]) -> None:
        """Show these cells, as far as a node works on them, and no others."""
        found = {cell.name: self.work.holder(cell) for cell in cells}
        holders = {name: holder for name, holder in found.items() if holder is not None and holder.total}
        for name in list(self.bars):
            closing, _, node, _ = self.bars[name]
            if name not in holders or holders[name].node != node:
                closing.close()
                del self.bars[name]
        for name, holder in holders.items():
            if name not in self.bars:
                closing = ExitStack()
                advance = closing.enter_context(
                    self.progress.bar(f"{holder.node}  {name}", holder.total, done=holder.done)
                )
                self.bars[name] = (closing, advance, holder.node, holder.done)
            closing, advance, node, done = self.bars[name]
            if holder.done > done:
                advance(holder.done - done)
                self.bars[name] = (closing, advance, node, holder.done)
