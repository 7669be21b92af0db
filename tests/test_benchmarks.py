"""The benchmark's two sides do the same thing, and its command writes what it promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmarks import app_seconds, clock, long_streams, one_class_at_a_time, practitioner, scale
from benchmarks.arithmetic import Arithmetic, naive_work, our_work
from benchmarks.cases import CASES, World, as_naive, as_ours, quick
from benchmarks.class_folders import SETS
from benchmarks.memory import run_once
from benchmarks.rivals import RIVALS, array_bytes
from benchmarks.rows import QUICK, Short, _taught, precision_rows
from benchmarks.runs import OurRun, race
from benchmarks.speed import main
from benchmarks.table import exponent
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from ease.methods import restore_learner, save_model
from ease.methods.ease import Ease
from ease.progress import Quiet
from ease.storage.contents import encode_tensors
from ease.storage.model_directory import OWNER, ModelDirectory

DEIT = "deit_tiny_patch16_224"


@pytest.fixture(scope="module")
def world() -> World:
    return World(quick(CASES["ease-vit"]))


def test_given_the_same_adapters_both_give_the_same_logits(world: World) -> None:
    ours, naive = _taught(world, world.stream, world.adapters(3, rank=8))
    pixels = torch.cat(list(naive.loader.tests(3)))
    wanted, found = naive.logits(pixels), ours.logits(pixels)
    assert (wanted - found).abs().max() < 1e-5
    assert torch.equal(wanted.argmax(1), found.argmax(1))
    assert (naive.prototypes - ours.classifier()).abs().max() < 1e-4  # of lengths around 20


def test_trained_separately_both_end_at_the_same_adapter(world: World, tmp_path: Path) -> None:
    """The dropout of the last block's class token included."""
    ours = OurRun(world, tmp_path)
    ours.stage(world.stream.tasks[0], evaluate=False)
    trained = ours.learner.tunings[0]
    twin = as_ours(world.naive().train(), world)
    for name, weights in trained.state_dict().items():
        assert torch.allclose(weights, twin.state_dict()[name], atol=1e-5), name
    assert any(weights.abs().max() > 1e-3 for name, weights in trained.state_dict().items() if "up" in name)


def test_a_race_explains_every_different_prediction_and_makes_the_released_passes(
    world: World, tmp_path: Path
) -> None:
    found = race(world, tmp_path, Quiet())
    tests = [len(task.test) for task in world.stream.tasks]
    assert found.agreement.compared == sum(sum(tests[:b]) for b in (1, 2, 3))
    assert found.agreement.unexplained == 0
    assert found.agreement.largest < 1e-5
    assert found.whole[1] > sum(found.seconds("evaluation")[1:])


def test_the_naive_schedule_repeats_everything(world: World) -> None:
    learner = world.naive()
    for _ in world.stream.tasks:
        learner.train()
        learner.add_prototypes()
        learner.complement()
        learner.evaluate()
    n, m, stages, epochs = 10, 4, 3, 2
    assert learner.passes == {
        "train": epochs * n * stages,
        "prototypes": n * stages * (stages + 1) // 2,
        "evaluation": m * stages * (stages + 1) * (2 * stages + 1) // 6,
    }


def counted() -> FlopCounterMode:
    """Torch's own counter, told that attention on a CPU is attention."""
    aten = torch.ops.aten
    return FlopCounterMode(
        display=False,
        custom_mapping={
            aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(
                q, k, v
            ),
            aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: (
                sdpa_backward_flop_count(g, q, k, v)
            ),
        },
    )


@pytest.fixture(scope="module")
def embedded() -> World:
    """The embedded ViT at its own size."""
    return World(replace(quick(CASES["ease-vit"]), input_size=None))


@pytest.mark.parametrize("subspaces", [1, 3])
def test_multiply_adds_of_a_pass_are_those_torch_counts(embedded: World, subspaces: int) -> None:
    short, adapters = Short(embedded, QUICK), embedded.adapters(subspaces, rank=16)
    work, pixels = short.arithmetic(16), embedded.pixels(2)
    with counted() as counter:
        embedded.backbone.features(pixels, adapters)
    assert counter.get_total_flops() == 2 * 2 * work.together(subspaces)
    with counted() as counter, torch.no_grad():
        short.naive.vit(pixels, as_naive(adapters[0], short.naive))
    assert counter.get_total_flops() == 2 * 2 * work.separate()


def test_multiply_adds_of_a_step_are_those_torch_counts(embedded: World) -> None:
    short, task = Short(embedded, QUICK), embedded.stream.tasks[0]
    work, pixels = short.arithmetic(embedded.settings.rank), embedded.pixels(2)
    labels = torch.tensor([0, 1])
    ours = Ease(embedded.engine(), embedded.settings).new_subspace(task).train()
    with counted() as counter:
        F.cross_entropy(ours(pixels), labels).backward()
    assert counter.get_total_flops() == 2 * 2 * work.step(2, last_rows=1)
    subspace, head = short.naive.begin(0)
    with counted() as counter:
        F.cross_entropy(head(short.naive.vit(pixels, subspace)), labels).backward()
    assert counter.get_total_flops() == 2 * 2 * work.step(2, last_rows=work.tokens)


def test_work_of_twenty_stages_is_what_the_reference_says() -> None:
    """7.2 times fewer evaluation passes, and less in each of them."""
    work = Arithmetic(dim=768, depth=12, hidden=3072, patches=196, tokens=197, patch_values=768, rank=64)
    train, test = [2500] * 20, [500] * 20
    naive, ours = (make(work, train, test, 20, 5) for make in (naive_work, our_work))
    assert naive.evaluation == 1_435_000 * work.separate()
    assert naive.prototypes == 525_000 * work.separate()
    assert 7.175 < naive.evaluation / ours.evaluation < 9
    assert 1 < naive.train / ours.train < 1.2


def test_the_command_writes_table_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench"
    words = ["--quick", "--backbones", "ease-vit", "--out", str(out)]
    assert main([*words, "--rows", "run,forward,step,latency,peak"]) == 0
    assert "evaluation phase" in capsys.readouterr().out
    rows = json.loads((out / "speed.json").read_text())["rows"]
    assert {row["part"] for row in rows} == {"run", "forward", "step", "latency", "peak"}
    assert all(row["ratio"] > 0 for row in rows)
    assert all(row["ceiling"] >= 1 for row in rows if row["part"] != "peak")
    assert (out / "growth.png").stat().st_size > 1000
    assert (out / "growth.svg").read_text().startswith("<?xml")
    table = (out / "speed.md").read_text()
    assert table.count("\n| ease-vit |") == len(rows)
    assert "0 of them where the naive margin is 1e-5 or more" in table
    # One part again: the others stay.
    assert main([*words, "--rows", "step"]) == 0
    again = json.loads((out / "speed.json").read_text())["rows"]
    assert [row["what"] for row in again] == [row["what"] for row in rows]


@pytest.mark.parametrize("native", [True, False])
def test_bf16_is_measured_where_it_is_native(
    world: World, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr("benchmarks.rows.computes_bf16", lambda device: native)
    found = precision_rows(world, QUICK, Quiet())
    assert [row.what.partition(": ")[2] for row in found] == native * [
        "features, S = 1, r = 16, batch 2",
        "features, S = 3, r = 16, batch 2",
        "training step, r = 64, batch 4",
    ]
    assert all(row.ratio > 0 for row in found)


@pytest.mark.parametrize("side", ["naive", "ours"])
def test_memory_is_measured_in_a_run_that_spills(side: str) -> None:
    found = run_once(side, World(quick(CASES["ease-vit"])), feature_memory=0)
    assert found["peak"] > 2**26
    assert found["features"] == 12 * 3 * 192 * 4


def test_what_is_not_at_hand_is_left_out_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EASE_SHARED", raising=False)
    assert main(["--backbones", DEIT, "--out", str(tmp_path)]) == 0
    assert "deit_tiny_patch16_224 is left out: set EASE_SHARED" in capsys.readouterr().out
    monkeypatch.setenv("EASE_SHARED", str(tmp_path))
    lacks = CASES[DEIT].lacks()
    assert lacks is not None
    assert lacks.endswith("EASE_SHARED has no deit_tiny_patch16_224.safetensors")


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "forwards"]) == 2
    assert "did you mean 'forward'" in capsys.readouterr().err


def test_growth_is_told_by_its_power() -> None:
    assert exponent([0.5 * b**2 for b in range(1, 21)]) == pytest.approx(2)
    assert exponent([0.1 * b for b in range(1, 21)]) == pytest.approx(1)


def test_a_ratio_does_not_see_that_the_machine_changes_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def timed(work: clock.Work) -> tuple[object, float]:
        work()
        pace = 1.0 if len(calls) < 12 else 3.0  # it changes between the two calls of the fourth turn
        return None, pace * {"naive": 2.0, "ours": 1.0}[calls[-1]]

    monkeypatch.setattr(clock, "timed", timed)
    found = clock.alternating(lambda: calls.append("naive"), lambda: calls.append("ours"))
    assert found.ratio == 2.0
    assert calls[4:8] == ["naive", "ours", "ours", "naive"]  # after the warm-up, who is first changes


def test_the_practitioners_table_has_every_method_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EASE_SHARED", raising=False)
    words = ["--sets", "digits", "--classes", "6", "--train", "4", "--test", "3", "--timed", "1"]
    assert practitioner.main([*words, "--out", str(tmp_path / "found" / "table.md")]) == 0
    text = (tmp_path / "found" / "table.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    accuracy, seconds, milliseconds, kept, notes = text.strip().split("\n\n")
    assert f"digits with {DEIT} is left out: set EASE_SHARED" in notes
    names = [
        "ease learn: strata",
        *(f"{block}: {name}" for block in ("pooled feature", "strata's features") for name in RIVALS),
    ]
    for part in (seconds, milliseconds, kept):
        assert list(cells(part)) == names
        assert all(float(value.replace(",", "")) > 0 for value in cells(part).values())
    rates = cells(accuracy)
    assert list(rates)[: len(names)] == names
    best = max(float(rates[name]) for name in names[1:])
    points, _ = rates["ease learn: strata, less the best"].split(" ± ")
    assert float(points) == pytest.approx(float(rates["ease learn: strata"]) - best, abs=0.11)
    assert rates["photos"] == "6 classes, 24 + 18 photos"


def cells(table: str) -> dict[str, str]:
    """The last cell of each row of a Markdown table by the first one."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[-1] for row in rows}


def test_every_rival_learns_and_counts_its_arrays() -> None:
    draw = np.random.RandomState(0)
    labels = np.repeat(np.arange(3), 12)
    features = (np.eye(3, 8)[labels] * 4 + draw.randn(36, 8) * 0.1).astype(np.float32)
    for name, rival in RIVALS.items():
        estimator = rival.fitted(features, labels)
        assert (estimator.predict(features * 3 if name == "kNN" else features) == labels).all()
        # Beside the features: nothing for neighbours, else a number per class and dimension, and a little more.
        numbers = 0 if name == "kNN" else 3 * 8
        assert 4 * numbers <= array_bytes(estimator) <= 16 * numbers
    assert [name for name, rival in RIVALS.items() if not rival.needs_features] == ["nearest class mean"]


def test_class_folders_arrive_in_steps_and_are_all_tested(tmp_path: Path) -> None:
    folders = replace(SETS["digits"], train=3, test=2).write(tmp_path, steps=3, classes=5)
    classes = [sorted(folder.name for folder in step.iterdir()) for step in folders.steps]
    assert classes == [["0", "1"], ["2", "3"], ["4"]]
    assert all(len(list(folder.iterdir())) == 3 for step in folders.steps for folder in step.iterdir())
    assert {folder.name: len(list(folder.iterdir())) for folder in folders.test.iterdir()} == dict.fromkeys(
        "01234", 2
    )


def test_one_class_at_a_time_ends_where_all_at_once_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", "glyphs", "--backbone", "ease-vit", "--classes", "3", "--train", "6", "--test", "3"]
    assert one_class_at_a_time.main([*words, "--out", str(tmp_path / "table.md")]) == 0
    text = (tmp_path / "table.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    assert "0 of 9 predictions differ" in text
    first, last = (line.strip("| ").split(" | ") for line in text.strip().splitlines()[-2:])
    assert (first[0], last[0]) == ("1", "3")
    assert first[2] == last[2]  # the scatter
    assert float(last[3]) == pytest.approx(3 * float(first[3]), abs=0.2)  # the means


def test_seconds_of_the_app_are_measured_where_there_are_photos(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EASE_SHARED", raising=False)
    assert app_seconds.main(["--quick"]) == 0
    out = capsys.readouterr().out
    assert "| ease-vit, glyphs | 2 classes, 10 photos |" in out
    assert f"photos-42 with {DEIT} is left out: set EASE_SHARED" in out


def test_long_streams_are_measured_shown_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(rows: list[str], tasks: int, limit: float) -> list[long_streams.Look]:
        return [each for row in rows for each in long_streams.run(row, tasks, limit)]

    monkeypatch.setattr(long_streams, "measured", here)
    monkeypatch.setattr(long_streams, "LOOKS", (1, 4))
    capped = {"adapt": "always", "rank": 16, "max_subspaces": 2}
    monkeypatch.setitem(long_streams.ROWS, "ease, 2", ("ease", capped))
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["x", "--tasks", "4", "--rows", "ease;ease, 2", "--out", str(out)])
    long_streams.main()
    looks = {(each["row"], each["tasks"]): each for each in json.loads((out / "looks.json").read_text())}
    passes = {key: look["passes"] for key, look in looks.items()}
    assert passes == {("ease", 1): 1, ("ease", 4): 4, ("ease, 2", 1): 1, ("ease, 2", 4): 2}
    assert all(look["accuracy"] == 1 and look["open_seconds"] > 0 for look in looks.values())
    assert looks["ease", 4]["folder_bytes"] > looks["ease, 2", 4]["folder_bytes"]
    assert (out / "growth.png").stat().st_size > 10_000
    shown = capsys.readouterr().out.splitlines()[-6:]
    assert [line.count("|") for line in shown] == [14] * 6
    monkeypatch.setattr("sys.argv", ["x", "--table", str(out)])
    long_streams.main()
    assert capsys.readouterr().out.splitlines() == shown
    monkeypatch.setattr("sys.argv", ["x", "--rows", "eese"])
    with pytest.raises(SystemExit, match="2"):
        long_streams.main()


MEASURED = scale.Constants(
    backbone="ease-vit",
    dim=192,
    depth=6,
    parameters=1,
    pass_seconds=dict.fromkeys(scale.PRECISIONS, 0.5),
    step_seconds=dict.fromkeys(scale.PRECISIONS, 2.0),
    decode_seconds=0.25,
    multiply_adds=1e9,
    multiply_adds_fp64=5e8,
)


@pytest.mark.parametrize(("row", "spaces"), [("ease", 4), ("capped", 2), ("strata", 1)])
def test_the_calculator_counts_what_learners_store(
    row: str, spaces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    capped = {"adapt": "always", "rank": 16, "max_subspaces": 2}
    monkeypatch.setitem(long_streams.ROWS, "capped", ("ease", capped))
    engine = long_streams.synthetic_engine()
    learner = long_streams.new_learner(row, engine)
    for index in range(4):
        learner.learn(long_streams.synthetic_task(index))
    shape = engine.backbone.shape
    constants = replace(MEASURED, dim=engine.backbone.dim, depth=shape.depth)
    plan = scale.Plan(classes=learner.classes, tasks=4, images=48)
    if row == "strata":
        bill = scale.strata_bill(row, plan, constants, plan.images)
        assert constants.width == engine.backbone.width(learner.reading)
    else:
        bill = scale.ease_bill(row, plan, constants, spaces, rank=16)
    assert bill.stored_bytes == 4 * learner.costs().stored
    assert learner.passes_per_image() == spaces


def test_the_calculator_multiplies_what_was_measured() -> None:
    plan = scale.Plan(classes=10, tasks=5, images=3600 * 5, epochs=2)
    ease, capped, strata, sampled = scale.bills(plan, MEASURED, cap=2, sample=1)
    assert (ease.passes, capped.passes) == (3600 * (1 + 2 + 3 + 4 + 5), 3600 * (1 + 2 + 2 + 2 + 2))
    assert (ease.trained, capped.trained) == (2 * 3600 * 5, 2 * 3600 * 2)
    assert ease.hours["passes"] == 15 * 0.5
    assert ease.hours["training"] == 2 * 5 * 2.0
    assert ease.hours["decoding"] == (10 + 5) * 0.25  # each epoch, and once for the prototypes
    assert (strata.passes, strata.trained) == (3600 * 5, 0)
    assert sampled.core_hours < strata.core_hours
    text = scale.table(plan, [MEASURED], scale.Assumed(price=0.5, days=7, cores=2), cap=2)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ease-vit")]
    assert [row[1] for row in rows] == 2 * [each.method for each in scale.bills(plan, MEASURED, cap=2)]
    assert [len(row) for row in rows] == [7] * 4 + [11] * 4
    assert "| pass, fp32 | 500 ms |" in scale.constants_table([MEASURED])
    text = scale.limits(plan, [MEASURED], scale.Assumed(0.5, 7, 2), photo=1e5, answers=50)
    assert "| its left-out scores, if it is learned |" in text
    assert scale.check(replace(MEASURED, dim=8), classes=5, images=3).count("|") == 16


def test_few_digits_are_enough() -> None:
    assert [scale.rounded(each) for each in (0, 7.4, 1234, 98765432)] == ["0", "7", "1,230", "98,800,000"]
    assert [scale.time_text(each) for each in (0.0021, 59, 90, 7200, 864000)] == [
        "2.1 ms",
        "59 s",
        "1.5 min",
        "2 h",
        "10 days",
    ]


@pytest.mark.parametrize(("row", "again"), [("ease", {"subspaces"}), ("strata", {"prototypes", "learner"})])
def test_a_reopened_learner_does_not_encode_all_prototypes_of_ease_again(
    row: str, again: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real learners: what `ease` loads it hands back, `strata` makes new tensors of it."""
    engine = long_streams.synthetic_engine()
    learner = long_streams.new_learner(row, engine)
    for index in range(2):
        learner.learn(long_streams.synthetic_task(index))
    save_model(ModelDirectory(tmp_path / "model"), learner, long_streams.entries(learner))
    directory = ModelDirectory(tmp_path / "model")
    restored, _ = restore_learner(directory, engine)
    kinds: set[str] = set()
    encode = encode_tensors

    def counted(tensors: Any, metadata: Any = None) -> bytes:
        kinds.add(metadata[OWNER].split("/")[0])
        return encode(tensors, metadata)

    monkeypatch.setattr("ease.storage.model_directory.encode_tensors", counted)
    save_model(directory, restored, long_streams.entries(restored))
    assert kinds == again
    kinds.clear()
    save_model(directory, restored, long_streams.entries(restored))
    assert kinds == set()
