"""The paper's exhibits: the right places, grids and rows; each cell once; every file that was promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ease.errors import EaseError
from ease.experiments import grid as grid_module
from ease.experiments.grid import Grid
from ease.experiments.plans.paper import (
    Exhibit,
    Measurement,
    check_scale,
    exhibits,
    find_exhibit,
    measurements,
    plan_exhibits,
    published,
)
from ease.experiments.reproduction import Reproduction
from ease.streams.datasets import dataset_list
from tests.reporting.conftest import build_record

IN21K, IN1K = "vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k_ft_in1k"
SPLITS = {
    "table1": "cifar100 5, cub200 10, imagenet-r 5, imagenet-a 20, objectnet 10, omnibenchmark 30, vtab 10",
    "table2": "imagenet-r 20, cifar100 10",
    "upper-bound": "imagenet-r 20, cifar100 10",
    "curves": "cifar100 20, imagenet-a 20, imagenet-r 10, objectnet 20, omnibenchmark 30, vtab 10",
    "curves-in21k": "cifar100 5, cifar100 20, imagenet-a 20, imagenet-a 40, imagenet-r 5, imagenet-r 10, "
    "imagenet-r 20, imagenet-r 40, objectnet 20, objectnet 40, omnibenchmark 30, vtab 10",
    "ablation": "imagenet-r 20",
    "robustness": "imagenet-r 20",
    "complement": "imagenet-r 20, cifar100 10",
    "subspaces": "imagenet-r 20, cifar100 10",
    "tsne": "imagenet-r 5",
    "seeds": "imagenet-r 20",
    "time": "imagenet-r 20",
}
QUICK: dict[str, Any] = {"dataset": "digits", "protocol": "B0 Inc5", "limit_per_class": 6, "input_size": 16}


def quick(name: str, **choices: Any) -> list[Measurement]:
    return measurements(find_exhibit(name), "small", options=QUICK, sets=["epochs=1", "rank=4"], **choices)


def test_places_are_those_of_the_paper() -> None:
    for name, line in SPLITS.items():
        wanted = [tuple(part.rsplit(" ", 1)) for part in line.split(", ")]
        assert [(p.dataset, p.protocol) for p in find_exhibit(name).splits] == [
            (dataset, f"B0 Inc{n}") for dataset, n in wanted
        ]
    for name in ("large-base", "parameters"):
        assert {p.protocol for p in find_exhibit(name).splits} == {"B100 Inc50"}
    assert set(SPLITS) | {"large-base", "parameters"} == set(exhibits())


@pytest.mark.parametrize("scale", ["full", "tiny"])
@pytest.mark.parametrize("name", list(exhibits()))
def test_every_exhibit_knows_its_cells(name: str, scale: str) -> None:
    for measurement in measurements(find_exhibit(name), check_scale(scale)):
        config = measurement.cell.config
        assert config.dataset in dataset_list()
        if scale == "full":
            assert config.backbone == (IN1K if name == "curves" else IN21K)
            assert config.limit_per_class is None
        else:
            assert (config.backbone, config.limit_per_class, config.limit_test) == ("ease-vit", 20, 10)
            assert config.settings.get("epochs", 3) == 3


def test_the_grid_is_five_trainings_not_twenty_five() -> None:
    found = measurements(find_exhibit("robustness"), "full")
    assert len(found) == 25
    assert len({measurement.cell.shares for measurement in found}) == 5
    ranks, alphas = ({measurement.varied[key] for measurement in found} for key in ("rank", "alpha"))
    assert ranks == {8, 16, 32, 64, 128}
    assert alphas == {0.01, 0.05, 0.1, 0.3, 0.5}


def test_seeds_are_the_papers_unless_others_are_given() -> None:
    assert {s.cell.config.seed for s in measurements(find_exhibit("seeds"), "full")} == set(range(1993, 1998))
    assert {s.cell.config.seed for s in measurements(find_exhibit("seeds"), "full", seeds=[7])} == {7}


def test_settings_reach_the_cells_and_wrong_ones_are_refused() -> None:
    found = measurements(find_exhibit("table1"), "tiny", methods=["ease", "simplecil"], sets=["alpha=0.3"])
    assert {s.cell.config.settings.get("alpha") for s in found if s.row.method == "ease"} == {0.3}
    with pytest.raises(EaseError, match="alpha"):
        measurements(find_exhibit("table1"), "tiny", sets=["alhpa=0.3"])
    with pytest.raises(EaseError, match="table1"):
        find_exhibit("table-1")
    with pytest.raises(EaseError, match="tiny"):
        check_scale("tinny")


def test_the_small_scale_asks_for_data() -> None:
    with pytest.raises(EaseError, match="--dataset"):
        measurements(find_exhibit("ablation"), "small")
    with pytest.raises(EaseError, match="--protocol"):
        measurements(find_exhibit("ablation"), "small", options={"dataset": "digits"})
    (split,) = {m.split for m in measurements(find_exhibit("table1"), "small", options={"dataset": "cub200"})}
    assert split == ("cub200", "B0 Inc10")


def test_published_figures_stand_only_beside_the_very_same() -> None:
    measurement = next(s for s in measurements(find_exhibit("table1"), "full") if s.row.method == "ease")
    config = measurement.cell.config.as_json()
    record = build_record(dataset="cifar100", protocol="B0 Inc5", backbone=IN21K, config=config)
    assert published(measurement, record) == (91.51, 85.80)
    for other in ({"dataset": "cifar100-200"}, {"protocol": "B0 Inc2"}, {"backbone": IN1K}):
        assert published(measurement, record.model_copy(update=other)) is None
    limited = build_record(
        dataset="cifar100", protocol="B0 Inc5", backbone=IN21K, config={**config, "limit_per_class": 20}
    )
    assert published(measurement, limited) is None


def test_methods_published_since_are_asked_for_and_stand_apart() -> None:
    table = find_exhibit("table1")
    own = {m.row.method for m in measurements(table, "tiny")}
    assert "slca" not in own
    more = measurements(table, "tiny", since=True)
    assert own < {m.row.method for m in more}
    titles = [m.row.title for m in more if m.row.method == "ssiat"]
    assert list(dict.fromkeys(titles)) == ["SSIAT", "SSIAT, text"]
    assert {m.row.method for m in measurements(table, "tiny", methods=["slca"])} == {"slca"}
    assert "slca" in {m.row.method for m in plan_exhibits("all", "tiny", methods=["slca"])["curves"]}


def test_the_table_has_a_rule_above_methods_published_since(tmp_path: Path) -> None:
    some = quick("table1", methods=["simplecil", "fecam", "ease"])
    (found,), _ = drawn({"table1": some}, tmp_path)
    table = found.table
    assert [(line.names[0], line.ruled) for line in table.lines] == [
        ("SimpleCIL", False),
        ("EASE", False),
        ("FeCAM", True),
    ]
    assert "Not among the paper's methods: FeCAM." in table.legend


def drawn(plans: dict[str, list[Measurement]], out: Path, **how: Any) -> tuple[list[Any], Reproduction]:
    work = Reproduction(plans, out)
    return list(work.run(**how)), work


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("paper")
    (found,), work = drawn({"ablation": quick("ablation")}, out)
    assert work.failure is None
    return out, found


def test_an_exhibit_ends_in_a_figure_and_a_table_in_every_format(ablation: tuple[Path, Any]) -> None:
    out, _ = ablation
    for ending in ("svg", "pdf", "png", "md", "csv", "tex"):
        assert (out / f"ablation.{ending}").stat().st_size > 0
    labels = ["Vanilla PTM", "+ task-specific adapters", "+ prototype complement", "+ subspace reweight"]
    text = (out / "ablation.md").read_text()
    assert all(label in text for label in labels)
    assert text.index(labels[0]) < text.index(labels[3])


def test_the_components_share_one_training(ablation: tuple[Path, Any]) -> None:
    _, found = ablation
    trained = [r.forward_passes.train - r.passes_reused for r in found.records]
    assert trained == [0, 60, 0, 0]


def test_a_finished_exhibit_is_drawn_again_without_a_run(
    ablation: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, found = ablation
    before = (out / "ablation.svg").read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(grid_module, "start_run", fail)
    (again,), _ = drawn({"ablation": quick("ablation")}, out)
    assert again.records == found.records
    assert (out / "ablation.svg").read_bytes() == before


def test_shards_divide_the_work_and_together_do_all_of_it(tmp_path: Path) -> None:
    plan = {"ablation": quick("ablation", methods=["simplecil", "ease"])}
    first, _ = drawn(plan, tmp_path, shard=(1, 2))
    assert [len(each.records) for each in first] == [1]
    second, _ = drawn(plan, tmp_path, shard=(2, 2))
    assert [len(each.records) for each in second] == [4]


def test_what_fails_is_told_and_the_rest_is_drawn(tmp_path: Path) -> None:
    good = measurements(find_exhibit("ablation"), "small", methods=["simplecil"], options=QUICK)
    bad = measurements(
        find_exhibit("ablation"),
        "small",
        methods=["simplecil"],
        options={**QUICK, "dataset": "folder", "data_root": "nowhere"},
    )
    found, work = drawn({"ablation": [*good, *bad]}, tmp_path)
    assert work.failure is not None
    assert "nowhere" in str(work.failure)
    assert [len(each.records) for each in found] == [1]


def test_seconds_are_told_of_runs_that_did_all_their_work(tmp_path: Path) -> None:
    everything = {"ablation": quick("ablation"), "time": quick("time", methods=["simplecil", "ease"])}
    # The component ablation's last row is plain EASE, and it has taken over its subspaces.
    found, _ = drawn(everything, tmp_path)
    assert any(r.passes_reused for r in found[0].records)
    assert not any(r.passes_reused for r in found[1].records)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("robustness", ["robustness"]),
        ("complement", ["complement-digits"]),
        ("tsne", ["tsne"]),
        ("parameters", ["parameters"]),
    ],
)
def test_every_kind_of_figure_is_drawn(name: str, files: list[str], tmp_path: Path) -> None:
    exhibit: Exhibit = find_exhibit(name)
    plan = [s for s in quick(name) if _few(exhibit, s)]
    drawn({name: plan}, tmp_path)
    for file in files:
        assert (tmp_path / f"{file}.svg").stat().st_size > 0
    assert Grid(tmp_path).record(plan[0].cell) is not None


def _few(exhibit: Exhibit, measurement: Measurement) -> bool:
    """Enough of an exhibit to draw it."""
    if exhibit.draw == "parameters":
        return measurement.row.method in ("simplecil", "adam-adapter", "ease")
    return measurement.varied.get("alpha", 0.1) in (0.1, 0.3) and measurement.varied.get("neighbours", 1) in (
        1,
        5,
    )


def test_all_exhibits_with_a_method_leave_out_those_without_it() -> None:
    found = plan_exhibits("all", "tiny", methods=["memo", "ease"])
    assert {s.row.method for s in found["table1"]} == {"ease"}
    assert {s.row.method for s in found["table2"]} == {"memo", "ease"}
    assert set(plan_exhibits("all", "tiny", methods=["memo"])) == {"table2", "parameters"}
    assert set(plan_exhibits("all", "tiny")) == set(exhibits())
    with pytest.raises(EaseError, match="joint"):
        plan_exhibits("all", "tiny", methods=["joint"])
