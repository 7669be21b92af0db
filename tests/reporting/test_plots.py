"""Curves and maps: what is drawn, where the labels go, and that equal records give equal files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.experiments.record import RunRecord
from ease.reporting.figures import accuracy_curves, heat_floor, save, svg, task_heatmap
from ease.reporting.figures.drawing import PALETTE, spread_apart

Make = Callable[..., RunRecord]
NAMES = "ease simplecil adam finetune lwf sdc l2p dualprompt coda der foster memo icarl".split()  # noqa: SIM905


def texts(fig: Figure) -> list[str]:
    found = [*fig.texts, *(text for axes in fig.axes for text in axes.texts)]
    return [text.get_text() for text in found]


def curves(fig: Figure) -> dict[str, Any]:
    return {line.get_label(): line for line in fig.axes[0].lines if not line.get_label().startswith("_")}


def many_methods(make_record: Make) -> list[dict]:
    """Thirteen curves that end within two points: the labels cannot all stand where the curves end."""
    return [
        make_record(name, accuracy=[99 - number * 0.15 - b for b in range(10)])
        for number, name in enumerate(NAMES)
    ]


def test_each_method_is_a_curve_over_the_classes_seen(three_methods: list[RunRecord]) -> None:
    drawn = curves(accuracy_curves(three_methods))
    assert list(drawn) == ["EASE", "SimpleCIL", "Finetune"]
    x, y = drawn["EASE"].get_data()
    assert list(x) == list(range(5, 51, 5))
    assert list(y) == pytest.approx(three_methods[0].accuracy)


def test_a_base_task_shifts_the_first_point(make_record: Make) -> None:
    record = make_record(task_sizes=[50, *[5] * 9])
    x, _ = curves(accuracy_curves([record]))["EASE"].get_data()
    assert list(x[:3]) == [50, 55, 60]


def test_curves_differ_in_colour_and_marker(three_methods: list[RunRecord]) -> None:
    drawn = curves(accuracy_curves(three_methods)).values()
    assert [line.get_color() for line in drawn] == list(PALETTE[:3])
    assert len({line.get_marker() for line in drawn}) == 3


def test_no_two_of_many_curves_look_alike(make_record: Make) -> None:
    drawn = curves(accuracy_curves(many_methods(make_record))).values()
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in drawn}) == len(NAMES)


def test_seeds_become_a_mean_with_a_band(make_record: Make) -> None:
    records = [make_record(seed=seed) for seed in (1, 2, 3)]
    fig = accuracy_curves(records)
    (line,) = curves(fig).values()
    assert list(line.get_ydata()) == pytest.approx(np.mean([r.accuracy for r in records], axis=0))
    assert len(fig.axes[0].collections) == 1
    assert any("3 seeds" in text for text in texts(fig))
    assert not accuracy_curves(records[:1]).axes[0].collections


def test_every_curve_is_labelled_with_its_last_value(three_methods: list[RunRecord]) -> None:
    shown = texts(accuracy_curves(three_methods))
    for record, name in zip(three_methods, ("EASE", "SimpleCIL", "Finetune"), strict=True):
        assert name in shown
        assert f"{record.last:.1f}" in shown


def test_labels_neither_overlap_nor_leave_the_picture(make_record: Make) -> None:
    fig = accuracy_curves(many_methods(make_record))
    FigureCanvasAgg(fig).draw()
    boxes = [text.get_window_extent() for text in fig.axes[0].texts if text.get_text()[0].isalpha()]
    assert len(boxes) == len(NAMES)
    boxes.sort(key=lambda box: box.y0)
    for lower, upper in pairwise(boxes):
        assert lower.y1 <= upper.y0 + 1
    width, height = fig.get_size_inches() * fig.dpi
    assert all(box.y0 >= 0 and box.y1 <= height and box.x1 <= width for box in boxes)


def test_long_names_make_room_for_themselves(make_record: Make) -> None:
    long = make_record(dataset="a-dataset-with-quite-a-long-name", protocol="B0 Inc5")
    fig = accuracy_curves([make_record(), long])
    right = max(text.get_window_extent().x1 for text in fig.axes[0].texts)
    assert right <= fig.get_size_inches()[0] * fig.dpi


@pytest.mark.parametrize("width", [2.0, 5.5])
def test_titles_stay_inside_the_picture(make_record: Make, width: float) -> None:
    records = [make_record(seed=seed, dataset="d" * 80) for seed in (1, 2)]
    fig = accuracy_curves(records, width=width)
    assert all(text.get_window_extent().x1 <= fig.get_size_inches()[0] * fig.dpi for text in fig.texts)


def test_streams_in_one_picture_are_named_at_their_curves(make_record: Make) -> None:
    shown = texts(accuracy_curves([make_record(), make_record(dataset="digits", stages=5)]))
    assert "EASE · digits" in shown
    assert "B0 Inc5 · ease-vit" in shown


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=15),
    st.floats(0.1, 6),
)
def test_labels_are_spread_apart_in_order_and_in_bounds(wanted: list[float], gap: float) -> None:
    placed = spread_apart(wanted, gap, 0, 100)
    order = np.argsort(wanted, kind="stable")
    sorted_places = np.array(placed)[order]
    assert (np.diff(sorted_places) >= gap - 1e-9).all()
    assert sorted_places[0] >= -1e-9
    assert sorted_places[-1] <= max(100, (len(wanted) - 1) * gap) + 1e-9


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread_apart([10, 90, 50], 5, 0, 100) == [10, 90, 50]
    assert spread_apart([50, 50], 4, 0, 100) == [48, 52]


def test_the_map_is_a_lower_triangle_with_a_number_in_each_cell(make_record: Make) -> None:
    record = make_record(stages=4)
    fig = task_heatmap(record.per_task, "EASE")
    (squares,) = fig.axes[0].collections
    assert len(squares.get_paths()) == 10
    numbers = [text.get_text() for text in fig.axes[0].texts]
    assert numbers == [f"{value:.1f}" for row in record.per_task for value in row]


def test_a_large_map_has_a_scale_in_place_of_numbers() -> None:
    count = 30
    per_task = [[float(100 - b + t) for t in range(b + 1)] for b in range(count)]
    fig = task_heatmap(per_task, "EASE")
    assert not fig.axes[0].texts
    assert len(fig.axes) == 2
    assert len(fig.axes[0].get_xticks()) <= 12


def test_a_task_without_test_images_stays_blank(make_record: Make) -> None:
    record = make_record(stages=3, per_task=[[90.0], [80.0, None], [70.0, None, 95.0]])
    assert len(task_heatmap(record.per_task, "EASE").axes[0].texts) == 4


def test_maps_to_be_compared_share_where_their_colours_begin(three_methods: list[RunRecord]) -> None:
    assert heat_floor([r.per_task for r in three_methods]) == 30.0
    assert heat_floor([three_methods[0].per_task]) == 90.0
    (squares,) = task_heatmap(three_methods[0].per_task, "", lowest=30.0).axes[0].collections
    assert squares.get_clim() == (30.0, 100.0)


@pytest.mark.parametrize("stages", [1, 2])
def test_short_runs_can_be_drawn(make_record: Make, stages: int) -> None:
    record = make_record(stages=stages)
    assert svg(accuracy_curves([record])).startswith(b"<?xml")
    assert svg(task_heatmap(record.per_task, "EASE")).startswith(b"<?xml")


def test_a_name_is_not_a_formula(make_record: Make) -> None:
    record = make_record(dataset=r"a$\frac$b", method="x$^$")
    assert r"a$\frac$b · B0 Inc5 · ease-vit" in texts(accuracy_curves([record]))
    svg(accuracy_curves([record]))
    svg(task_heatmap(record.per_task, "EASE"))


def test_equal_records_give_equal_files(make_record: Make, tmp_path: Path) -> None:
    for number in (1, 2):
        record = make_record(stages=4)
        save(accuracy_curves([record]), tmp_path / f"curve{number}", ("svg", "png", "pdf"))
        save(task_heatmap(record.per_task, "EASE"), tmp_path / f"map{number}")
    for name in ("curve{}.svg", "curve{}.png", "curve{}.pdf", "map{}.svg", "map{}.png"):
        first, second = ((tmp_path / name.format(number)).read_bytes() for number in (1, 2))
        assert first == second
    drawing = (tmp_path / "curve1.svg").read_text()
    assert "dc:date" not in drawing
    assert "<image" not in drawing


def test_saving_keeps_dots_in_the_name_and_makes_the_folder(make_record: Make, tmp_path: Path) -> None:
    paths = save(accuracy_curves([make_record(stages=2)]), tmp_path / "new" / "alpha-0.1")
    assert [path.name for path in paths] == ["alpha-0.1.svg", "alpha-0.1.png"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["alpha-0.1.png", "alpha-0.1.svg"]
    with pytest.raises(EaseError, match="did you mean 'png'"):
        save(accuracy_curves([make_record(stages=2)]), tmp_path / "x", ("pgn",))


def test_drawing_leaves_matplotlib_as_it_was(make_record: Make) -> None:
    before = dict(matplotlib.rcParams)
    svg(accuracy_curves([make_record(stages=2)]))
    assert dict(matplotlib.rcParams) == before
