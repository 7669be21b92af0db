"""`ease compare`: what differs, what came out, and whether it could be chance."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ease.errors import EaseError
from ease.experiments.record import RunRecord, find_records
from ease.reporting.compare import Comparison, compare

Make = Callable[..., RunRecord]


def keep(folder: Path, record: RunRecord) -> Path:
    folder.mkdir(parents=True)
    record.write(folder / "record.json")
    return folder


def keep_predictions(folder: Path, stage: int, right: list[bool], ids: list[str]) -> None:
    """Two classes; every image is of class 1."""
    logits = np.array([[0.0, 1.0] if r else [1.0, 0.0] for r in right])
    arrays = {"logits": logits, "labels": np.ones(len(right), dtype=int), "ids": np.array(ids)}
    np.savez(folder / "predictions.npz", **{f"stage{stage}/{name}": value for name, value in arrays.items()})


def printed(found: Comparison) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(found)
    return console.file.getvalue()  # type: ignore[attr-defined]


def two(tmp_path: Path, make: Make, **changes: Any) -> Comparison:
    """EASE against a changed EASE, one seed."""
    first = make(stages=3)
    return compare(keep(tmp_path / "a", first), keep(tmp_path / "b", make(**{"stages": 3, **changes})))


def test_it_says_what_was_asked_and_under_which_circumstances(tmp_path: Path, make_record: Make) -> None:
    config = {"method": "ease", "seed": 1, "devices": 2, "settings": {"alpha": 0.3, "epochs": 20}}
    found = two(tmp_path, make_record, config=config, versions={"torch": "2.6.0"})
    assert found.settings == [("alpha", "0.1", "0.3")]
    assert ("devices", "1", "2") in found.circumstances
    assert ("torch", "2.13.0", "2.6.0") in found.circumstances
    text = printed(found)
    assert text.index("alpha") < text.index("Circumstances") < text.index("torch") < text.index("Results")


def test_settings_of_one_method_alone_do_not_fill_the_screen(tmp_path: Path, make_record: Make) -> None:
    found = two(tmp_path, make_record, method="simplecil", config={"method": "simplecil", "seed": 1})
    assert ("method", "ease", "simplecil") in found.settings
    assert "A alone has epochs 20, " in printed(found)
    assert "Both have the same settings" in printed(two(tmp_path / "again", make_record))


def test_differences_are_b_less_a(tmp_path: Path, make_record: Make) -> None:
    found = two(tmp_path, make_record, average=90.0, seconds={"train": 1.0, "total": 100.0})
    by_key = {result.key: result for result in found.results}
    assert list(by_key) == ["average", "last", "forgetting", "backward_transfer", "passes", "seconds"]
    assert by_key["average"].difference == pytest.approx(90.0 - make_record(stages=3).average)
    assert by_key["seconds"].difference == pytest.approx(26.5)
    assert by_key["last"].difference == 0
    assert "+26.5" in printed(found)


def test_tasks_are_compared_after_the_last_stage(tmp_path: Path, make_record: Make) -> None:
    per_task = [[90.0], [80.0, 95.0], [70.0, None, 99.0]]
    found = two(tmp_path, make_record, per_task=per_task)
    own = make_record(stages=3).per_task[-1]
    assert [task.key for task in found.tasks] == ["1", "2", "3"]
    assert found.tasks[0].difference == pytest.approx(70.0 - own[0])
    assert found.tasks[1].difference is None
    assert "–" in printed(found)


def test_other_orders_of_classes_have_no_tasks_in_common(tmp_path: Path, make_record: Make) -> None:
    other = [f"glyph {number}" for number in reversed(range(15))]
    found = two(tmp_path, make_record, classes=other)
    assert found.tasks == []
    assert any("different orders" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "digits"}, "glyphs B0 Inc5 and B on digits"),
        ({"protocol": "B0 Inc10"}, "streams differ"),
        ({"task_sizes": [5, 5, 4]}, "numbers of classes"),
        ({"test_images": [100, 200, 250]}, "300 images and B on 250"),
    ],
)
def test_different_streams_are_not_comparable(
    tmp_path: Path, make_record: Make, changes: dict, words: str
) -> None:
    found = two(tmp_path, make_record, **changes)
    assert words in found.obstacles[0]
    assert "not comparable: " in printed(found)
    assert not found.as_json()["comparable"]
    assert (found.tasks, found.tests, found.images) == ([], {}, None)


def test_another_backbone_is_a_comparison_all_the_same(tmp_path: Path, make_record: Make) -> None:
    found = two(tmp_path, make_record, backbone="vit_tiny")
    assert not found.obstacles
    assert found.settings == [("backbone", "ease-vit", "vit_tiny")]


# --- seeds ----------------------------------------------------------------------------------------


def seeds(folder: Path, make: Make, method: str, numbers: range, lift: float = 0.0) -> Path:
    for seed in numbers:
        last = 80.0 + seed + lift + (seed % 3) * lift / 10
        keep(folder / f"seed{seed}", make(method, seed=seed, stages=2, last=last))
    return folder


def test_common_seeds_are_paired(tmp_path: Path, make_record: Make) -> None:
    a = seeds(tmp_path / "a", make_record, "ease", range(1, 7))
    b = seeds(tmp_path / "b", make_record, "simplecil", range(2, 8), lift=2.0)
    found = compare(a, b)
    assert found.seeds == [2, 3, 4, 5, 6]
    test = found.tests["last"]
    # Lifts of seeds 2..6 are 2.4, 2.0, 2.2, 2.4, 2.0.
    assert test.mean == pytest.approx(2.2)
    assert test.exact_p == 2 / 2**5
    assert any("only one side has seed 1, 7" in remark for remark in found.remarks)
    text = printed(found)
    assert "Across 5 common seeds" in text
    assert "cannot fall below 0.062" in text
    assert "±" in text


def test_few_seeds_come_with_a_caution_and_one_with_no_test(tmp_path: Path, make_record: Make) -> None:
    a = seeds(tmp_path / "a", make_record, "ease", range(1, 4))
    b = seeds(tmp_path / "b", make_record, "simplecil", range(1, 4), lift=1.0)
    assert any("3 seeds are too few" in remark for remark in compare(a, b).remarks)
    alone = compare(a / "seed1", b / "seed1" / "record.json")
    assert alone.tests == {}
    assert any("no test across seeds" in remark for remark in alone.remarks)
    apart = compare(a / "seed1", b / "seed2")
    assert apart.seeds == []
    assert any("no seed in common" in remark for remark in apart.remarks)


# --- images ---------------------------------------------------------------------------------------


def test_one_seed_is_tested_on_its_images_whatever_their_order(tmp_path: Path, make_record: Make) -> None:
    a, b = (keep(tmp_path / name, make_record(stages=2)) for name in "ab")
    ids = [f"{number:02d}" for number in range(10)]
    right_a, right_b = [True] * 4 + [False] * 6, [False] + [True] * 9
    keep_predictions(a, 2, right_a, ids)
    keep_predictions(b, 2, right_b[::-1], ids[::-1])
    images = compare(a, b).images
    assert images is not None
    assert (images.images, images.only_a, images.only_b) == (10, 1, 6)
    assert images.p == pytest.approx(2 * (1 + 7) / 2**7)
    assert "A alone is right about 1, B alone about 6" in printed(compare(a, b)).replace("\n", " ")


def test_other_images_or_none_give_no_test(tmp_path: Path, make_record: Make) -> None:
    a, b = (keep(tmp_path / name, make_record(stages=2)) for name in "ab")
    keep_predictions(a, 2, [True, False], ["x", "y"])
    assert compare(a, b).images is None
    keep_predictions(b, 2, [True, False], ["x", "z"])
    found = compare(a, b)
    assert found.images is None
    assert any("different images" in remark for remark in found.remarks)
    (b / "predictions.npz").write_bytes(b"no archive")
    with pytest.raises(EaseError, match=r"predictions\.npz is damaged"):
        compare(a, b)
    keep_predictions(b, 1, [True], ["x"])
    with pytest.raises(EaseError, match=r"predictions\.npz is damaged"):
        compare(a, b)


# --- what can be named ----------------------------------------------------------------------------


def test_json_holds_the_same(tmp_path: Path, make_record: Make) -> None:
    a = seeds(tmp_path / "a", make_record, "ease", range(1, 3))
    b = seeds(tmp_path / "b", make_record, "simplecil", range(1, 3), lift=1.0)
    found = json.loads(json.dumps(compare(a, b).as_json()))
    assert found["a"]["seeds"] == found["common_seeds"] == [1, 2]
    assert found["results"][1]["difference"] == pytest.approx(1.15)
    assert found["across_seeds"]["last"]["count"] == 2
    assert found["across_images"] is None
    assert [task["key"] for task in found["per_task"]] == ["1", "2"]


def test_a_side_is_one_experiment(tmp_path: Path, make_record: Make) -> None:
    mixed = tmp_path / "mixed"
    run = keep(mixed / "ease", make_record())
    keep(mixed / "simplecil", make_record("simplecil"))
    with pytest.raises(EaseError, match=r"2 experiments .*EASE on .*SimpleCIL on .*name the folder"):
        compare(mixed, run)
    twice = tmp_path / "twice"
    keep(twice / "one", make_record())
    keep(twice / "two", make_record())
    with pytest.raises(EaseError, match="seed 1 2 times"):
        compare(run, twice)


def test_records_are_found_below_a_folder_each_once(tmp_path: Path, make_record: Make) -> None:
    for name in ("b/seed2", "a", "a-kept/deep/er/still", "too/deep/for/this/search"):
        keep(tmp_path / name, make_record())
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text("{}")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = find_records([tmp_path / "b", tmp_path])
    names = [str(run.path.parent.relative_to(tmp_path)) for run in found.runs]
    assert names == ["b/seed2", "a", "a-kept/deep/er/still"]
    assert found.unfinished == [tmp_path / "begun"]


def test_kept_records_lie_beside_other_files(tmp_path: Path, make_record: Make) -> None:
    make_record().write(tmp_path / "ease.json")
    (tmp_path / "search.json").write_text('{"candidates": []}')
    (tmp_path / "README.md").write_text("words")
    assert [run.path.name for run in find_records([tmp_path]).runs] == ["ease.json"]


def test_odd_paths_get_one_line(tmp_path: Path, make_record: Make) -> None:
    with pytest.raises(EaseError, match="does not exist"):
        find_records([tmp_path / "nowhere"])
    with pytest.raises(EaseError, match=r"no finished run: it has no record\.json"):
        find_records([tmp_path])
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(EaseError, match="--resume"):
        find_records([tmp_path])
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(EaseError, match="not valid JSON"):
        find_records([broken])
    broken.write_text(json.dumps({**make_record().as_json(), "accuracy": 3}))
    with pytest.raises(EaseError, match=r"broken\.json: .*'accuracy': .*valid list"):
        find_records([broken])
    broken.write_text("[]")
    with pytest.raises(EaseError, match="JSON object"):
        find_records([broken])


def test_a_method_may_be_chosen_where_folders_have_several(make_record: Make, tmp_path: Path) -> None:
    for side, last in (("a", 60.0), ("b", 50.0)):
        for method in ("ease", "simplecil"):
            folder = tmp_path / side / method
            folder.mkdir(parents=True)
            make_record(method, last=last).write(folder / "record.json")
    with pytest.raises(EaseError, match=r"2 experiments .*--method"):
        compare(tmp_path / "a", tmp_path / "b")
    assert compare(tmp_path / "a", tmp_path / "b", "ease").as_json()["results"]
    with pytest.raises(EaseError, match="did you mean 'ease'"):
        compare(tmp_path / "a", tmp_path / "b", "eas")
