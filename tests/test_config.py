"""Settings from presets, files and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from ease.config import RecordedConfig, RunConfig, resolve, role_of
from ease.errors import EaseError
from ease.methods import methods
from ease.presets import preset_list, preset_rows
from ease.streams.datasets import dataset_list
from ease.streams.protocol import task_sizes

IN21K = "vit_base_patch16_224.augreg_in21k"
IN1K = "vit_base_patch16_224.augreg_in21k_ft_in1k"


@pytest.mark.parametrize(
    ("dataset", "protocol", "backbone", "expected"),
    [
        (
            "cifar100",
            "B0 Inc5",
            IN21K,
            {"lr": 0.025, "batch_size": 48, "rank": 64, "alpha": 0.1, "epochs": 20},
        ),
        (
            "cub200",
            "B0 Inc10",
            IN1K,
            {"lr": 0.005, "batch_size": 16, "alpha": 0.005, "ptm": True, "beta": 1.0},
        ),
        ("cub200", "B0 Inc10", IN21K, {"lr": 0.008, "batch_size": 32, "alpha": 0.05, "ptm": False}),
        ("imagenet-a", "B0 Inc20", IN1K, {"lr": 0.05, "batch_size": 32, "weight_decay": 5e-3}),
        ("imagenet-r", "B0 Inc20", IN21K, {"lr": 0.05, "batch_size": 16, "weight_decay": 5e-3}),
        ("objectnet", "B0 Inc10", IN1K, {"lr": 0.03, "optimizer": "adam", "epochs": 20}),
        ("objectnet", "B0 Inc10", IN21K, {"lr": 0.05, "epochs": 25, "alpha": 0.2}),
        ("omnibenchmark", "B0 Inc30", IN21K, {"lr": 0.01, "alpha": 1.0, "adapt": "first", "ptm": True}),
        ("vtab", "B0 Inc10", IN21K, {"epochs": 45, "lr": 0.03, "rank": 16, "weight_decay": 5e-3}),
    ],
)
def test_released_rows(dataset: str, protocol: str, backbone: str, expected: dict[str, object]) -> None:
    options = {"dataset": dataset, "protocol": protocol, "backbone": backbone}
    config, notes = resolve(options, preset="released")
    assert {key: config.settings[key] for key in expected} == expected
    assert config.normalize == "none"
    assert config.settings["complement"] == "triangle"
    assert config.settings["reweight"] == "average"
    assert notes == []


def test_a_split_without_a_released_row_takes_the_nearest_and_says_so() -> None:
    options = {"dataset": "imagenet-r", "protocol": "B0 Inc5", "backbone": IN21K}
    config, notes = resolve(options, preset="released")
    assert config.settings["batch_size"] == 16
    assert len(notes) == 1
    assert "B0 Inc5" in notes[0]
    assert "B0 Inc20" in notes[0]


def test_the_paper_s_text() -> None:
    config, _ = resolve({"dataset": "cub200"}, preset="paper")
    expected = {
        "epochs": 20, "lr": 0.01, "batch_size": 48, "rank": 16, "alpha": 0.1, "scale": 1.0, "dropout": 0.0,
        "bias": False, "reads": "normed", "complement": "newest", "reweight": "sum", "similarity": "cosine",
    }  # fmt: skip
    assert {key: config.settings[key] for key in expected} == expected


NAMED = {name: place for preset in preset_list() for name, place in preset_rows(preset).items()}
CLASSES = {"cifar100": 100, "omnibenchmark": 300, "vtab": 50}


@pytest.mark.parametrize("name", NAMED)
def test_every_named_row_is_a_run_by_itself(name: str) -> None:
    config, notes = resolve(preset=name)
    place = {key: getattr(config, key) for key in ("dataset", "protocol", "backbone")}
    assert place == NAMED[name]
    assert config.preset == name
    assert config.dataset in dataset_list()
    assert config.backbone in (IN21K, IN1K)
    assert sum(task_sizes(config.protocol, CLASSES.get(config.dataset, 200))) == CLASSES.get(
        config.dataset, 200
    )
    short = "in21k" if config.backbone == IN21K else "in1k"
    assert name.split("/")[1] == f"{config.dataset}-{config.protocol.lower().replace(' ', '')}-{short}"
    assert notes == []


def test_the_rows_are_those_of_the_released_configs_and_of_the_exhibits() -> None:
    released = {name.split("/")[1] for name in preset_rows("released")}
    cuts = ["cifar100-b0inc5", "cub200-b0inc10", "imagenet-r-b0inc20", "imagenet-a-b0inc20"]
    cuts += ["objectnet-b0inc10", "omnibenchmark-b0inc30", "vtab-b0inc10"]
    assert released == {f"{cut}-{backbone}" for cut in cuts for backbone in ("in21k", "in1k")}
    paper = [name.split("/")[1] for name in preset_rows("paper")]
    assert len([name for name in paper if name.endswith("-in21k")]) == 17
    assert len([name for name in paper if name.endswith("-in1k")]) == 6
    assert {"imagenet-r-b0inc5-in21k", "imagenet-a-b100inc50-in21k", "cifar100-b0inc20-in1k"} <= set(paper)
    assert preset_rows("few-images") == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "released/cub200-b0inc10-in1k",
            {
                "epochs": 20,
                "lr": 0.005,
                "batch_size": 16,
                "weight_decay": 5e-4,
                "optimizer": "sgd",
                "rank": 64,
            }
            | {"alpha": 0.005, "ptm": True, "beta": 1.0},
        ),
        (
            "released/objectnet-b0inc10-in1k",
            {
                "epochs": 20,
                "lr": 0.03,
                "batch_size": 48,
                "weight_decay": 5e-3,
                "optimizer": "adam",
                "alpha": 0.1,
            },
        ),
        (
            "released/vtab-b0inc10-in1k",
            {"epochs": 45, "lr": 0.03, "batch_size": 16, "weight_decay": 5e-3, "rank": 16, "alpha": 0.1},
        ),
        (
            "paper/imagenet-r-b100inc50-in21k",
            {"epochs": 20, "lr": 0.01, "batch_size": 48, "optimizer": "sgd", "rank": 16, "alpha": 0.1},
        ),
    ],
)
def test_a_named_row_has_the_values_of_its_preset(name: str, expected: dict[str, object]) -> None:
    config, _ = resolve(preset=name)
    assert {key: config.settings[key] for key in expected} == expected


def test_options_win_over_a_named_row() -> None:
    options = {"backbone": "ease-vit", "protocol": "b0 inc10"}
    config, notes = resolve(options, preset="released/cifar100-b0inc5-in21k", sets=["alpha=0.3"])
    assert (config.dataset, config.protocol, config.backbone) == ("cifar100", "B0 Inc10", "ease-vit")
    assert (config.settings["alpha"], config.settings["lr"]) == (0.3, 0.025)
    assert any("ease-vit was asked for" in note for note in notes)
    again, _ = resolve(config.model_dump(mode="json"))
    assert again == config


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("released/cifar100-b0inc5-in21", "did you mean 'released/cifar100-b0inc5-in21k'"),
        ("relaesed/cifar100-b0inc5-in21k", "did you mean 'released'"),
        ("small/cifar100-b0inc5-in21k", "no named rows"),
        ("released/../small", "unknown preset"),
    ],
)
def test_an_unknown_row_names_the_nearest(name: str, says: str) -> None:
    with pytest.raises(EaseError, match=says):
        resolve(preset=name)


@pytest.mark.parametrize("preset", list(preset_list()))
@pytest.mark.parametrize("method", list(methods()))
def test_every_preset_resolves_for_every_method(preset: str, method: str) -> None:
    config, _ = resolve({"method": method}, preset=preset)
    assert config.method == method


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 5\nprotocol: B0 Inc3\nsettings: {alpha: 0.5, rank: 8}\n")
    config, _ = resolve({"seed": 6}, preset="paper", file=file, sets=["alpha=0.7", "weight-decay=1e-3"])
    assert (config.seed, config.protocol) == (6, "B0 Inc3")
    assert (config.settings["alpha"], config.settings["rank"], config.settings["lr"]) == (0.7, 8, 0.01)
    assert config.settings["weight_decay"] == 1e-3


def test_the_stored_configuration_resolves_to_itself() -> None:
    config, _ = resolve({"dataset": "digits"}, preset="released", sets=["alpha=0.3"])
    again, _ = resolve(config.model_dump(mode="json"))
    assert again == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n- b\n", "key: value"),
        ("a: [", "YAML"),
        ("sede: 3\n", "did you mean 'seed'"),
        ("seed: many\n", "seed"),
    ],
)
def test_wrong_files_are_one_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(EaseError, match=says) as error:
        resolve(file=file)
    assert "\n" not in str(error.value)


def test_set_may_name_the_method_and_its_settings_in_one_go() -> None:
    config, _ = resolve(sets=["method=finetune", "settings={epochs: 3}", "lr=0.5"])
    assert (config.method, config.settings["epochs"], config.settings["lr"]) == ("finetune", 3, 0.5)


def test_a_protocol_is_the_same_however_it_is_written() -> None:
    config, notes = resolve({"dataset": "cifar100", "protocol": "b0-inc 5"}, preset="released")
    assert config.protocol == "B0 Inc5"
    assert notes == []


@pytest.mark.parametrize("text", ["scale=nan", "lr=inf", "settings=[1]", "exemplars=-3", "preset=[released]"])
def test_values_that_make_no_sense_are_one_line(text: str) -> None:
    with pytest.raises(EaseError):
        resolve(sets=[text])


def test_compared_methods_have_their_public_settings_for_imagenet_r() -> None:
    place = {"dataset": "imagenet-r", "protocol": "B0 Inc20", "backbone": "vit_base_patch16_224.augreg_in21k"}
    prompts, _ = resolve({**place, "method": "l2p"}, preset="released")
    assert (prompts.settings["epochs"], prompts.settings["batch_size"]) == (10, 32)
    vpt, _ = resolve({**place, "method": "adam-vpt-shallow"}, preset="released")
    assert (vpt.settings["length"], vpt.settings["lr"], vpt.settings["epochs"]) == (30, 0.03, 20)
    elsewhere, notes = resolve({**place, "dataset": "cifar100", "method": "l2p"}, preset="released")
    assert (elsewhere.settings["epochs"], elsewhere.settings["batch_size"]) == (5, 16)
    assert any("took its defaults" in note for note in notes)


# --- roles ----------------------------------------------------------------------------------------


def test_every_field_declares_its_role() -> None:
    for name, field in RunConfig.model_fields.items():
        assert isinstance(field.json_schema_extra, dict), name
        assert field.json_schema_extra["role"] in ("result", "runtime", "location"), name
    roles = {
        role: {n for n in RunConfig.model_fields if role_of(n) == role} for role in ("runtime", "location")
    }
    assert roles["location"] == {"data_root", "weights", "class_order"}
    assert roles["runtime"] == {
        *("download", "eval_batch_size", "accelerator", "devices", "nodes", "cpus", "compile"),
        *("feature_memory", "image_memory", "preset"),
    }


def test_values_are_told_apart_by_role() -> None:
    config, _ = resolve({"data_root": "there", "devices": 2, "seed": 7})
    assert config.of_role("location") == {"data_root": "there", "weights": None, "class_order": None}
    assert config.of_role("runtime")["devices"] == 2
    assert config.of_role("result")["seed"] == 7
    assert not config.of_role("result").keys() & {"data_root", "devices"}
    parts = [config.of_role(role) for role in ("result", "runtime", "location")]
    assert {key for part in parts for key in part} == set(RunConfig.model_fields)


def test_what_another_version_recorded_counts_as_a_result() -> None:
    assert role_of("novelty") == "result"
    assert RecordedConfig.model_validate({"novelty": 3}).of_role("result")["novelty"] == 3


@pytest.mark.parametrize("value", [2**70, 2**31, -(2**40), 1e300, float("inf")])
@pytest.mark.parametrize(
    "key", ["later_epochs", "epochs", "rank", "exemplars", "limit_per_class", "eval_batch_size"]
)
def test_numbers_that_no_setting_can_mean_are_refused(key: str, value: float) -> None:
    with pytest.raises(EaseError, match=key):
        resolve({key: value})
