"""One file with all of a model, and what happens to files that only look like it."""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ease.app import archive as packing
from ease.app.archive import pack, unpack
from ease.app.compact import Compaction, compact
from ease.backbone import zoo
from ease.errors import EaseError
from ease.methods import BACKBONE_FILE, open_model
from ease.storage import files as durable
from ease.storage.contents import encode_tensors, entry_of
from ease.storage.model_directory import ModelDirectory
from tests.app.test_export import learn
from tests.backbone.small_vits import randomised
from tests.backbone.test_zoo import jax_names, no_network  # noqa: F401
from tests.test_cli import ease, refused


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("pack") / "run", "ease")


@pytest.fixture(scope="module")
def archive(run: Path) -> Path:
    return pack(run, run.parent / "model.ease").path


def logits(model: Path, size: int = 16) -> torch.Tensor:
    learner, _ = open_model(model)
    return learner.logits(torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(1)))


def test_a_model_comes_back_bit_for_bit(run: Path, archive: Path, tmp_path: Path) -> None:
    wanted = logits(run / "model")
    done = unpack(archive, tmp_path / "deep" / "model")
    assert torch.equal(logits(done.path), wanted)
    directory = ModelDirectory(done.path)
    directory.verify()
    assert directory.generations() == [done.generation] == [1]
    assert directory.manifest() == ModelDirectory(run / "model").manifest()
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["model"]


@pytest.mark.parametrize("storage", ["fp32", "fp16", "int8"])
def test_a_model_of_strata_scores_the_same_elsewhere(tmp_path: Path, storage: str) -> None:
    run = learn(tmp_path / "run", "strata")
    if storage != "fp32":
        compact(run, Compaction(storage))
    wanted = logits(run / "model")
    done = unpack(pack(run, tmp_path / "model.ease").path, tmp_path / "elsewhere")
    shutil.rmtree(run)
    assert torch.equal(logits(done.path), wanted)
    assert ModelDirectory(done.path).manifest().method == "strata"


def test_an_unpacked_model_needs_no_other_weights(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise AssertionError("the weights beside the manifest are there to be used")

    model = unpack(archive, tmp_path / "model").path
    monkeypatch.setattr(zoo, "_embedded_tensors", lost)
    logits(model)
    assert pack(model, tmp_path / "again.ease").bytes == archive.stat().st_size
    assert (tmp_path / "again.ease").read_bytes() == archive.read_bytes()


def test_equal_models_give_equal_archives(run: Path, archive: Path, tmp_path: Path) -> None:
    again = pack(run / "model", tmp_path / "again.ease")
    assert again.path.read_bytes() == archive.read_bytes()
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
    assert [m.filename for m in members] == sorted(m.filename for m in members)
    assert {m.date_time for m in members} == {(1980, 1, 1, 0, 0, 0)}
    assert again.files == len(members) - 2  # pack.json and the manifest are not counted


def test_a_wrong_backbone_beside_the_manifest_is_refused(archive: Path, tmp_path: Path) -> None:
    model = unpack(archive, tmp_path / "model").path
    tensors = load_file(model / BACKBONE_FILE)
    tensors["norm.weight"][0] += 1
    save_file(tensors, model / BACKBONE_FILE)
    with pytest.raises(EaseError, match=r"learned on another 'ease-vit'.*--weights"):
        open_model(model)
    with pytest.raises(EaseError, match=r"learned on another 'ease-vit'.*--weights"):
        pack(model, tmp_path / "no.ease")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


NAME = "test_vit"  # timm's own smallest


@pytest.fixture(scope="module")
def vit() -> Any:
    """With the classifier that most files hold."""
    return randomised(timm.create_model(NAME, num_classes=5), std=0.05).eval()


class TestBackbones:
    @pytest.mark.parametrize("kind", ["safetensors", "npz"])
    @pytest.mark.usefixtures("no_network")
    def test_positions_are_those_of_the_file_whatever_the_input_size(
        self, vit: Any, tmp_path: Path, kind: str
    ) -> None:
        file = tmp_path / f"vit.{kind}"
        if kind == "npz":
            np.savez(file, **jax_names(vit))
        else:
            save_file(vit.state_dict(), file)
        run = learn(tmp_path / "run", "simplecil", NAME, file, input_size=32)
        wanted = self._logits(run / "model", file)
        file = file.rename(tmp_path / f"moved.{kind}")
        with pytest.raises(EaseError, match="--weights"):
            pack(run, tmp_path / "no.ease")
        assert not (tmp_path / "no.ease").exists()
        packed = pack(run, tmp_path / "vit.ease", weights=file)
        model = unpack(packed.path, tmp_path / "model").path
        file.unlink()
        assert torch.equal(logits(model, 32), wanted)
        kept = load_file(model / BACKBONE_FILE)
        assert not [name for name in kept if name.startswith("head")]
        if kind == "safetensors":
            assert kept["pos_embed"].shape == vit.pos_embed.shape

    def _logits(self, model: Path, weights: Path) -> torch.Tensor:
        learner, _ = open_model(model, weights)
        return learner.logits(torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)))

    def test_weights_of_the_hub_are_packed_at_their_own_size(
        self, vit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_file(vit.state_dict(), tmp_path / "vit.safetensors")
        create = timm.create_model

        def served(name: str, pretrained: bool = False, **more: Any) -> Any:
            file = str(tmp_path / "vit.safetensors")
            overlay = {"file": file, "hf_hub_id": None, "url": ""} if pretrained else None
            return create(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **more)

        monkeypatch.setattr(zoo.timm, "create_model", served)
        monkeypatch.setattr(zoo, "_unreachable", {})  # other tests may have asked for it without a network
        run = learn(tmp_path / "run", "simplecil", NAME, input_size=32)
        wanted = logits(run / "model", 32)
        packed = pack(run, tmp_path / "vit.ease")
        (tmp_path / "vit.safetensors").unlink()
        assert torch.equal(logits(unpack(packed.path, tmp_path / "model").path, 32), wanted)


def test_the_commands(run: Path, archive: Path, tmp_path: Path) -> None:
    packed = ease("pack", run, "--out", tmp_path / "m.ease")
    assert packed.stdout == f"{tmp_path / 'm.ease'}: 5.5 MB, generation 1, 5 files\n"
    assert (tmp_path / "m.ease").read_bytes() == archive.read_bytes()
    done = ease("unpack", archive, tmp_path / "model", "--json")
    assert json.loads(done.stdout)["path"] == str(tmp_path / "model")
    assert "generation 1" in ease("info", tmp_path / "model").stdout
    assert "is there already" in refused(ease("unpack", archive, tmp_path / "model"))


def test_images_leave_only_when_allowed(tmp_path: Path) -> None:
    run = learn(tmp_path / "run", "icarl")
    with pytest.raises(EaseError, match=r"keeps training images.*--with-images"):
        pack(run, tmp_path / "no.ease")
    assert not (tmp_path / "no.ease").exists()
    model = unpack(pack(run, tmp_path / "yes.ease", images=True).path, tmp_path / "model").path
    assert torch.equal(logits(model), logits(run / "model"))
    assert (model / "memory").is_dir()


def test_a_damaged_model_is_not_packed(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    file = next((tmp_path / "model" / "subspaces").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(EaseError, match="is damaged"):
        pack(tmp_path / "model", tmp_path / "no.ease")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


# --- archives from strangers ----------------------------------------------------------------------

Member = tuple[zipfile.ZipInfo, bytes]


def members(archive: Path) -> list[Member]:
    with zipfile.ZipFile(archive) as opened:
        return [(info, opened.read(info)) for info in opened.infolist()]


def rewritten(members: list[Member], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as target:
        for info, data in members:
            fresh = zipfile.ZipInfo(info.filename)
            fresh.external_attr, fresh.compress_type = info.external_attr, info.compress_type
            target.writestr(fresh, data)
    return path


def refusal(archive: Path, tmp_path: Path) -> str:
    """The one line, and nothing left."""
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(EaseError) as caught:
        unpack(archive, tmp_path / "new" / "model")
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    return str(caught.value)


def named(name: str, data: bytes = b"x", mode: int = stat.S_IFREG | 0o644) -> Member:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info, data


def a_subspace(found: list[Member]) -> int:
    return next(i for i, (info, _) in enumerate(found) if info.filename.startswith("subspaces/"))


def tampered(found: list[Member]) -> list[Member]:
    at = a_subspace(found)
    info, data = found[at]
    return [*found[:at], (info, data[:-1] + bytes([data[-1] ^ 1])), *found[at + 1 :]]


def longer(found: list[Member]) -> list[Member]:
    at = a_subspace(found)
    return [*found[:at], (found[at][0], found[at][1] + b"x"), *found[at + 1 :]]


def without(name: str) -> Callable[[list[Member]], list[Member]]:
    return lambda found: [one for one in found if not one[0].filename.startswith(name)]


def compressed(found: list[Member]) -> list[Member]:
    found[a_subspace(found)][0].compress_type = zipfile.ZIP_DEFLATED
    return found


def other_backbone(found: list[Member]) -> list[Member]:
    """Right in itself, but not what the model was learned on."""
    data = encode_tensors({"a": torch.zeros(2)})
    by_name = {info.filename: content for info, content in found}
    index = json.loads(by_name["pack.json"])
    index["files"][BACKBONE_FILE] = vars(entry_of(data))
    changed = {BACKBONE_FILE: data, "pack.json": json.dumps(index).encode()}
    return [(info, changed.get(info.filename, content)) for info, content in found]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tampered, "checksum of 'subspaces/"),
        (longer, "bytes instead of"),
        (without("subspaces/0001"), "it lacks 'subspaces/0001"),
        (without("manifest.json"), "it lacks 'manifest.json'"),
        (without("pack.json"), "it lacks 'pack.json'"),
        (without("backbone"), f"it lacks '{BACKBONE_FILE}'"),
        (lambda found: [*found, named("extra.txt")], "'extra.txt' is not a file of the model"),
        (lambda found: [*found, named("../escaped")], "leads out of the folder"),
        (lambda found: [*found, named("/escaped")], "leads out of the folder"),
        (lambda found: [*found, named("a\\..\\escaped")], "leads out of the folder"),
        (lambda found: [*found, named("C:escaped")], "leads out of the folder"),
        (lambda found: [*found, named("link", b"/etc", stat.S_IFLNK | 0o777)], "not a plain file"),
        (lambda found: [*found, named("folder/", b"")], "not a plain file"),
        (lambda found: [*found, named("Manifest.json")], "occurs twice"),
        (lambda found: [*found, found[0]], "occurs twice"),
        (compressed, "is compressed"),
        (other_backbone, "not the 'ease-vit' that the model was learned on"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_are_refused(
    archive: Path, tmp_path: Path, change: Callable[[list[Member]], list[Member]], message: str
) -> None:
    assert message in refusal(rewritten(change(members(archive)), tmp_path / "bad.ease"), tmp_path)


def test_a_member_that_claims_to_be_huge(archive: Path, tmp_path: Path) -> None:
    data = bytearray(archive.read_bytes())
    at = data.index(b"PK\1\2")  # the first entry of the directory: compressed and plain size
    data[at + 20 : at + 28] = (2**31).to_bytes(4, "little") * 2
    (tmp_path / "bomb.ease").write_bytes(data)
    assert "larger than the archive" in refusal(tmp_path / "bomb.ease", tmp_path)


def test_limits_are_checked_before_the_directory_is_read(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("zipfile has read it already")

    with monkeypatch.context() as patched:
        patched.setattr(zipfile, "ZipFile", read)
        patched.setattr(packing, "MEMBERS", 3)
        assert "more than 3 members" in refusal(archive, tmp_path)
        patched.setattr(packing, "ARCHIVE_LIMIT", 2**10)
        assert "larger than" in refusal(archive, tmp_path)


def test_files_that_are_no_archives(archive: Path, tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.ease", tmp_path)
    for content in (b"", b"not a zip", archive.read_bytes()[:-30], b"PK\5\6" + bytes(18)):
        (tmp_path / "bad.ease").write_bytes(content)
        assert "cannot be unpacked" in refusal(tmp_path / "bad.ease", tmp_path)


def test_a_later_format_asks_for_a_later_version(archive: Path, tmp_path: Path) -> None:
    later = [(i, b'{"format": 2}' if i.filename == "pack.json" else d) for i, d in members(archive)]
    assert "upgrade ease-cil" in refusal(rewritten(later, tmp_path / "new.ease"), tmp_path)


def test_a_folder_with_something_in_it_is_left_alone(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").write_text("keep")
    with pytest.raises(EaseError, match="is there already"):
        unpack(archive, tmp_path / "mine")
    assert (tmp_path / "mine" / "note").read_text() == "keep"
    (tmp_path / "empty").mkdir()
    assert ModelDirectory(unpack(archive, tmp_path / "empty").path).exists


def test_a_full_disk_leaves_nothing(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(point: str, path: Path) -> None:
        if path.name == "manifest.json" and point == "after-write":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "fault", full)
    assert "disk is full" in refusal(archive, tmp_path)


@settings(max_examples=40, deadline=None)
@example(where=321, value=0, at_end=True)  # a name that begins with a zero byte
@given(where=st.integers(1, 1200), value=st.integers(0, 255), at_end=st.booleans())
def test_a_changed_byte_is_refused_or_makes_no_difference(
    archive: Path, run: Path, where: int, value: int, at_end: bool
) -> None:
    data = bytearray(archive.read_bytes())
    data[-where if at_end else where] = value
    changed, target = archive.with_name("changed.ease"), archive.with_name("changed")
    changed.write_bytes(data)
    try:
        unpack(changed, target)
    except EaseError:
        assert not target.exists()
        return
    ModelDirectory(target).verify()
    assert ModelDirectory(target).manifest() == ModelDirectory(run / "model").manifest()
    shutil.rmtree(target)
