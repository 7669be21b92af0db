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


CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def put_fashion(root: Path, train: int, test: int, *, same: bool = False) -> Path:
    """Small files of Fashion-MNIST's form: labels 0..9 in turn. `same`: the first images are equal."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        if same:
            pixels[0] = 7
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = b"\0\0\x08\x03" + np.array([count, 28, 28], ">i4").tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = b"\0\0\x08\x01" + np.array([count], ">i4").tobytes()
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return raw


def test_grey_images_become_rgb_under_their_own_names(tmp_path: Path) -> None:
    put_fashion(tmp_path, train=20, test=10)
    data = load_dataset("fashion-mnist", tmp_path)
    assert data.class_names == CLOTHES
    assert data.name == "fashion-mnist-2"
    assert "20 of 60,000 train" in data.notes[0]
    image = data.train.image(3)
    assert image.shape == (3, 28, 28)
    assert (image[0] == image[2]).all()
    assert data.train.labels[:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("harm", ["short", "kind", "label", "fewer"])
def test_damaged_files_of_fashion_mnist_are_one_line(harm: str, tmp_path: Path) -> None:
    raw = put_fashion(tmp_path, train=20, test=10)
    images, labels = raw / "train-images-idx3-ubyte", raw / "train-labels-idx1-ubyte"
    content = images.read_bytes()
    if harm == "short":
        images.write_bytes(content[:-100])
    elif harm == "kind":
        images.write_bytes(b"\0\0\x77\x03" + content[4:])
    elif harm == "label":
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x0b")
    else:
        labels.write_bytes(b"\0\0\x08\x01" + np.array([10], ">i4").tobytes() + bytes(10))
    with pytest.raises(EaseError, match="FashionMNIST is incomplete or altered") as caught:
        load_dataset("fashion-mnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_processed_copy_of_old_torchvision_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.load", lambda *args, **kwargs: pytest.fail("opened a pickle"))
    processed = tmp_path / "FashionMNIST" / "processed"
    processed.mkdir(parents=True)
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(EaseError, match="Fashion-MNIST is not in"):
        load_dataset("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    "folders",
    [("9", "0", "5"), ("Ankle_boot", "t-shirt_top", "Sandal"), ("ankle boot", "T-shirt-top", "SANDAL")],
)
def test_class_folders_come_in_the_order_of_the_official_labels(
    folders: tuple[str, ...], tmp_path: Path
) -> None:
    put_classes(tmp_path / "train", dict.fromkeys(folders, 2))
    put_classes(tmp_path / "test", dict.fromkeys(folders, 1))
    data = load_dataset("fashion-mnist", tmp_path)
    assert data.class_names == ("T-shirt/top", "Sandal", "Ankle boot")
    assert data.name == "fashion-mnist-subset"
    for part in (data.train, data.test):
        files = [path.parent.name for path in part.source.contents]
        assert [files[i] for i in np.unique(part.labels, return_index=True)[1]] == [
            folders[1],
            folders[2],
            folders[0],
        ]


def test_numbered_folders_of_cifar_keep_the_order_of_their_numbers(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", dict.fromkeys(("10", "9", "train"), 1))
    put_classes(tmp_path / "test", dict.fromkeys(("10", "9", "train"), 1))
    assert load_dataset("cifar10", tmp_path).class_names == ("10", "9", "train")
    for part in ("train", "test"):
        (tmp_path / part / "train" / "train_0000.png").unlink()
        (tmp_path / part / "train").rmdir()
    assert load_dataset("cifar10", tmp_path).class_names == ("9", "10")


def test_the_archives_are_those_torchvision_fetches() -> None:
    from torchvision.datasets import CIFAR10, CIFAR100, FashionMNIST

    from ease.streams.datasets.dataset_info import DATASET_INFO

    assert DATASET_INFO["cifar10"].archives == {CIFAR10.filename: CIFAR10.tgz_md5}
    assert DATASET_INFO["cifar100"].archives == {CIFAR100.filename: CIFAR100.tgz_md5}
    assert DATASET_INFO["fashion-mnist"].archives == dict(FashionMNIST.resources)
    assert [DATASET_INFO[n].train for n in ("cifar10", "cifar100", "fashion-mnist")] == [
        50_000,
        50_000,
        60_000,
    ]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fashion-mnist"])
def test_missing_files_say_where_they_were_published(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EASE_DATA", raising=False)
    for root in (None, tmp_path):
        with pytest.raises(EaseError, match=r"train/CLASS and test/CLASS.*https://.*--download"):
            load_dataset(name, root)
