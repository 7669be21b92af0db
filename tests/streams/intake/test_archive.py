"""Archives and uploads: names decide the class and never a path, and links are never followed."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from ease.errors import EaseError
from ease.streams.intake import ArchiveLimits, ImageLimits, TooLargeError, collect_images
from ease.streams.intake.sources import NamedFile, from_archive, from_uploads, unpack_images
from tests.streams.test_folder import put


@pytest.fixture
def png(tmp_path: Path) -> bytes:
    return put(tmp_path / "one.png", 1).read_bytes()


def write_zip(path: Path, members: dict[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def linked(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "unpacked").mkdir()
    return tmp_path / "unpacked"


def test_an_archive_is_a_source_like_any_other(tmp_path: Path, folder: Path, png: bytes) -> None:
    other = put(tmp_path / "other.png", 2).read_bytes()
    members: dict[str | zipfile.ZipInfo, bytes] = {
        "photos/dog/a.png": png,
        "photos/cat/deep/b.png": other,
        "photos/.DS_Store": b"junk",
        "photos/cat/Thumbs.db": b"junk",
        "__MACOSX/photos/dog/._a.png": b"junk",
    }
    found = collect_images(from_archive(write_zip(tmp_path / "a.zip", members), folder))
    assert found.names == ("dog", "cat")
    assert found.images.labels.tolist() == [0, 1]
    assert found.images.image(1).shape == (3, 10, 12)
    assert sorted(path.name for path in folder.iterdir()) == ["z000000.png", "z000001.png"]


@pytest.mark.parametrize("name", ["cat/link.png", "cat", "cat/more"])
def test_a_link_in_an_archive_is_refused(tmp_path: Path, folder: Path, png: bytes, name: str) -> None:
    secret = put(tmp_path / "secret.png", 9)
    archive = write_zip(tmp_path / "a.zip", {"cat/a.png": png, linked(name): str(secret).encode()})
    with pytest.raises(EaseError, match=rf"'{name}' is a link"):
        unpack_images(archive, folder)
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert all(path.read_bytes() == png for path in folder.iterdir())


def test_limits_of_an_archive(tmp_path: Path, folder: Path, png: bytes) -> None:
    archive = write_zip(tmp_path / "a.zip", {f"cat/{i}.png": png for i in range(3)})
    with pytest.raises(TooLargeError, match="more than 2 images"):
        unpack_images(archive, folder, ArchiveLimits(images=2))
    with pytest.raises(TooLargeError, match="unpacked"):
        unpack_images(archive, folder, ArchiveLimits(bytes=3 * len(png) - 1))
    with pytest.raises(TooLargeError, match=r"cat/0\.png"):
        unpack_images(archive, folder, ArchiveLimits(image=ImageLimits(bytes=len(png) - 1)))
    assert list(folder.iterdir()) == []
    assert len(unpack_images(archive, folder, ArchiveLimits(3, 3 * len(png), ImageLimits(len(png))))) == 3


def test_what_is_no_archive_is_one_line(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK nothing")
    with pytest.raises(EaseError, match="damaged or not a zip file"):
        unpack_images(tmp_path / "a.zip", folder)
    with pytest.raises(FileNotFoundError):
        unpack_images(tmp_path / "missing.zip", folder)


def test_uploads_are_sorted_into_classes_by_their_names(tmp_path: Path, png: bytes) -> None:
    (tmp_path / "0").write_bytes(png)
    files = [
        NamedFile(name, tmp_path / "0") for name in ("cat/a.png", "blob", "cat\\b.png", "dog/deep/c.png")
    ]
    found = from_uploads(files, "owl")
    assert {name: [i.name for i in images] for name, images in found.by_class().items()} == {
        "cat": ["cat/a.png", "cat\\b.png"],
        "owl": ["blob"],
        "dog": ["dog/deep/c.png"],
    }
    with pytest.raises(EaseError, match="'blob' is in no class folder"):
        from_uploads(files)
    with pytest.raises(EaseError, match="no image"):
        from_uploads([NamedFile(".hidden/a.png", tmp_path / "0")])


def test_damage_in_a_source_is_named_as_its_sender_named_it(tmp_path: Path, folder: Path) -> None:
    found = from_archive(write_zip(tmp_path / "a.zip", {"cat/a.png": b"text"}), folder)
    with pytest.raises(EaseError, match=r"image 'cat/a\.png' cannot be read"):
        collect_images(found)
    with pytest.raises(EaseError, match=r"'cat' has no image to learn from \(image 'cat/a\.png'"):
        collect_images(found, unreadable="skip")
