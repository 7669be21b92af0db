"""Models and weights that were forged with right checksums: refused in one line, before they take any memory."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from campaign.faults import command
from campaign.fuzz import sealed

from ease import Classifier
from ease.errors import EaseError
from ease.storage import files as durable
from ease.storage.contents import encode_tensors, read_tensors
from tests.faults.specification import CREATE, digits

IMAGES = digits()
MEMORY = 700 * 2**20
"""Bytes that a process may have in memory while it refuses a forged model; importing torch takes about half."""
PEAK = """
import sys
from pathlib import Path
from ease import Classifier
from ease.errors import EaseError
from ease.experiments.environment import peak_memory
for path in sys.argv[1:]:
    try:
        Classifier.open(path).predict([Path(path).parent / "image.png"])
        print("opened", path)
    except EaseError as error:
        print("refused", error)
print(peak_memory())
"""


@pytest.fixture(scope="module")
def strata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("strata") / "model"
    made = Classifier.create(path, **CREATE)  # type: ignore[arg-type]
    made.learn({"one": IMAGES[:6], "two": IMAGES[6:12]})
    return path


@pytest.fixture(scope="module")
def ease_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the paper's method with one adapter."""
    path = tmp_path_factory.mktemp("ease") / "model"
    settings = {"epochs": 1, "rank": 4, "adapt": "always"}
    made = Classifier.create(path, method="ease", input_size=16, augment="gentle", settings=settings)
    made.learn({"one": IMAGES[:6], "two": IMAGES[6:12]})
    return path


def forged(origin: Path, target: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy whose manifest was changed and has a right checksum."""
    shutil.copytree(origin, target)
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (target / "manifest.json").write_bytes(sealed(manifest))
    return target


def with_tensors(origin: Path, target: Path, change: Callable[[str, dict[str, torch.Tensor]], Any]) -> Path:
    """A copy whose tensors were changed; the manifest names the new checksums."""

    def rewrite(manifest: dict[str, Any]) -> None:
        for name, entry in manifest["files"].items():
            tensors = read_tensors(target / entry["path"])
            change(name, tensors)
            data = encode_tensors(tensors, {"ease.model": name})
            (target / entry["path"]).write_bytes(data)
            entry.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    return forged(origin, target, rewrite)


def nan(name: str, tensors: dict[str, torch.Tensor]) -> None:
    for value in tensors.values():
        if value.is_floating_point():
            value.view(-1)[0] = float("nan")


def imaginary(name: str, tensors: dict[str, torch.Tensor]) -> None:
    for key, value in tensors.items():
        if value.is_floating_point():
            tensors[key] = value.to(torch.complex64)


def shorter(name: str, tensors: dict[str, torch.Tensor]) -> None:
    for key, value in tensors.items():
        tensors[key] = value[:-1].clone() if value.dim() else value


def huge(name: str, tensors: dict[str, torch.Tensor]) -> None:
    for value in tensors.values():
        if value.is_floating_point():
            value.view(-1)[0] = 3e38


def refused(path: Path) -> str:
    with pytest.raises(EaseError) as caught:
        Classifier.open(path).predict(IMAGES[:1])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("which", ["strata", "ease_model"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (nan, "numbers that are not finite"),
        (imaginary, "numbers that are complex"),
        (huge, "numbers above 1e+18"),
        (shorter, "does not make sense"),
    ],
)
def test_tensors_that_no_learner_saves_are_refused(
    which: str, change: Any, why: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert why in refused(with_tensors(request.getfixturevalue(which), tmp_path / "model", change))


def test_scores_that_are_no_numbers_are_refused_by_eval_too(ease_model: Path, tmp_path: Path) -> None:
    from PIL import Image

    from ease.app.evaluation import evaluate_folder

    def huge(manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest["learner"])
        manifest["learner"] = json.loads(re.sub(r'"scale": [0-9.e-]+', '"scale": -1e308', text))
        assert manifest["learner"] != json.loads(text)

    model = forged(ease_model, tmp_path / "model", huge)
    assert "gives no finite scores" in refused(model)
    folder = tmp_path / "photos" / Classifier.open(model).classes[0]
    folder.mkdir(parents=True)
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(folder / "a.png")
    with pytest.raises(EaseError, match="gives no finite scores"):
        evaluate_folder(Classifier.open(model), tmp_path / "photos")


def test_a_list_of_classes_that_is_not_that_of_the_tasks_is_refused(strata: Path, tmp_path: Path) -> None:
    short = forged(strata, tmp_path / "short", lambda m: m["classes"].pop())
    assert "its tasks have 2 classes, its list of classes 1" in refused(short)


@pytest.mark.parametrize("value", [[], "x", 10**400, None, {}])
def test_settings_that_are_none_are_refused(strata: Path, tmp_path: Path, value: Any) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["settings"]["scale"] = value

    assert "does not make sense" in refused(forged(strata, tmp_path / "model", change))


def test_sizes_that_no_file_accounts_for_take_no_memory(
    strata: Path, ease_model: Path, tmp_path: Path
) -> None:
    from PIL import Image

    def subspace(manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest["learner"]).replace('"rank": 4', '"rank": 10000000')
        assert "10000000" in text
        manifest["learner"] = json.loads(text)

    def both(manifest: dict[str, Any]) -> None:
        subspace(manifest)
        manifest["settings"]["rank"] = 10_000_000

    paths = [
        forged(ease_model, tmp_path / "rank", subspace),
        forged(ease_model, tmp_path / "ranks", both),
        forged(strata, tmp_path / "size", lambda m: m["backbone"].update(input_size=32_000)),
        forged(strata, tmp_path / "sizes", lambda m: m["learner"].update(task_sizes=[10**12])),
        forged(
            strata, tmp_path / "wide", lambda m: m.update(method="ranpac", settings={"projection": 10**9})
        ),
    ]
    Image.fromarray(IMAGES[0]).save(tmp_path / "image.png")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, paths)], capture_output=True, text=True, check=True
    )
    *lines, peak = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["refused"] * len(paths), done.stdout
    assert int(peak) < MEMORY, done.stdout


def test_weights_that_unpack_to_zeros_are_refused(strata: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a.npy", bytes(64 * 2**20))
    outcome = command(["predict", str(tmp_path), "--model", str(strata), "--weights", str(path)])
    assert outcome.code == 2
    durable.write_atomic(tmp_path / "note.txt", b"")
    with pytest.raises(EaseError, match="unpacks to 67108864 bytes"):
        Classifier.open(strata, path)


def test_a_model_that_says_nothing_wrong_opens(strata: Path, ease_model: Path, tmp_path: Path) -> None:
    for number, origin in enumerate((strata, ease_model)):
        assert Classifier.open(forged(origin, tmp_path / str(number), lambda m: None)).classes == [
            "one",
            "two",
        ]


def test_prototypes_of_a_subspace_that_is_not_there_are_refused(ease_model: Path, tmp_path: Path) -> None:
    path = forged(ease_model, tmp_path / "model", lambda m: m["learner"]["subspaces"].pop())
    with pytest.raises(EaseError, match="it has 0 subspaces, its prototypes are of"):
        Classifier.open(path)


@pytest.mark.parametrize("wrong", ["x", None, [], {}])
def test_settings_of_a_subspace_that_only_a_prediction_would_find_are_refused_when_it_is_opened(
    ease_model: Path, tmp_path: Path, wrong: Any
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["learner"]["subspaces"][0]["config"]["scale"] = wrong

    path = forged(ease_model, tmp_path / "model", change)
    with pytest.raises(EaseError, match="does not make sense"):
        Classifier.open(path)


@pytest.mark.parametrize("key", ["lr", "weight_decay", "alpha"])
def test_settings_that_torch_cannot_calculate_with_are_refused(
    ease_model: Path, tmp_path: Path, key: str
) -> None:
    """They were a traceback when the model learned."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["settings"][key] = 1e308

    model = forged(ease_model, tmp_path / "model", change)
    with pytest.raises(EaseError, match=rf"{key}.*beyond 2147483647"):
        Classifier.open(model)
