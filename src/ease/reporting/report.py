"""One HTML file that tells a study: no script, no other file, light or dark as the reader likes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from ease.experiments.metrics import task_forgetting
from ease.experiments.record import RunRecord, plain
from ease.reporting import figures
from ease.reporting.figures import drawing
from ease.reporting.figures.costs import PHASES
from ease.reporting.series import BenchmarkKey, Series, by_benchmark, group
from ease.reporting.tables import comparison, count_text, percent_text, seconds_text
from ease.reporting.tabular import NOTHING
from ease.storage.files import write_all

# The drawing's colours -> the page's, which change with the reader's theme.
THEME = {
    drawing.INK: "ink",
    drawing.MUTED: "muted",
    drawing.GRID: "grid",
    drawing.PAPER: "paper",
    drawing.HEAT: "heat",
    drawing.LOSS: "loss",
    **{colour: f"line{number}" for number, colour in enumerate(drawing.PALETTE)},
}


MANY = 6
"""With more methods than this, tables turn on their side and the maps are folded away."""


def write_report(records: Sequence[RunRecord], path: str | Path, title: str | None = None) -> Path:
    """Write the report of some records to `path` and return it."""
    target = Path(path)
    text = render_report(records, title)
    # A class named after a folder whose name is not valid UTF-8 holds surrogates, which no page can show.
    write_all(target.parent, {target.name: text.encode("utf-8", errors="replace")})
    return target


def render_report(records: Sequence[RunRecord], title: str | None = None) -> str:
    """The report as HTML text; everything that comes from a record is escaped."""
    grouped = group(records)
    benchmarks = by_benchmark(grouped)
    return _template().render(
        title=title or _title(list(benchmarks)),
        lead=_lead(grouped, benchmarks),
        sections=[_section(number, *item) for number, item in enumerate(benchmarks.items())],
        configs=[_config(series, len(benchmarks) > 1) for series in grouped],
        versions=_versions(records),
        notes=_notes(grouped),
    )


@cache
def _template() -> Template:
    """Compiled once, which takes as long as drawing two pictures."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("ease.reporting").joinpath("report.html").read_text("utf-8"))


def _section(number: int, benchmark: BenchmarkKey, members: list[Series]) -> dict[str, Any]:
    """All that is shown of one benchmark: what was run, the table, the pictures, the costs."""
    records = [record for series in members for record in series.records]
    means = [series.mean_per_task() for series in members]
    floor = figures.heat_floor(means)
    words = _curve_words(members)
    # On a phone the wide drawing would be unreadable; the page shows whichever fits.
    curves = [
        _inline(figures.accuracy_curves(records, title="", width=width), f"s{number}{name}", words, name)
        for name, width in (("wide", 5.8), ("slim", 2.3))
    ]
    maps = []
    for index, (series, mean) in enumerate(zip(members, means, strict=True)):
        figure = figures.task_heatmap(mean, series.label, lowest=floor)
        maps.append(_inline(figure, f"s{number}m{index}", _map_words(series.label, mean)))
    return {
        "anchor": f"s{number}",
        "benchmark": str(benchmark),
        "facts": _facts(benchmark, members),
        "tasks": _tasks(records[0]),
        "table": comparison(records),
        "curves": curves,
        "stages": _stages(members),
        "maps": maps,
        "floor": floor,
        "forgetting": _forgetting(members, means, records, f"s{number}f"),
        "costs": _costs(members),
        "cost_pictures": _cost_pictures(members, records, f"s{number}c"),
        "labels": [series.label for series in members],
        "many": len(members) > MANY,
    }


def _forgetting(
    members: list[Series], means: list[list[list[float | None]]], records: list[RunRecord], prefix: str
) -> Markup | None:
    if max(len(mean) for mean in means) < 2:
        return None
    parts = []
    for series, mean in zip(members, means, strict=True):
        lost = ", ".join(NOTHING if v is None else f"{v:.0f}" for v in task_forgetting(mean))
        parts.append(f"{series.label}: {lost}.")
    words = f"Points that each task has fallen from its best to the last stage. {' '.join(parts)}"
    return _inline(figures.forgetting_by_task(records, title=""), prefix, words, "grid")


def _cost_pictures(members: list[Series], records: list[RunRecord], prefix: str) -> list[tuple[str, Markup]]:
    """(caption, picture) of what was spent; parameters only where there is something to compare."""
    drawn: list[tuple[str, Figure, Callable[[RunRecord], float | None], Callable[[float], str]]] = [
        (
            "Seconds, by phase",
            figures.running_time(records, title="", width=3.2),
            lambda r: sum(getattr(r.seconds, phase) or 0.0 for phase in PHASES),
            seconds_text,
        ),
        (
            "Forward passes, by phase",
            figures.passes_by_phase(records, title="", width=3.2),
            lambda r: r.forward_passes.total,
            count_text,
        ),
    ]
    pictures = []
    for number, (caption, figure, read, show) in enumerate(drawn):
        totals = [f"{series.label} {show(_mean(series, read))}" for series in members]
        words = f"Bar chart. {caption}: {', '.join(totals)}."
        pictures.append((caption, _inline(figure, f"{prefix}{number}", words, "bars")))
    if len(members) > 2:
        points = [
            f"{series.label} {count_text(_mean(series, lambda r: r.parameters.stored))}, "
            f"{percent_text(_mean(series, lambda r: r.last))} %"
            for series in members
        ]
        words = f"Scatter chart of accuracy after the last stage over parameters stored: {'; '.join(points)}."
        figure = figures.accuracy_against_cost(records, title="")
        pictures.append(("Parameters against accuracy", _inline(figure, f"{prefix}p", words, "points")))
    return pictures


# --- words ----------------------------------------------------------------------------------------


def _title(benchmarks: list[BenchmarkKey]) -> str:
    datasets = list(dict.fromkeys(each.dataset for each in benchmarks))
    first = benchmarks[0]
    return f"{first.dataset}, {first.protocol}" if len(benchmarks) == 1 else ", ".join(datasets)


def _lead(grouped: list[Series], benchmarks: dict[BenchmarkKey, list[Series]]) -> str:
    """The outcome in two sentences."""
    if len(benchmarks) > 1:
        return f"{_counted(len(grouped), 'experiment')} on {len(benchmarks)} streams, each with a frozen backbone."
    seen, first = grouped[0].classes_seen, grouped[0]
    who = first.label if len(grouped) == 1 else f"{len(grouped)} methods"
    stream = f"{_counted(seen[-1], 'class')} in {_counted(len(seen), 'task')}"
    best = max(grouped, key=lambda series: _mean(series, lambda r: r.last))
    last = percent_text(_mean(best, lambda r: r.last))
    average = percent_text(_mean(best, lambda r: r.average))
    won = f"{best.label} ends highest" if len(grouped) > 1 else "It ends"
    outcome = f"{won} at {last} %, {average} % on average over the stages."
    return f"{who} met {stream} on a frozen {first.benchmark.backbone}. {outcome}"


def _facts(benchmark: BenchmarkKey, members: list[Series]) -> list[tuple[str, str]]:
    first = members[0].records[0]
    seeds = list(dict.fromkeys(seed for series in members for seed in series.seeds))
    images = first.test_images[-1]
    return [
        ("Dataset", benchmark.dataset),
        ("Protocol", benchmark.protocol),
        ("Classes", f"{sum(first.task_sizes)} in {_counted(len(first.task_sizes), 'task')}"),
        ("Backbone", f"{benchmark.backbone}, frozen, {count_text(first.parameters.backbone)} parameters"),
        ("Methods", ", ".join(s.label for s in members) if len(members) <= MANY else str(len(members))),
        ("Seeds" if len(seeds) > 1 else "Seed", ", ".join(str(seed) for seed in seeds)),
        ("Test images", f"{images:,} at the last stage"),
    ]


def _tasks(record: RunRecord) -> list[str]:
    """The class names of each task."""
    names, ends = [plain(name) for name in record.classes], np.cumsum(record.task_sizes)
    starts = ends - record.task_sizes
    return [", ".join(names[start:end]) for start, end in zip(starts, ends, strict=True)] if names else []


def _notes(grouped: list[Series]) -> list[str]:
    found = [f"{s.label}: {plain(note)}" for s in grouped for r in s.records for note in r.notes]
    return list(dict.fromkeys(found))


def _curve_words(members: list[Series]) -> str:
    """The curve for those who cannot see it."""
    parts = []
    for series in members:
        curve, seen = series.curves().mean(axis=0), series.classes_seen
        start, end = f"{curve[0]:.1f} % with {seen[0]} classes", f"{curve[-1]:.1f} % with {seen[-1]}"
        parts.append(f"{series.label}: from {start} to {end}.")
    return f"Line chart of top-1 accuracy over the classes seen. {' '.join(parts)}"


def _map_words(label: str, per_task: list[list[float | None]]) -> str:
    final = ", ".join(NOTHING if value is None else f"{value:.0f}" for value in per_task[-1])
    return f"{label}: accuracy on each task after each stage. After the last, task by task: {final} %."


def _counted(count: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


# --- figures --------------------------------------------------------------------------------------


def _stages(members: list[Series]) -> list[list[str]]:
    """The numbers behind the curve, a row per stage. Settings may cut a stream differently."""
    curves = [dict(zip(s.classes_seen, s.curves().mean(axis=0), strict=True)) for s in members]
    images = {
        seen: n for s in members for seen, n in zip(s.classes_seen, s.records[0].test_images, strict=True)
    }
    rows = []
    for seen in sorted(images):
        values = [percent_text(curve[seen]) if seen in curve else NOTHING for curve in curves]
        rows.append([str(seen), f"{images[seen]:,}", *values])
    return rows


def _costs(members: list[Series]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Groups of rows, a column per series; where seeds differ, their mean."""

    def row(
        name: str, show: Callable[[float], str], read: Callable[[RunRecord], float | None]
    ) -> tuple[str, list[str]]:
        found = [series.values(read) for series in members]
        return name, [show(float(np.mean(values))) if values else NOTHING for values in found]

    return [
        (
            "Accuracy",
            [
                row("Top-5 after the last stage, %", percent_text, lambda r: r.top5[-1]),
                row("Right task after the last stage, %", percent_text, lambda r: r.task_id_accuracy[-1]),
                row("Backward transfer, points", percent_text, lambda r: r.backward_transfer),
            ],
        ),
        (
            "Parameters",
            [
                row("Backbone, frozen", count_text, lambda r: r.parameters.backbone),
                row("Trained, all tasks", count_text, lambda r: r.parameters.trained_in_all),
                row("Trained, mean per task", count_text, lambda r: r.parameters.trained_per_task),
                row("Stored beside the backbone", count_text, lambda r: r.parameters.stored),
            ],
        ),
        (
            "Forward passes (image × subspace)",
            [
                row("Training", count_text, lambda r: r.forward_passes.train),
                row("Prototypes", count_text, lambda r: r.forward_passes.prototypes),
                row("Evaluation", count_text, lambda r: r.forward_passes.evaluation),
                row("Repeated", count_text, lambda r: r.passes_repeated),
            ],
        ),
        (
            "Seconds",
            [
                row("Training", seconds_text, lambda r: r.seconds.train),
                row("Prototypes", seconds_text, lambda r: r.seconds.prototypes),
                row("Evaluation", seconds_text, lambda r: r.seconds.evaluation),
                row("Total", seconds_text, lambda r: r.seconds.total),
            ],
        ),
        ("Memory", [row("Peak, MB", lambda value: f"{value / 1e6:,.0f}", lambda r: r.peak_memory)]),
    ]


def _config(series: Series, name_benchmark: bool) -> dict[str, str]:
    seeds = ", ".join(str(seed) for seed in series.seeds)
    label = f"{series.label} · {series.benchmark}" if name_benchmark else series.label
    config = series.records[0].config
    text = json.dumps({} if config is None else config.as_json(), indent=2, ensure_ascii=False)
    return {"label": label, "seeds": seeds, "text": text}


def _versions(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Usually one set; several where the records were not made by the same installation."""
    sets = [{plain(k): plain(v) for k, v in record.versions.items()} for record in records]
    return [found for i, found in enumerate(sets) if found and found not in sets[:i]]


def _mean(series: Series, read: Callable[[RunRecord], float | None]) -> float:
    return float(np.mean(series.values(read)))


def _inline(figure: Figure, prefix: str, words: str, kind: str = "map") -> Markup:
    """A figure as an <svg> element that takes its colours from the page and its words from us."""
    document = drawing.svg(figure, transparent=True).decode("utf-8")
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # A page may hold many drawings, whose ids and style rules would otherwise meet.
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'((?:xlink:)?href="|url\()#', rf"\1#{prefix}-", body)
    for colour, name in THEME.items():
        body = body.replace(colour, f"var(--{name})")
    width, height = (figure.get_size_inches() * 72).round().astype(int)
    opening = (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" style="max-width: {width * 1.75:.0f}px" '
        'role="img" '
        f'aria-label="{escape(words)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, body, count=1))
