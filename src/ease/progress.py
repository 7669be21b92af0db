"""Where progress is shown. Quiet by default; the CLI plugs in bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from ease.errors import printable

Advance = Callable[[int], None]


class Progress(Protocol):
    """Something that can show how far the work has come."""

    def bar(self, label: str, total: int | None, done: int = 0) -> AbstractContextManager[Advance]:
        """A bar of `total` steps, `done` of them already; call the result with steps that were just made.

        Without a total it is not known how many there will be.
        """
        ...

    def say(self, line: str) -> None:
        """One line worth keeping."""
        ...


class Quiet:
    """Shows nothing."""

    @contextmanager
    def bar(self, label: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        yield lambda steps: None

    def say(self, line: str) -> None:
        pass


class Bars:
    """Bars with time left, on the terminal's error stream, so that output stays clean for programs."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        self._console = Console(stderr=True)
        self._rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            # In a log file it would leave empty lines; FORCE_COLOR makes rich take any file for a terminal.
            disable=not (self._console.is_terminal and self._console.file.isatty()),
        )
        self._open = 0

    @contextmanager
    def bar(self, label: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        if self._open == 0:
            self._rich.start()
        self._open += 1
        task = self._rich.add_task(label, total=total, completed=done)
        try:
            yield lambda steps: self._rich.advance(task, steps)
        finally:
            self._rich.remove_task(task)
            self._open -= 1
            if self._open == 0:
                self._rich.stop()

    def say(self, line: str) -> None:
        self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
