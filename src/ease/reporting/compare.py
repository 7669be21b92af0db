"""Two experiments side by side: their settings, their results, and whether the difference could be chance."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ease.errors import EaseError, unknown
from ease.experiments.record import RECORD, RecordFile, RunRecord, find_records, plain
from ease.reporting.series import Series, flattened, group, image_remarks, result_values
from ease.reporting.significance import FEW, McNemar, Paired, mcnemar, paired
from ease.reporting.tables import count_text, percent_text, seconds_text
from ease.reporting.tabular import NOTHING

PREDICTIONS = "predictions.npz"


@dataclass(frozen=True)
class Quantity:
    """One figure of a record: its name, and how it is read and shown."""

    key: str
    head: str
    read: Callable[[RunRecord], float | None]
    show: Callable[[float], str]


QUANTITIES = (
    Quantity("average", "Ā, %", lambda r: r.average, percent_text),
    Quantity("last", "A_B, %", lambda r: r.last, percent_text),
    Quantity("forgetting", "Forgetting, points", lambda r: r.forgetting, percent_text),
    Quantity("backward_transfer", "Backward transfer, points", lambda r: r.backward_transfer, percent_text),
    Quantity("passes", "Passes", lambda r: r.forward_passes.total, count_text),
    Quantity("seconds", "Seconds", lambda r: r.seconds.total, seconds_text),
)
TESTED = QUANTITIES[:2]


@dataclass(frozen=True)
class ComparedExperiment:
    """One experiment, once per seed."""

    path: str
    runs: list[RecordFile]
    series: Series

    def of_seed(self, seed: int) -> RunRecord:
        return next(record for record in self.series.records if record.seed == seed)


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of both sides, means over their seeds."""

    key: str
    a: float | None
    b: float | None
    a_deviation: float | None = None
    b_deviation: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True)
class Comparison:
    """All that `ease compare` prints."""

    a: ComparedExperiment
    b: ComparedExperiment
    settings: list[tuple[str, str, str]]
    circumstances: list[tuple[str, str, str]]
    obstacles: list[str]
    """Why the figures cannot be compared; usually nothing."""
    seeds: list[int]
    """Those that both sides have."""
    results: list[ComparedFigure]
    tasks: list[ComparedFigure]
    tests: dict[str, Paired]
    images: McNemar | None
    remarks: list[str]

    def as_json(self) -> dict[str, Any]:
        """The same for a program."""

        def side(side: ComparedExperiment) -> dict[str, Any]:
            return {"path": side.path, "label": side.series.label, "seeds": side.series.seeds}

        def differing(rows: list[tuple[str, str, str]]) -> list[dict[str, str]]:
            return [dict(zip(("key", "a", "b"), row, strict=True)) for row in rows]

        return {
            "a": side(self.a),
            "b": side(self.b),
            "comparable": not self.obstacles,
            "obstacles": self.obstacles,
            "settings": differing(self.settings),
            "circumstances": differing(self.circumstances),
            "results": [{**asdict(result), "difference": result.difference} for result in self.results],
            "per_task": [{**asdict(result), "difference": result.difference} for result in self.tasks],
            "common_seeds": self.seeds,
            "across_seeds": {key: asdict(test) for key, test in self.tests.items()},
            "across_images": None if self.images is None else asdict(self.images),
            "remarks": self.remarks,
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for name, side in (("A", self.a), ("B", self.b)):
            seeds = ", ".join(str(seed) for seed in side.series.seeds)
            word = "seeds" if len(side.runs) > 1 else "seed"
            yield Text(
                f"{name}  {side.series.label} on {side.series.benchmark}, {word} {seeds}  ({side.path})"
            )
        for obstacle in self.obstacles:
            yield Text(f"not comparable: {obstacle}", "bold red")
        both = [row for row in self.settings if NOTHING not in row[1:]]
        if both:
            yield from _table("Settings that differ", ("Setting", "A", "B"), both, left=3)
        elif not self.settings:
            yield Text("Both have the same settings.")
        # Two methods have many settings that the other does not know; a line does for those.
        for name, mine, other in (("A", 1, 2), ("B", 2, 1)):
            alone = [f"{row[0]} {row[mine]}" for row in self.settings if row[other] == NOTHING]
            if alone:
                yield Text(f"{name} alone has {', '.join(alone)}", "dim")
        if self.circumstances:
            heads = ("Circumstance", "A", "B")
            yield from _table("Circumstances that differ", heads, self.circumstances, left=3)
        figures = {figure.key: figure for figure in QUANTITIES}
        rows = [_result_row(figures[result.key], result) for result in self.results]
        yield from _table("Results", ("Figure", "A", "B", "B - A"), rows)
        if self.tasks:
            task = Quantity("", "", lambda _: None, percent_text)
            rows = [(result.key, *_result_row(task, result)[1:]) for result in self.tasks]
            yield from _table(
                "Accuracy on each task after the last stage, %", ("Task", "A", "B", "B - A"), rows
            )
        if self.tests:
            yield from _table(
                f"Across {_counted(len(self.seeds), 'common seed')} "
                "(p: how often chance alone would give as much)",
                ("Figure", "B - A", "t", "p of t", "p, exact"),
                [_test_row(figures[key].head, test) for key, test in self.tests.items()],
            )
        if self.images is not None:
            yield Text(f"\n{_image_words(self.images)}")
        yield Text("")
        for remark in self.remarks:
            yield Text(f"note: {remark}")


def compare(a: Path, b: Path, method: str | None = None) -> Comparison:
    """Compare what lies at two paths: a run's folder, a record file, or a folder of several seeds.

    Where a folder has several methods, `method` says which one is meant.
    """
    first, second = _side(a, method), _side(b, method)
    seeds = [seed for seed in first.series.seeds if seed in second.series.seeds]
    obstacles = _obstacles(first, second)
    remarks = image_remarks([*first.series.records, *second.series.records])
    tasks: list[ComparedFigure] = []
    tests: dict[str, Paired] = {}
    images = None
    if not obstacles:
        pairs = [(first.of_seed(seed), second.of_seed(seed)) for seed in seeds]
        if pairs and all(one.classes == other.classes for one, other in pairs):
            tasks = _tasks(pairs)
        else:
            remarks.append("the classes arrived in different orders: no task is the same on both sides")
        if len(seeds) > 1:
            for figure in TESTED:
                values = [[float(figure.read(r) or 0.0) for r in side] for side in zip(*pairs, strict=True)]
                tests[figure.key] = paired(*values)
        remarks += _seed_remarks(first, second, seeds)
        if len(first.runs) == len(second.runs) == 1:
            images, remark = _on_images(first.runs[0], second.runs[0])
            remarks += [remark] if remark else []
    return Comparison(
        first,
        second,
        _differing(first, second, result_values),
        _differing(first, second, _circumstances),
        obstacles,
        seeds,
        [_result(figure, first, second) for figure in QUANTITIES],
        tasks,
        tests,
        images,
        remarks,
    )


# --- sides ----------------------------------------------------------------------------------------


def _side(path: Path, method: str | None) -> ComparedExperiment:
    runs = find_records([path]).runs
    if method is not None:
        here = {run.record.method for run in runs}
        if method not in here:
            raise unknown(f"method in {path}", method, here)
        runs = [run for run in runs if run.record.method == method]
    grouped = group([run.record for run in runs])
    if len(grouped) > 1:
        names = list(dict.fromkeys(f"{s.label} on {s.benchmark}" for s in grouped))
        some = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        raise EaseError(
            f"{path} holds {len(grouped)} experiments ({some}): name the folder of one of them, or a method (--method)"
        )
    seeds = grouped[0].seeds
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise EaseError(
                f"{path} holds seed {seed} {seeds.count(seed)} times: leave one of each seed there"
            )
    return ComparedExperiment(str(path), runs, grouped[0])


def _obstacles(a: ComparedExperiment, b: ComparedExperiment) -> list[str]:
    one, other = a.series, b.series
    streams = [f"{s.benchmark.dataset} {s.benchmark.protocol}" for s in (one, other)]
    if streams[0] != streams[1]:
        return [f"the streams differ, A is on {streams[0]} and B on {streams[1]}"]
    if one.classes_seen != other.classes_seen:
        return ["the streams differ, their tasks have different numbers of classes"]
    images = [series.records[0].test_images[-1] for series in (one, other)]
    if images[0] != images[1]:
        return [f"A was tested on {images[0]:,} images and B on {images[1]:,}"]
    return []


def _circumstances(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """For each record how and where it was carried out, and with which versions."""
    return [
        flattened(
            {
                **(
                    {}
                    if r.config is None
                    else {**r.config.of_role("runtime"), **r.config.of_role("location")}
                ),
                **r.versions,
            }
        )
        for r in records
    ]


def _differing(
    a: ComparedExperiment,
    b: ComparedExperiment,
    read: Callable[[Sequence[RunRecord]], list[dict[str, str]]],
) -> list[tuple[str, str, str]]:
    """(key, A, B) of what is not the same; a side whose seeds differ in something lists what it has."""
    values = read([*a.series.records, *b.series.records])
    sides = values[: len(a.series.records)], values[len(a.series.records) :]
    keys = dict.fromkeys(key for each in values for key in each)
    rows = []
    for key in keys:
        found = [dict.fromkeys(each.get(key, NOTHING) for each in side) for side in sides]
        if set(found[0]) != set(found[1]):
            rows.append((plain(key), plain(", ".join(found[0])), plain(", ".join(found[1]))))
    return rows


# --- figures --------------------------------------------------------------------------------------


def _result(figure: Quantity, a: ComparedExperiment, b: ComparedExperiment) -> ComparedFigure:
    (mean_a, spread_a), (mean_b, spread_b) = (_summary(s.series.values(figure.read)) for s in (a, b))
    return ComparedFigure(figure.key, mean_a, mean_b, spread_a, spread_b)


def _tasks(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[ComparedFigure]:
    results = []
    for number in range(len(pairs[0][0].task_sizes)):
        a, b = (
            _summary([cell for record in side if (cell := record.per_task[-1][number]) is not None])
            for side in zip(*pairs, strict=True)
        )
        results.append(ComparedFigure(str(number + 1), a[0], b[0], a[1], b[1]))
    return results


def _summary(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _seed_remarks(a: ComparedExperiment, b: ComparedExperiment, seeds: list[int]) -> list[str]:
    least = 2.0 ** (1 - len(seeds)) if seeds else 1.0
    alone = [seed for side in (a, b) for seed in side.series.seeds if seed not in seeds]
    remarks = []
    if not seeds:
        remarks.append(
            "the sides have no seed in common: nothing can be paired, so there is no test across seeds"
        )
    elif len(seeds) == 1:
        remarks.append(f"one common seed: no test across seeds; run {FEW} or more to have one")
    elif len(seeds) < FEW:
        remarks.append(
            f"{len(seeds)} seeds are too few for a test to mean much: the exact p cannot fall below {least:.3g} "
            "here, whatever the difference"
        )
    else:
        remarks.append(f"with {len(seeds)} seeds the exact p cannot fall below {least:.2g}")
    if seeds and alone:
        remarks.append(
            f"only one side has seed {', '.join(map(str, alone))}: not in the test nor in the tasks"
        )
    return remarks


# --- images ---------------------------------------------------------------------------------------


def _on_images(a: RecordFile, b: RecordFile) -> tuple[McNemar | None, str]:
    """McNemar's test on the last stage where both runs kept their predictions, else why not."""
    files = [run.path.with_name(PREDICTIONS) for run in (a, b)]
    if not all(run.path.name == RECORD and file.is_file() for run, file in zip((a, b), files, strict=True)):
        return None, ""
    (ids, right), (other_ids, other_right) = (
        _right(file, len(run.record.task_sizes)) for file, run in zip(files, (a, b), strict=True)
    )
    if not np.array_equal(ids, other_ids):
        return None, "the runs were tested on different images: no test across images"
    return mcnemar(right, other_right), ""


def _right(path: Path, stage: int) -> tuple[np.ndarray, np.ndarray]:
    """The last stage's test images by content hash, in order, and whether each was classified rightly."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            logits, labels, ids = (arrays[f"stage{stage}/{name}"] for name in ("logits", "labels", "ids"))
        right = logits.argmax(axis=1) == labels
        # Images that occur twice have equal hashes and predictions; their labels may still differ.
        order = np.lexsort((right, ids))
        return ids[order], right[order]
    except (OSError, LookupError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EaseError(f"{path} is damaged: restore it, or move it away to compare without it") from error


# --- words ----------------------------------------------------------------------------------------


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> RenderResult:
    """A title and a table of which `left` columns are text and the others figures."""
    # Not the table's own title, which would be folded to the width of the table.
    yield Text(f"\n{title}", "bold")
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, head in enumerate(heads):
        figure = number >= left
        table.add_column(Text(head), justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    yield table


def _result_row(figure: Quantity, result: ComparedFigure) -> tuple[str, str, str, str]:
    def shown(mean: float | None, deviation: float | None) -> str:
        if mean is None:
            return NOTHING
        return figure.show(mean) + (f" ±{figure.show(deviation)}" if deviation is not None else "")

    difference = result.difference
    change = NOTHING if difference is None else _signed(difference, figure.show)
    return (
        figure.head,
        shown(result.a, result.a_deviation),
        shown(result.b, result.b_deviation),
        change,
    )


def _test_row(head: str, test: Paired) -> tuple[str, str, str, str, str]:
    change = f"{_signed(test.mean, percent_text)} ±{percent_text(test.deviation)}"
    t, p = (NOTHING, NOTHING) if test.t is None or test.t_p is None else (f"{test.t:.2f}", _p_text(test.t_p))
    return head, change, t, p, f"{_p_text(test.exact_p)} ({test.exact_test})"


def _image_words(test: McNemar) -> str:
    return (
        f"On the {test.images:,} test images of the last stage A alone is right about {test.only_a:,}, B alone "
        f"about {test.only_b:,}: p = {_p_text(test.p)} (McNemar's exact test, which knows the chance in the images "
        "and not that in the seed)."
    )


def _signed(value: float, show: Callable[[float], str]) -> str:
    text = show(abs(value))
    return text if text == show(0.0) else f"{'+' if value > 0 else '-'}{text}"


def _p_text(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
