"""The paper's figures: what is drawn, that a method looks the same everywhere, that labels can be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ease import reporting
from ease.errors import EaseError
from ease.experiments.record import RunRecord, RunSeconds
from ease.reporting.figures import (
    SubspaceView,
    accuracy_against_cost,
    against_k,
    curve_panels,
    forgetting_by_task,
    heat_grid,
    passes_by_phase,
    running_time,
    save,
    svg,
    two_subspaces,
)
from ease.reporting.figures.drawing import MUTED, PAPER, method_styles
from ease.reporting.figures.trade_off import place_labels

Make = Callable[..., RunRecord]
MANY = [
    "ease",
    "simplecil",
    "ranpac",
    "adam-adapter",
    "adam-ssf",
    "adam-vpt-deep",
    "adam-vpt-shallow",
    "adam-finetune",
    "l2p",
    "dualprompt",
    "coda-prompt",
    "finetune",
    "finetune-adapter",
    "lwf",
    "sdc",
    "icarl",
    "der",
    "foster",
    "memo",
    "upper-bound",
]


def texts(fig: Figure) -> list[str]:
    found = [*fig.texts, *(text for axes in fig.axes for text in axes.texts)]
    return [text.get_text() for text in found]


def curves(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def ending(make: Make, method: str, last: float, **changes: Any) -> RunRecord:
    return make(method, stages=3, accuracy=[99.0, 95.0, last], last=last, **changes)


def look(line: Any) -> tuple[Any, ...]:
    return line.get_color(), line.get_linestyle(), line.get_marker(), line.get_markerfacecolor()


# --- curves ---------------------------------------------------------------------------------------


def test_each_panel_has_its_curves_and_the_gap_at_the_end(make_record: Make) -> None:
    first = [ending(make_record, "ease", 90.0), ending(make_record, "simplecil", 85.8)]
    second = [ending(make_record, "finetune", 40.0), ending(make_record, "ease", 80.0, dataset="digits")]
    second[0] = second[0].model_copy(update={"dataset": "digits"})
    fig = curve_panels([("Left", first), ("Right", second)])
    left, right, _legend = fig.axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["Left", "Right"]
    assert list(curves(left)["EASE"].get_ydata()) == [99.0, 95.0, 90.0]
    assert [text.get_text() for text in left.texts] == ["+4.2"]
    assert [text.get_text() for text in right.texts] == ["+40.0"]


def test_ceilings_and_short_streams_do_not_compete(make_record: Make) -> None:
    records = [
        ending(make_record, name, end) for name, end in (("ease", 90.0), ("l2p", 89.95), ("joint", 99.0))
    ]
    records.append(make_record("lwf", stages=2, accuracy=[99.0, 98.0], last=98.0))
    assert [text.get_text() for text in curve_panels([("", records)]).axes[0].texts] == ["+0.05"]
    assert not curve_panels([("", records[:1])]).axes[0].texts
    assert not curve_panels([("", records[::2])]).axes[0].texts


def test_a_method_looks_the_same_in_all_panels(make_record: Make) -> None:
    names = ["ease", "simplecil", "icarl"]
    fig = curve_panels(
        [
            ("one", [ending(make_record, name, 80.0 + i) for i, name in enumerate(names)]),
            ("two", [ending(make_record, name, 70.0 + i) for i, name in enumerate(reversed(names))]),
        ]
    )
    one, two = (curves(axes) for axes in fig.axes[:2])
    assert {name: look(line) for name, line in one.items()} == {
        name: look(line) for name, line in two.items()
    }


def test_twenty_methods_are_told_apart_and_kinds_at_a_glance(make_record: Make) -> None:
    records = [ending(make_record, name, 60.0 + i) for i, name in enumerate([*MANY, "joint"])]
    fig = curve_panels([("", records)])
    drawn = curves(fig.axes[0])
    assert len({look(line) for line in drawn.values()}) == len(MANY) + 1
    # In print, where colour is gone, line and marker must do. Hollow: exemplars. Grey: the ceiling.
    assert len({(*look(line)[1:3], line.get_markerfacecolor() == PAPER) for line in drawn.values()}) > 18
    hollow = {name for name, line in drawn.items() if line.get_markerfacecolor() == PAPER}
    assert hollow == {"iCaRL", "DER", "FOSTER", "MEMO", "Upper bound"}
    assert drawn["Joint"].get_color() == MUTED
    assert {"Exemplar-free", "Exemplar-based", "Ceiling"} <= set(texts(fig))
    assert set(drawn) <= set(texts(fig))


def test_one_kind_needs_no_heading(make_record: Make) -> None:
    fig = curve_panels([("", [ending(make_record, "ease", 80.0), ending(make_record, "l2p", 70.0)])])
    assert not any("xemplar" in text for text in texts(fig))


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (12, 3)])
def test_panels_stand_in_a_grid_inside_the_picture(make_record: Make, count: int, columns: int) -> None:
    records = [ending(make_record, "ease", 80.0), ending(make_record, "joint", 90.0)]
    fig = curve_panels([(f"panel {number}", records) for number in range(count)])
    boxes = [axes.get_position() for axes in fig.axes]
    assert len({round(box.x0, 4) for box in boxes[:-1]}) == columns
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    FigureCanvasAgg(fig).draw()
    width, height = fig.get_size_inches() * fig.dpi
    for box in (axes.get_tightbbox() for axes in fig.axes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    # The axis is named under the lowest panel of each column.
    assert sum(axes.get_xlabel() == "Classes seen" for axes in fig.axes) == columns


def test_styles_repeat_only_after_twenty_four() -> None:
    found = method_styles(["exemplar-free"] * 24, [False] * 24)
    assert len({(one.colour, one.line, one.marker) for one in found}) == 24


# --- parameters -----------------------------------------------------------------------------------


def stored(
    make: Make, names: list[str], amount: Callable[[int], int], last: Callable[[int], float]
) -> list[RunRecord]:
    return [
        ending(
            make, name, last(i), parameters={"backbone": 1, "trained": [0, amount(i)], "stored": amount(i)}
        )
        for i, name in enumerate(names)
    ]


def test_each_method_is_a_named_point(make_record: Make) -> None:
    records = stored(make_record, ["ease", "icarl", "l2p"], lambda i: 10 ** (4 + i), lambda i: 80.0 - i)
    fig = accuracy_against_cost(records)
    assert {"EASE", "iCaRL", "L2P"} <= set(texts(fig))
    points = [line for line in fig.axes[0].lines if line.get_marker() not in ("", "None", None)]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(4, 80), (5, 79), (6, 78)]
    assert [line.get_markerfacecolor() == PAPER for line in points] == [False, True, False]
    assert any("hollow: keeps exemplars" in text for text in texts(fig))
    assert [tick.get_text() for tick in fig.axes[0].get_xticklabels()] == ["10k", "100k", "1M"]


@pytest.mark.parametrize("crowded", [False, True])
def test_labels_of_points_do_not_overlap(make_record: Make, crowded: bool) -> None:
    draw = np.random.RandomState(3)
    exponents, ends = draw.uniform(4, 8, 20), draw.uniform(40, 90, 20)
    if crowded:
        exponents, ends = 6 + exponents / 80, 80 + ends / 90
        exponents[0] = 7.5
    records = stored(make_record, MANY, lambda i: int(10 ** exponents[i]), lambda i: float(ends[i]))
    fig = accuracy_against_cost(records)
    FigureCanvasAgg(fig).draw()
    boxes = [text.get_window_extent().shrunk(0.97, 0.9) for text in fig.axes[0].texts]
    assert len(boxes) == 20
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    width, height = fig.get_size_inches() * fig.dpi
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)


def test_a_label_with_room_stands_beside_its_point() -> None:
    ((x, y),) = place_labels([(2.0, 2.0)], [0.5], 0.13, (5.0, 4.0))
    assert y == 2.0
    assert 2.25 < x < 2.5
    ((x, _),) = place_labels([(4.9, 2.0)], [0.5], 0.13, (5.0, 4.0))
    assert x < 4.75


def test_a_label_lies_on_no_other_point() -> None:
    points = [(2.0, 2.0), (2.4, 2.0)]
    for x, y in place_labels(points, [0.6, 0.6], 0.13, (5.0, 4.0)):
        assert not any(abs(x - px) < 0.3 and abs(y - py) < 0.065 for px, py in points)


def test_a_method_that_trains_nothing_stands_at_zero(make_record: Make) -> None:
    records = stored(make_record, ["ease", "simplecil"], lambda i: 0 if i else 10**5, lambda i: 80.0 - i)
    ticks = accuracy_against_cost(records, "trained").axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["0", "50k", "100k"]
    with pytest.raises(EaseError, match="unknown cost 'kept'"):
        accuracy_against_cost(records, "kept")


def test_the_cost_can_be_the_cpu_seconds_of_learning(make_record: Make) -> None:
    records = [make_record("ease"), make_record("simplecil")]
    timed = [
        record.model_copy(update={"seconds": RunSeconds(learning_cpu=10.0 ** (i + 1))})
        for i, record in enumerate(records)
    ]
    axes = accuracy_against_cost(timed, "learning").axes[0]
    assert axes.get_xlabel() == "CPU seconds of learning, all tasks (log scale)"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10", "20", "50", "100"]
    with pytest.raises(EaseError, match=r"does not say its cpu seconds of learning.*run it again"):
        accuracy_against_cost([timed[0], records[1]], "learning")


# --- grids ----------------------------------------------------------------------------------------


def test_the_grid_shows_its_numbers_and_frames_the_best() -> None:
    fig = heat_grid([[81.5, 81.73], [np.nan, 80.1]], "r", [8, 16], "alpha", [0.1, 0.3], "Robustness")
    axes = fig.axes[0]
    assert [text.get_text() for text in axes.texts] == ["81.50", "81.73", "80.10"]
    assert [text.get_fontweight() for text in axes.texts] == ["normal", "bold", "normal"]
    (frame,) = axes.patches
    assert (round(frame.get_x()), round(frame.get_y())) == (1, 0)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["8", "16"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("alpha", "r")
    assert not heat_grid([[5.0, 5.0]], "", [1], "", [1, 2]).axes[0].patches


def test_a_grid_of_another_shape_is_refused() -> None:
    with pytest.raises(EaseError, match="2 rows and 1 columns cannot hold"):
        heat_grid([[1.0, 2.0]], "r", [1, 2], "c", [1])
    with pytest.raises(EaseError, match="no value"):
        heat_grid([[np.nan]], "r", [1], "c", [1])


def test_forgetting_is_shown_task_by_task(make_record: Make) -> None:
    per_task = [[90.0], [95.0, 80.0], [60.0, 82.0, 99.0]]
    fig = forgetting_by_task([make_record(stages=3, per_task=per_task), make_record("simplecil", stages=3)])
    shown = [text.get_text() for text in fig.axes[0].texts]
    # From 95, its best, to 60; the second task has gained.
    assert shown[:2] == ["35", "-2"]
    assert len(shown) == 4
    with pytest.raises(EaseError, match="single task"):
        forgetting_by_task([make_record(stages=1)])


# --- complement -----------------------------------------------------------------------------------


def test_constants_are_level_lines_with_their_names_at_the_right() -> None:
    fig = against_k([1, 5, 20], {"PIS": [76.0, 78.0, 80.0]}, {"PPS": 81.7, "LR": 79.9, "OT": 79.85}, "CIFAR")
    axes = fig.axes[0]
    assert axes.get_xscale() == "log"
    drawn = curves(axes)
    assert list(drawn["PIS"].get_xdata()) == [1, 5, 20]
    assert set(drawn["PPS"].get_ydata()) == {81.7}
    assert {"80.00  PIS", "81.70  PPS", "79.90  LR", "79.85  OT"} <= set(texts(fig))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "5", "20"]
    FigureCanvasAgg(fig).draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.shrunk(1, 0.9).overlaps(b.shrunk(1, 0.9)) for a, b in combinations(boxes, 2))
    assert max(box.x1 for box in boxes) <= fig.get_size_inches()[0] * fig.dpi


@pytest.mark.parametrize(
    ("ks", "curve", "words"),
    [
        ([0, 1], [1, 2], "positive"),
        ([5, 1], [1, 2], "growing"),
        ([1, 5], [1], "1 values for 2"),
        ([], [], "nothing"),
    ],
)
def test_values_of_k_must_make_sense(ks: list[int], curve: list[float], words: str) -> None:
    with pytest.raises(EaseError, match=words):
        against_k(ks, {"PIS": curve}, {})


# --- subspaces ------------------------------------------------------------------------------------


def view(title: str = "Subspace 1", **changes: Any) -> SubspaceView:
    draw = np.random.RandomState(0)
    fields: dict[str, Any] = {
        "points": draw.normal(size=(6, 2)),
        "labels": [0, 0, 0, 1, 1, 1],
        "prototypes": draw.normal(size=(2, 2)),
        "prototype_labels": [0, 1],
        "title": title,
        "classes": ["cat", "dog"],
    }
    return SubspaceView(**{**fields, **changes})


def test_images_are_dots_and_prototypes_stars_of_the_same_colour() -> None:
    fig = two_subspaces([view(), view("Subspace 2")])
    assert [axes.get_title(loc="left") for axes in fig.axes[:2]] == ["Subspace 1", "Subspace 2"]
    cats, dogs, prototypes = fig.axes[0].collections
    assert [len(c.get_offsets()) for c in (cats, dogs, prototypes)] == [3, 3, 2]
    assert [to_hex(c) for c in prototypes.get_facecolor()] == [
        to_hex(c.get_facecolor()[0]) for c in (cats, dogs)
    ]
    assert {"cat", "dog", "dots: images, stars: prototypes"} <= set(texts(fig))


def test_later_tasks_are_triangles_in_the_picture_and_its_legend() -> None:
    fig = two_subspaces([view(class_tasks=[0, 1])])
    cats, dogs, _ = fig.axes[0].collections
    corners = [len(each.get_paths()[0].vertices) for each in (cats, dogs)]
    assert corners[1] == 4 < corners[0]  # a closed triangle, and a circle of many pieces
    assert [line.get_marker() for line in fig.axes[1].lines] == ["o", "^"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": [0]}, "6 images have 1 labels"),
        ({"prototype_labels": [0, 2]}, "names none of 2 classes"),
        ({"points": np.zeros((6, 3))}, "points of the plane"),
        ({"class_tasks": [0]}, "2 classes have 1 tasks"),
    ],
)
def test_views_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EaseError, match=words):
        two_subspaces([view(**changes)])


# --- costs ----------------------------------------------------------------------------------------


def test_bars_add_up_to_the_total_at_their_end(make_record: Make) -> None:
    spent = {"train": 400.0, "prototypes": 100.0, "evaluation": 100.0, "total": 600.0}
    quick = {phase: value / 4 for phase, value in spent.items()}
    fig = running_time([make_record(seconds=spent), make_record("simplecil", seconds=quick)])
    axes = fig.axes[0]
    assert axes.get_xlabel() == "Running time, minutes"
    assert [text.get_text() for text in axes.texts] == ["2.5", "10.0"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["SimpleCIL", "EASE"]
    widths = [patch.get_width() for patch in axes.patches]
    assert sum(widths[:3]) == pytest.approx(2.5)
    assert widths[3] == pytest.approx(400 / 60)
    assert {"Training", "Prototypes", "Evaluation"} <= set(texts(fig))


def test_seeds_share_a_bar_and_passes_have_their_own_figure(make_record: Make) -> None:
    passes = [{"train": 1000 * n, "prototypes": 0, "evaluation": 500} for n in (1, 3)]
    fig = passes_by_phase([make_record(seed=n, forward_passes=p) for n, p in enumerate(passes)])
    assert [text.get_text() for text in fig.axes[0].texts] == ["2.5k"]


# --- files ----------------------------------------------------------------------------------------


def test_every_figure_is_written_in_three_formats_and_names_are_no_formulas(
    make_record: Make, tmp_path: Path
) -> None:
    records = [make_record(stages=2, dataset="a$b"), make_record("x$^$", stages=2, dataset="a$b")]
    drawn = {
        "panels": curve_panels([("$x", records)]),
        "parameters": accuracy_against_cost(records),
        "grid": heat_grid([[1.0]], "$r", ["$"], "$c", ["$"], "$"),
        "k": against_k([1], {"$": [80.0]}, {"^$": 79.0}),
        "subspaces": two_subspaces([view("$", classes=["$", "_$"])]),
        "time": running_time(records),
        "forgetting": forgetting_by_task(records),
    }
    for name, fig in drawn.items():
        paths = save(fig, tmp_path / name, ("svg", "pdf", "png"))
        starts = [path.read_bytes()[:4] for path in paths]
        assert starts == [b"<?xm", b"%PDF", b"\x89PNG"]
    assert svg(curve_panels([("$x", records)])) == (tmp_path / "panels.svg").read_bytes()


def test_pyplot_is_never_imported() -> None:
    (room,) = reporting.__path__
    for path in Path(room).rglob("*.py"):
        assert not re.search(r"import.*pyplot", path.read_text()), path


def test_nothing_to_draw_is_said_in_one_line() -> None:
    with pytest.raises(EaseError, match="no panel"):
        curve_panels([])
    with pytest.raises(EaseError, match="no record"):
        curve_panels([("empty", [])])
    with pytest.raises(EaseError, match="no subspace"):
        two_subspaces([])
