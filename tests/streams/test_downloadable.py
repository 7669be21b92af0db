from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ease.errors import EaseError
from ease.streams import load_dataset


def put_classes(root: Path, per_class: dict[str, int]) -> None:
    for c, (name, count) in enumerate(per_class.items()):
        for i in range(count):
            path = root / name / f"{name}_{i:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((32, 32, 3), 40 * c + i, np.uint8)).save(path)


def test_a_subset_in_class_folders_is_recognised_and_counted(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", {"bear": 3, "apple": 3, "train": 3})
    put_classes(tmp_path / "test", {"bear": 2, "apple": 2, "train": 2})
    dataset = load_dataset("cifar100", tmp_path)
    assert dataset.name == "cifar100-subset"
    assert dataset.class_names == ("apple", "bear", "train")
    (note,) = dataset.notes
    assert "3 of 100 classes, 9 of 50,000 train and 6 of 10,000 test" in note
    assert "cifar100-subset" in note
    limited = load_dataset("cifar100", tmp_path, limit_per_class=1)
    assert len(limited.train) == 3
    assert note in limited.notes


def test_a_missing_cifar100_says_where_to_put_it_and_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("tried to download")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    with pytest.raises(EaseError, match=r"cifar-100-python.*allow the download"):
        load_dataset("cifar100", tmp_path)
    monkeypatch.setenv("EASE_DATA", str(tmp_path))
    with pytest.raises(EaseError, match=str(tmp_path / "cifar100")):
        load_dataset("cifar100")


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fails)
    with pytest.raises(EaseError, match="the download failed"):
        load_dataset("cifar100", tmp_path, download=True)


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("sprung",)


def test_python_files_that_are_not_the_official_ones_are_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test", "meta"):
        (folder / name).write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(EaseError, match="CIFAR-100 is not in"):
        load_dataset("cifar100", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_the_official_files_keep_their_own_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files of the official form, with the checksums torchvision expects replaced by theirs."""
    import hashlib

    from torchvision.datasets import CIFAR100

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    fine = [f"class{c:02}" for c in range(100)]
    rng = np.random.default_rng(0)
    sums = {}
    for name, per_class in (("train", 2), ("test", 1)):
        labels = np.tile(np.arange(100), per_class).tolist()
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": data, "fine_labels": labels}))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": fine}))
    for name in ("train", "test", "meta"):
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})
    dataset = load_dataset("cifar100", tmp_path, limit_per_class=1)
    assert dataset.class_names == tuple(fine)
    assert len(dataset.train) == len(dataset.test) == 100
    assert dataset.train.image(3).shape == (3, 32, 32)


@pytest.mark.skipif("EASE_SHARED" not in os.environ, reason="EASE_SHARED is not set")
def test_the_shared_subset_has_the_order_of_the_official_labels(tmp_path: Path) -> None:
    with tarfile.open(Path(os.environ["EASE_SHARED"]) / "data" / "cifar100-200.tar") as tar:
        wanted = [m for m in tar.getmembers() if m.name.endswith(".png")]
        first: dict[str, tarfile.TarInfo] = {}
        for member in wanted:
            first.setdefault(str(Path(member.name).parent), member)
        tar.extractall(tmp_path, list(first.values()), filter="data")
    dataset = load_dataset("cifar100", tmp_path)
    assert len(dataset.class_names) == 100
    assert (dataset.class_names[0], dataset.class_names[68], dataset.class_names[99]) == (
        "apple",
        "road",
        "worm",
    )
