"""Damage is reported as damage, and nothing else is."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ease.errors import EaseError
from ease.progress import Quiet
from ease.streams import load_dataset
from ease.streams.datasets.check import check_dataset
from ease.streams.datasets.dataset_info import DATASET_INFO
from tests.streams.test_benchmarks import BIRDS, put_cub_lists, put_split, small_cub
from tests.streams.test_folder import put, put_classes, truncate

__all__ = ["small_cub"]


@pytest.fixture
def birds(tmp_path: Path, small_cub: None) -> Path:
    return put_split(tmp_path / "cub", BIRDS)


def test_good_data_is_good(birds: Path) -> None:
    found = check_dataset("cub200", birds)
    assert found.good
    assert found.found == "cub200"
    assert found.sizes == found.expected
    assert (found.notes, found.warnings, found.unreadable, found.duplicates) == ([], [], [], [])
    text = "\n".join(found.lines())
    assert "3 classes, 9 train and 6 test images" in text
    assert "every file can be read" in text
    assert "no image is in both train and test" in text


def test_a_subset_is_recognised_and_not_called_damage(birds: Path) -> None:
    for part in ("train", "test"):
        shutil.rmtree(birds / part / BIRDS[2])
    found = check_dataset("cub200", birds)
    assert found.good
    assert found.found == load_dataset("cub200", birds).name == "cub200-subset"
    text = "\n".join(found.lines())
    assert "2 classes, 6 train and 4 test images" in text
    assert "3 classes, 9 train and 6 test images" in text
    assert "damage" not in text


@pytest.mark.usefixtures("small_cub")
def test_the_official_split_is_recognised_and_not_called_damage(tmp_path: Path) -> None:
    found = check_dataset("cub200", put_cub_lists(tmp_path))
    assert found.good
    assert found.found == "cub200-official"
    assert any("official CUB-200-2011 split" in note for note in found.notes)


def test_truncated_files_are_damage_and_named(birds: Path) -> None:
    torn = [put(birds / "train" / BIRDS[0] / f"torn{i}.jpg", i, (80, 60)) for i in range(7)]
    for path in torn:
        truncate(path)
    found = check_dataset("cub200", birds)
    assert not found.good
    assert found.unreadable == [f"train/{BIRDS[0]}/torn{i}.jpg" for i in range(7)]
    (line,) = found.damage
    assert "7 files" in line
    assert "torn0.jpg" in line
    assert "and 2 more" in line


def test_a_listed_image_that_is_gone_is_damage(tmp_path: Path) -> None:
    put_cub_lists(tmp_path)
    (tmp_path / "images" / BIRDS[0] / "bird_0.jpg").unlink()
    found = check_dataset("cub200", tmp_path)
    assert found.unreadable == [f"images/{BIRDS[0]}/bird_0.jpg"]
    assert not found.good


def test_an_empty_class_and_a_missing_test_folder_are_damage(birds: Path) -> None:
    shutil.rmtree(birds / "test" / BIRDS[1])
    (birds / "test" / BIRDS[1]).mkdir()
    found = check_dataset("cub200", birds)
    assert any(f"test/{BIRDS[1]}" in line for line in found.damage)
    shutil.rmtree(birds / "test")
    found = check_dataset("cub200", birds)
    assert any("no test/" in line for line in found.damage)
    assert found.sizes is not None
    assert (found.sizes.classes, found.sizes.train) == (3, 9)


def test_a_class_that_is_only_tested_is_damage_one_that_is_only_learned_a_warning(birds: Path) -> None:
    shutil.rmtree(birds / "test" / BIRDS[0])
    found = check_dataset("cub200", birds)
    assert found.good
    assert any(BIRDS[0] in line for line in found.warnings)
    put(birds / "test" / "stranger" / "0.png", 1)
    assert any("stranger" in line for line in check_dataset("cub200", birds).damage)


def test_copies_across_train_and_test_are_a_warning_that_names_them(birds: Path) -> None:
    shutil.copy(birds / "train" / BIRDS[0] / "001.png", birds / "test" / BIRDS[2] / "copy.png")
    shutil.copy(birds / "train" / BIRDS[0] / "001.png", birds / "train" / BIRDS[0] / "again.png")
    found = check_dataset("cub200", birds)
    assert found.good
    assert found.duplicates == [(f"test/{BIRDS[2]}/copy.png", f"train/{BIRDS[0]}/001.png")]
    assert any("copy.png = train/" in line for line in found.warnings)
    assert "no image is in both" not in "\n".join(found.lines())


def test_classes_with_the_same_images_are_a_warning(tmp_path: Path) -> None:
    put_split(tmp_path, ("ant", "bee", "cat"))
    for part in ("train", "test"):
        shutil.copytree(tmp_path / part / "bee", tmp_path / part / "wasp")
    shutil.copy(tmp_path / "train" / "ant" / "000.png", tmp_path / "train" / "cat" / "one.png")
    found = check_dataset("omnibenchmark", tmp_path)
    assert found.good
    assert [(t.first, t.second, t.shared, t.images) for t in found.twins] == [("bee", "wasp", 5, 5)]
    assert any("bee and wasp (5 of 5)" in line for line in found.warnings)


def test_an_archive_is_known_by_its_md5_and_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "cub.zip"
    archive.write_bytes(b"no zip at all" * 100_000)
    found = check_dataset("cub200", archive=archive)
    assert not found.good
    assert found.sizes is None
    assert found.archive is not None
    assert found.archive.md5 in found.damage[0]
    assert "85e342a2d5f941e740193602057df7a5" in found.damage[0]
    known = replace(
        DATASET_INFO["cub200"], archives={"cub.zip": hashlib.md5(archive.read_bytes()).hexdigest()}
    )
    monkeypatch.setitem(DATASET_INFO, "cub200", known)
    assert check_dataset("cub200", archive=archive).good
    renamed = archive.rename(tmp_path / "cub(1).zip")
    assert check_dataset("cub200", archive=renamed).good
    with pytest.raises(EaseError, match="does not exist"):
        check_dataset("cub200", archive=archive)
    with pytest.raises(EaseError, match="not published as an archive"):
        check_dataset("folder", archive=renamed)


def test_archive_and_folder_can_be_checked_together(birds: Path) -> None:
    (birds / "cub.zip").write_bytes(b"broken")
    found = check_dataset("cub200", birds, birds / "cub.zip")
    assert found.sizes is not None
    assert len(found.damage) == 1


def test_progress_counts_every_file_once(birds: Path) -> None:
    bars: list[list[int]] = []

    class Counting(Quiet):
        @contextmanager
        def bar(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
            bars.append([total, done])
            at = len(bars) - 1

            def advance(steps: int) -> None:
                bars[at][1] += steps

            yield advance

    check_dataset("cub200", birds, progress=Counting())
    assert bars == [[15, 15]]


def test_missing_data_is_the_helpful_line(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match=r"train/CLASS and test/CLASS.*published"):
        check_dataset("imagenet-a", tmp_path)
    with pytest.raises(EaseError, match="did you mean 'imagenet-a'"):
        check_dataset("imagenet_a", tmp_path)


@pytest.mark.parametrize("name", ["digits", "glyphs"])
def test_built_in_data_needs_no_check(name: str) -> None:
    found = check_dataset(name)
    assert found.good
    assert "nothing to check" in found.lines()[0]


def test_your_own_folder_is_checked_too(tmp_path: Path) -> None:
    put_classes(tmp_path, {"ant": 4, "bee": 4})
    (tmp_path / "bee" / "readme.txt").write_text("hello")
    found = check_dataset("folder", tmp_path)
    assert found.good
    assert found.found == "folder"
    assert found.expected is None
    assert any("a fifth" in note for note in found.notes)
    assert any("bee/readme.txt" in note for note in found.notes)
    assert any("fewer than 5 images (ant: 4, bee: 4)" in note for note in found.notes)
    (tmp_path / "cat").mkdir()
    assert any("cat" in line for line in check_dataset("folder", tmp_path).damage)
    with pytest.raises(EaseError, match="no class folder"):
        check_dataset("folder", tmp_path / "cat")


def test_names_that_learning_would_refuse_and_uneven_classes_are_reported_for_your_own_folder(
    tmp_path: Path,
) -> None:
    put_classes(tmp_path, {"ant": 51, "bee": 5, "x" * 101: 5})
    found = check_dataset("folder", tmp_path)
    assert found.good
    assert any("101 characters" in line for line in found.warnings)
    assert any("'ant' has 51 images, 'bee' 5" in note for note in found.notes)


def test_class_folders_of_cifar_are_a_subset_and_its_altered_files_are_damage(tmp_path: Path) -> None:
    put_split(tmp_path / "folders", ("apple", "bear", "train"))
    found = check_dataset("cifar100", tmp_path / "folders")
    assert found.good
    assert found.found == "cifar100-subset"
    shutil.rmtree(tmp_path / "folders" / "test")
    found = check_dataset("cifar100", tmp_path / "folders")
    assert any("no test/" in line for line in found.damage)
    assert found.sizes is not None
    assert found.sizes.classes == 3
    (tmp_path / "files" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "files" / "cifar-100-python" / "train").write_bytes(b"altered")
    (line,) = check_dataset("cifar100", tmp_path / "files").damage
    assert "incomplete or altered" in line
    with pytest.raises(EaseError, match="nothing was downloaded"):
        check_dataset("cifar100", tmp_path)


def test_torchvision_s_files_are_searched_for_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.streams.test_downloadable import put_fashion

    put_fashion(tmp_path, train=20, test=10, same=True)
    found = check_dataset("fashion-mnist", tmp_path)
    assert found.good
    assert found.found == "fashion-mnist-2"
    assert found.duplicates == [("test image 0", "train image 0")]


def test_the_findings_are_json(birds: Path) -> None:
    import json

    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(birds / "train" / BIRDS[0] / "black.png")
    found = json.loads(json.dumps(check_dataset("cub200", birds).as_json()))
    assert found["good"] is True
    assert found["sizes"] == {"classes": 3, "train": 10, "test": 6}
    assert found["expected"]["train"] == 9
    assert found["found"] == "cub200-other"
