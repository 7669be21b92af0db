"""Links in local data are followed; one that leads back or to nothing is named, and no walk is endless."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ease.errors import EaseError
from ease.streams.datasets.check import check_dataset
from ease.streams.intake import collect_images, find_images, scan
from ease.streams.intake.scan import scan_folder
from tests.streams.test_folder import put, put_classes


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return put_classes(tmp_path / "mine", {"cat": 5})


def test_a_linked_class_folder_is_a_class(mine: Path, tmp_path: Path) -> None:
    put_classes(tmp_path / "elsewhere", {"dog": 6}, start=50)
    (mine / "hund").symlink_to(tmp_path / "elsewhere" / "dog")
    found = collect_images(mine)
    assert found.names == ("cat", "hund")
    assert found.images.labels.tolist() == [0] * 5 + [1] * 6
    assert found.notes == ()


def test_a_linked_image_outside_of_the_root_is_read(mine: Path, tmp_path: Path) -> None:
    (mine / "cat" / "x.png").symlink_to(put(tmp_path / "outside.png", 99))
    found = collect_images(mine)
    assert len(found.images) == 6
    assert found.images.image(5).shape == (3, 10, 12)


def test_a_linked_folder_counts_twice_where_it_is_linked_twice(mine: Path) -> None:
    (mine / "also-cat").symlink_to(mine / "cat")
    found = collect_images(mine)
    assert found.names == ("also-cat", "cat")
    assert any("5 images are in both 'also-cat' and 'cat'" in note for note in found.notes)


def test_a_model_among_the_photos_it_learned_from_is_no_class(mine: Path) -> None:
    (mine / "model" / "manifests").mkdir(parents=True)
    (mine / "model" / "manifest.json").write_text("{}")
    put_classes(mine / "model.inbox", {"photos": 2}, start=70)
    (mine / "model.jobs").mkdir()
    found = collect_images(mine)
    assert found.names == ("cat",)
    assert any("left out 3 files (model, model.inbox, model.jobs)" in note for note in found.notes)


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_cycle_is_named_and_not_walked(mine: Path, target: str) -> None:
    (mine / "cat" / "deep").mkdir()
    (mine / "cat" / "deep" / "back").symlink_to(target)
    with pytest.raises(EaseError, match=r"deep/back' is a link to '.*', which contains it: remove the link"):
        collect_images(mine)
    found = collect_images(mine, unreadable="skip")
    assert len(found.images) == 5
    assert any("cat/deep/back" in note for note in found.notes)
    with pytest.raises(EaseError, match="which contains it"):
        find_images([mine])


def test_a_class_folder_that_is_a_cycle_is_no_class(mine: Path) -> None:
    (mine / "all").symlink_to(mine)
    with pytest.raises(EaseError, match=r"all' is a link to '.*', which contains it"):
        collect_images(mine)
    assert collect_images(mine, unreadable="skip").names == ("cat",)


def test_a_cycle_through_two_folders_is_noticed(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 2, "dog": 2})
    (tmp_path / "cat" / "dogs").symlink_to(tmp_path / "dog")
    (tmp_path / "dog" / "cats").symlink_to(tmp_path / "cat")
    with pytest.raises(EaseError, match="which contains it"):
        scan_folder(tmp_path)
    found = scan_folder(tmp_path, "skip")
    assert {name: len(paths) for name, paths in found.train.items()} == {"cat": 4, "dog": 4}
    assert set(found.skipped) == {"cat/dogs/cats", "dog/cats/dogs"}


def test_links_that_multiply_folders_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten folders, each linked twice from the one before it, are a thousand without any cycle."""
    for level in range(10):
        (tmp_path / f"{level}").mkdir()
        for link in ("a", "b"):
            (tmp_path / f"{level}" / link).symlink_to(tmp_path / f"{level + 1}")
    put(tmp_path / "10" / "x.png", 1)
    assert len(find_images([tmp_path / "0"])) == 2**10
    monkeypatch.setattr(scan, "MAX_FOLDERS", 100)
    with pytest.raises(EaseError, match="more than 100 folders"):
        find_images([tmp_path / "0"])
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "cat").symlink_to(tmp_path / "0")
    with pytest.raises(EaseError, match="more than 100 folders"):
        scan_folder(tmp_path / "root", "skip")


@pytest.mark.parametrize("name", ["x.png", "x"])
def test_a_dangling_link_is_named(mine: Path, name: str) -> None:
    (mine / "cat" / name).symlink_to("nowhere")
    with pytest.raises(EaseError, match=rf"cat/{name}' leads to 'nowhere', which does not exist"):
        collect_images(mine)
    with pytest.raises(EaseError, match="leads to 'nowhere'"):
        find_images([mine])
    found = collect_images(mine, unreadable="skip")
    assert len(found.images) == 5
    assert any(f"cat/{name}" in note for note in found.notes)


@pytest.mark.parametrize("target", ["nowhere", "dog"])
def test_a_class_folder_that_leads_nowhere_is_named(mine: Path, target: str) -> None:
    (mine / "dog").symlink_to(target)  # to nothing, or to itself
    with pytest.raises(EaseError, match=rf"dog' leads to '{target}'"):
        collect_images(mine)
    assert collect_images(mine, unreadable="skip").names == ("cat",)
    put_classes(mine, {"owl": 5}, start=70)
    check = check_dataset("folder", mine)
    assert check.unreadable == ["dog"]
    assert not check.good


def test_a_link_to_a_folder_that_cannot_be_looked_at_is_an_error(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine / "dog").symlink_to("/closed/dog")
    stat = os.stat

    def closed(path: str | Path, *rest: object, **named: object) -> os.stat_result:
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", closed)
    with pytest.raises(EaseError, match=r"cannot follow the link .*dog: permission denied"):
        collect_images(mine, unreadable="skip")


def test_train_and_test_folders_may_be_links(tmp_path: Path) -> None:
    put_classes(tmp_path / "a", {"cat": 2, "dog": 2})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "a")
    (tmp_path / "data" / "test").symlink_to(tmp_path / "a")
    found = scan_folder(tmp_path / "data")
    assert [len(paths) for paths in found.train.values()] == [2, 2]
    assert found.test is not None
    assert found.relative_name(found.test["dog"][1]) == "test/dog/001.png"
