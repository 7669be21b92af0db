from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ease.errors import EaseError
from ease.streams import Dataset, load_dataset
from ease.streams.datasets.folder import dataset_from_scan, read_folder
from ease.streams.intake.decode import MixedSource
from ease.streams.intake.scan import scan_folder


def put(path: Path, seed: int, size: tuple[int, int] = (12, 10)) -> Path:
    """A small picture that differs by seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def put_classes(root: Path, classes: dict[str, int], start: int = 0) -> Path:
    for offset, (name, count) in enumerate(classes.items()):
        for i in range(count):
            put(root / name / f"{i:03}.png", start + 1000 * offset + i)
    return root


def truncate(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def names(dataset: Dataset, part: str = "train") -> list[str]:
    source = getattr(dataset, part).source
    assert isinstance(source, MixedSource)
    return ["/".join(path.parts[-2:]) for path in source.contents]


@pytest.fixture
def split_root(tmp_path: Path) -> Path:
    put_classes(tmp_path / "train", {"cat": 3, "ant": 2})
    put_classes(tmp_path / "test", {"cat": 1, "ant": 2}, start=500)
    return tmp_path


def test_train_and_test_folders_are_read_in_the_order_of_their_names(split_root: Path) -> None:
    dataset = load_dataset("folder", split_root)
    assert dataset.class_names == ("ant", "cat")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [0, 0, 1]
    assert names(dataset) == ["ant/000.png", "ant/001.png", "cat/000.png", "cat/001.png", "cat/002.png"]
    assert dataset.train.image(0).shape == (3, 10, 12)
    assert dataset.notes == ()


def test_nested_folders_count_and_hidden_files_do_not(split_root: Path) -> None:
    put(split_root / "train" / "cat" / "deep" / "er" / "x.JPG", 9)
    put(split_root / "train" / "cat" / "._000.png", 10)
    put(split_root / "train" / "cat" / ".thumbs" / "a.png", 11)
    put(split_root / "train" / "__MACOSX" / "a.png", 12)
    dataset = read_folder(split_root)
    assert dataset.class_names == ("ant", "cat")
    assert [name for name in names(dataset) if "er/" in name] == ["er/x.JPG"]
    assert len(dataset.train) == 6


def test_files_that_are_no_images_are_reported(split_root: Path) -> None:
    (split_root / "train" / "cat" / "readme.txt").write_text("hello")
    (split_root / "train" / "list.csv").write_text("1,2")
    (note,) = read_folder(split_root).notes
    assert "2 files" in note
    assert "train/cat/readme.txt" in note


def test_one_folder_is_split_the_same_way_whatever_the_files_are_called(tmp_path: Path) -> None:
    put_classes(tmp_path / "a", {"cat": 10, "ant": 2, "bee": 14})
    first = read_folder(tmp_path / "a")
    assert np.bincount(first.test.labels).tolist() == [1, 3, 2]
    assert np.bincount(first.train.labels).tolist() == [1, 11, 8]
    assert any("chosen by content" in note for note in first.notes)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for path in sorted((tmp_path / "b").rglob("*.png")):
        path.rename(path.with_name(f"x{99 - int(path.stem)}.png"))
    second = read_folder(tmp_path / "b")
    digests = [{d.test.digest(i) for i in range(len(d.test))} for d in (first, second)]
    assert digests[0] == digests[1]


def test_copies_of_an_image_stay_on_one_side_of_the_split(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 6, "ant": 6})
    for path in sorted(tmp_path.rglob("*.png")):
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    dataset = read_folder(tmp_path)
    train, test = ({s.digest(i) for i in range(len(s))} for s in (dataset.train, dataset.test))
    assert not train & test


def test_a_class_with_one_image_is_trained_and_the_missing_test_noted(tmp_path: Path) -> None:
    dataset = read_folder(put_classes(tmp_path, {"cat": 5, "ant": 1}))
    assert np.bincount(dataset.train.labels).tolist() == [1, 4]
    assert any("no test image: ant" in note for note in dataset.notes)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif", ".gif"])
def test_a_truncated_image_is_refused_by_name_or_skipped_with_a_note(split_root: Path, suffix: str) -> None:
    truncate(put(split_root / "train" / "cat" / f"broken{suffix}", 5, (80, 60)))
    with pytest.raises(EaseError, match=f"broken{suffix}.*cannot be read") as caught:
        load_dataset("folder", split_root)
    assert "\n" not in str(caught.value)
    dataset = load_dataset("folder", split_root, unreadable="skip")
    assert len(dataset.train) == 5
    assert any(f"train/cat/broken{suffix}" in note for note in dataset.notes)


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_a_file_that_only_claims_to_be_an_image_is_refused(split_root: Path, content: bytes) -> None:
    (split_root / "test" / "ant" / "fake.png").write_bytes(content)
    with pytest.raises(EaseError, match=r"fake\.png"):
        read_folder(split_root)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_before_it_is_decoded(split_root: Path) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    for side in (10_000, 60_000):  # Pillow itself only warns at the first size
        head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b""))
        (split_root / "train" / "cat" / "bomb.png").write_bytes(bomb + chunk(b"IEND", b""))
        with pytest.raises(EaseError, match=r"bomb\.png.*pixels"):
            read_folder(split_root)


def test_one_class_an_empty_class_and_a_missing_root_are_clear(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="does not exist"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(EaseError, match="is a file"):
        read_folder(put(tmp_path / "a.png", 0))
    (tmp_path / "a.png").unlink()
    with pytest.raises(EaseError, match="no class folder"):
        read_folder(tmp_path)
    put_classes(tmp_path, {"cat": 3})
    with pytest.raises(EaseError, match="only the class 'cat'"):
        read_folder(tmp_path)
    assert dataset_from_scan(scan_folder(tmp_path), "mine", min_classes=1).class_names == ("cat",)
    (tmp_path / "ant").mkdir()
    with pytest.raises(EaseError, match=r"'.*ant' has no image"):
        read_folder(tmp_path)


def test_a_lone_train_folder_is_pointed_out_but_train_is_a_fine_class(tmp_path: Path) -> None:
    put_classes(tmp_path, {"train": 3})
    with pytest.raises(EaseError, match="needs a test/ beside it"):
        read_folder(tmp_path)
    put_classes(tmp_path, {"bus": 3}, start=50)
    assert read_folder(tmp_path).class_names == ("bus", "train")


def test_a_test_class_without_training_images_is_refused(split_root: Path) -> None:
    put(split_root / "test" / "dog" / "0.png", 3)
    with pytest.raises(EaseError, match="test class 'dog'"):
        read_folder(split_root)


def test_a_val_folder_stands_in_for_test(split_root: Path) -> None:
    (split_root / "test").rename(split_root / "val")
    dataset = read_folder(split_root)
    assert len(dataset.test) == 3
    assert any("val/" in note for note in dataset.notes)


def test_a_class_with_no_readable_image_is_refused_even_when_skipping(split_root: Path) -> None:
    for path in (split_root / "train" / "ant").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(EaseError, match=r"class 'ant'.*no readable image"):
        read_folder(split_root, unreadable="skip")


def test_links_to_images_and_folders_are_followed(
    split_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    put_classes(outside, {"dog": 3, "more": 2}, start=300)
    cat = split_root / "train" / "cat"
    (cat / "inside.png").symlink_to(cat / "000.png")
    (cat / "outside.png").symlink_to(outside / "dog" / "000.png")
    (cat / "more").symlink_to(outside / "more")
    for part in ("train", "test"):
        (split_root / part / "dog").symlink_to(outside / "dog")
    dataset = read_folder(split_root)
    assert dataset.class_names == ("ant", "cat", "dog")
    assert np.bincount(dataset.train.labels).tolist() == [2, 7, 3]
    assert {"cat/inside.png", "cat/outside.png", "more/001.png", "dog/002.png"} <= set(names(dataset))
    assert dataset.notes == ()


def test_a_limit_takes_the_first_readable_files_and_opens_no_more(split_root: Path) -> None:
    truncate(split_root / "train" / "cat" / "000.png")
    truncate(split_root / "train" / "cat" / "002.png")
    dataset = load_dataset("folder", split_root, limit_per_class=1, unreadable="skip")
    assert names(dataset) == ["ant/000.png", "cat/001.png"]
    assert not any("002.png" in note for note in dataset.notes)


def test_the_root_may_come_from_the_environment(split_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EASE_DATA", raising=False)
    with pytest.raises(EaseError, match="EASE_DATA"):
        load_dataset("folder")
    data = split_root.parent / "data"
    shutil.copytree(split_root, data / "folder")
    monkeypatch.setenv("EASE_DATA", str(data))
    assert len(load_dataset("folder").train) == 5
    shutil.rmtree(data)


def test_images_are_turned_upright_and_put_on_white(tmp_path: Path) -> None:
    wide = Image.new("RGB", (20, 10), "red")
    exif = wide.getexif()
    exif[0x0112] = 6  # rotate by 90 degrees
    wide.save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("P", (4, 4), 0).save(tmp_path / "clear.gif", transparency=0)
    Image.new("L", (4, 4), 77).save(tmp_path / "grey.png")
    Image.new("CMYK", (4, 4), (0, 0, 0, 0)).save(tmp_path / "print.jpg")
    Image.fromarray(np.full((4, 4), 32768, np.uint16)).save(tmp_path / "deep.png")
    paths = [
        tmp_path / n for n in ("turned.jpg", "clear.png", "clear.gif", "grey.png", "print.jpg", "deep.png")
    ]
    source = MixedSource(paths)
    images = [source.load(i) for i in range(len(source))]
    assert all(image.shape[0] == 3 and str(image.dtype) == "torch.uint8" for image in images)
    assert images[0].shape == (3, 20, 10)
    assert [int(image[1, 0, 0]) for image in images[1:]] == [255, 255, 77, 255, 128]


def test_a_digest_names_the_content_not_the_file(tmp_path: Path) -> None:
    first, other = put(tmp_path / "a.png", 0), put(tmp_path / "b.png", 1)
    copy = Path(shutil.copy(first, tmp_path / "c.png"))
    source = MixedSource([first, other, copy])
    assert source.digest(0) == source.digest(2) != source.digest(1)
    first.unlink()
    for ask in (source.digest, source.load):
        with pytest.raises(EaseError, match=r"a\.png"):
            ask(0)
