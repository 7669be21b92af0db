from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.errors import EaseError
from ease.streams import Dataset, ImageSet, class_order, make_stream, order_from_file, task_sizes


def tiny(classes: int = 5, per_class: int = 2, keep_order: bool = False) -> Dataset:
    """A dataset whose images carry (class, number within the class) in their first pixels."""
    labels = np.tile(np.arange(classes), per_class)  # interleaved, so that sorting by class is visible
    pixels = np.zeros((len(labels), 4, 4, 3), np.uint8)
    pixels[:, 0, 0, 0] = labels
    pixels[:, 0, 0, 1] = np.repeat(np.arange(per_class), classes)
    images = ImageSet.of_arrays(pixels, labels)
    names = tuple(f"class {c}" for c in range(classes))
    return Dataset("tiny", names, images, images.take(range(classes)), keep_order=keep_order)


@pytest.mark.parametrize(
    ("protocol", "classes", "sizes"),
    [
        ("B0 Inc5", 20, [5, 5, 5, 5]),
        ("B0-Inc5", 20, [5, 5, 5, 5]),
        ("b0 inc5", 12, [5, 5, 2]),
        ("B0,Inc5", 5, [5]),
        ("b_50-INC 10", 100, [50, 10, 10, 10, 10, 10]),
        ("B100 Inc50", 200, [100, 50, 50]),
        ("B10 Inc7", 10, [10]),
        ("B6 Inc7", 10, [6, 4]),
    ],
)
def test_protocols_of_the_paper_are_cut_as_written(protocol: str, classes: int, sizes: list[int]) -> None:
    assert task_sizes(protocol, classes) == sizes


@settings(deadline=None)
@given(classes=st.integers(1, 300), base=st.integers(0, 300), increment=st.integers(1, 300))
def test_a_split_covers_every_class_once_or_is_refused(classes: int, base: int, increment: int) -> None:
    protocol = f"B{base} Inc{increment}"
    first = base or increment
    if first > classes:
        with pytest.raises(EaseError, match=f"wants {first} classes"):
            task_sizes(protocol, classes)
        return
    sizes = task_sizes(protocol, classes)
    assert sum(sizes) == classes
    assert sizes[0] == first
    assert all(size == increment for size in sizes[1:-1])
    assert all(0 < size <= increment for size in sizes[1:])


@pytest.mark.parametrize(
    "protocol", ["B0 Inc0", "B50 Inc7", "B0 Inc11", "", "Inc5", "B5", "ten", "B-1.5 Inc2", "B0 Inc٥"]
)
def test_an_impossible_protocol_is_one_clear_line(protocol: str) -> None:
    with pytest.raises(EaseError) as caught:
        task_sizes(protocol, 10)
    assert "protocol" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_default_class_order_is_the_released_one() -> None:
    np.random.seed(1993)
    assert class_order(100) == tuple(np.random.permutation(100))
    assert class_order(100)[:5] == (68, 56, 78, 8, 23)


def test_class_order_leaves_the_global_generator_alone() -> None:
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    class_order(50, seed=7)
    assert np.random.rand() == expected


@settings(deadline=None)
@given(classes=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_a_class_order_is_a_permutation(classes: int, seed: int) -> None:
    assert sorted(class_order(classes, seed)) == list(range(classes))


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(EaseError, match="seed -1"):
        class_order(3, -1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("order.txt", "cat\n\n  ant \nbee\n"),
        ("order.txt", "2\n0\n1\n"),
        ("order.txt", "\ufeffcat\r\nant\r\nbee"),
        ("order.json", '["cat", "ant", "bee"]'),
        ("order.json", "[2, 0, 1]"),
        ("order.txt", "[2, 0, 1]"),
    ],
)
def test_an_order_can_be_names_or_indices_in_lines_or_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert order_from_file(tmp_path / name, ["ant", "bee", "cat"]) == (2, 0, 1)


def test_numbers_that_are_class_names_are_names_in_text_and_indices_in_json(tmp_path: Path) -> None:
    names = ["1", "2", "0"]
    (tmp_path / "order.txt").write_text("0\n1\n2\n")
    (tmp_path / "order.json").write_text(json.dumps([0, 1, 2]))
    assert order_from_file(tmp_path / "order.txt", names) == (2, 0, 1)
    assert order_from_file(tmp_path / "order.json", names) == (0, 1, 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cat\nant\nbeee", "did you mean 'bee'"),
        ("cat\nant", "leaves out 1 of 3 classes.*'bee'"),
        ("cat\nant\nbee\ncat", "'cat' more than once"),
        ("0\n1\n3", "class 3"),
        ("", "leaves out 3"),
        ("[0, 1", "JSON"),
        ('[0, 1, {"a": 2}]', "list of class names"),
        ("[0, 1, 2.5]", "list of class names"),
        ("[true, 0, 2]", "list of class names"),
        ("[" * 3000, "nested too deeply"),
        ("[" * 100 + "]" * 100, "nested deeper"),
        ("[" + "9" * 5000 + "]", "JSON"),
        ("[" + "9" * 4000 + "]", "names class 9+"),
        ("x" * 100_000, "unknown class 'x+\\.\\.\\.'"),
    ],
)
def test_a_wrong_order_file_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "order.txt"
    path.write_text(text)
    with pytest.raises(EaseError, match=complaint) as caught:
        order_from_file(path, ["ant", "bee", "cat"])
    assert "order.txt" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_missing_or_binary_order_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match=r"class order file '.+nothing.txt': cannot read .+ does not exist"):
        order_from_file(tmp_path / "nothing.txt", ["a"])
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(EaseError, match="not UTF-8"):
        order_from_file(tmp_path / "binary.txt", ["a"])


def test_a_stream_relabels_to_positions_class_by_class_in_file_order() -> None:
    stream = make_stream(tiny(5), "b0-inc2", order=(3, 1, 4, 0, 2))
    assert stream.protocol == "B0 Inc2"
    assert len(stream) == 3
    assert stream.class_names == ("class 3", "class 1", "class 4", "class 0", "class 2")
    assert [task.classes for task in stream.tasks] == [range(0, 2), range(2, 4), range(4, 5)]
    second = stream.tasks[1]
    assert second.names == ("class 4", "class 0")
    assert second.train.labels.tolist() == [2, 2, 3, 3]
    assert second.test.labels.tolist() == [2, 3]
    assert [second.train.image(i)[:2, 0, 0].tolist() for i in range(4)] == [[4, 0], [4, 1], [0, 0], [0, 1]]


def test_every_image_is_in_exactly_one_task() -> None:
    dataset = tiny(7, 3)
    stream = make_stream(dataset, "B3 Inc2", seed=5)
    seen = np.concatenate([task.train.indices for task in stream.tasks])
    assert sorted(seen) == list(range(len(dataset.train)))
    for task in stream.tasks:
        originals = [stream.class_order[label] for label in task.train.labels]
        assert originals == [int(task.train.image(i)[0, 0, 0]) for i in range(len(task.train))]


def test_a_dataset_may_keep_its_own_order() -> None:
    assert make_stream(tiny(5, keep_order=True), "B0 Inc2").class_order == (0, 1, 2, 3, 4)
    assert make_stream(tiny(5), "B0 Inc2").class_order == class_order(5)


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1), (0, 1, 3), (-1, 0, 1)])
def test_an_order_that_is_no_permutation_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(EaseError, match="the class order"):
        make_stream(tiny(3), "B0 Inc1", order=order)
