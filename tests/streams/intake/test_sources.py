"""Whatever people hand in is either learned from as they see it, or refused in one line."""

from __future__ import annotations

import io
import os
import shutil
import struct
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ease.errors import EaseError
from ease.progress import Quiet
from ease.streams.intake import as_image_set, class_name, collect_images, formats
from ease.streams.intake.decode import decode
from tests.streams.test_folder import put, put_classes, truncate


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(seed: int, side: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def middle(content: bytes) -> list[int]:
    """The colour in the middle of a decoded picture."""
    image = decode(content, "x")
    assert image.dtype == torch.uint8
    assert image.shape[0] == 3
    return image[:, image.shape[1] // 2, image.shape[2] // 2].tolist()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + extra
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


HEIC = b"\x00\x00\x00\x1cftypheic\x00\x00\x00\x00mif1heicmiaf" + bytes(200)
AVIF = b"\x00\x00\x00\x1cftypmif1\x00\x00\x00\x00avifmiaf" + bytes(200)


# -- decoding


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_photos_are_turned_upright_as_their_exif_says(kind: str) -> None:
    wide = Image.new("RGB", (40, 16), "black")
    wide.paste("white", (0, 0, 20, 16))  # white on the left
    exif = wide.getexif()
    exif[0x0112] = 6  # the top is on the right: turn by 90 degrees
    image = decode(encoded(wide, kind, exif=exif), "x")
    assert image.shape == (3, 40, 16)
    assert image[0, 4, 8] > 200 > 50 > image[0, 36, 8]  # white on top


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_no_reason_to_refuse_a_picture() -> None:
    content = encoded(Image.new("RGB", (9, 9), "red"), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert middle(content)[0] > 240


def test_a_damaged_tiff_is_called_damaged() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), "TIFF", compression="tiff_lzw")
    with pytest.raises(EaseError, match=r"'x' cannot be read \(its content is damaged\)"):
        decode(content[:600] + bytes(1500) + content[2100:], "x")


def test_transparent_parts_are_white() -> None:
    half_red = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    assert middle(encoded(half_red, "PNG")) == [255, 127, 127]
    assert middle(encoded(Image.new("LA", (4, 4), (0, 0)), "PNG")) == [255, 255, 255]
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 9, 9, 10, 20, 30])
    assert middle(encoded(palette, "PNG")) == [10, 20, 30]
    assert middle(encoded(palette, "PNG", transparency=bytes([255, 0]))) == [255, 255, 255]
    assert middle(encoded(palette, "GIF", transparency=1)) == [255, 255, 255]
    key = png_chunk(b"tRNS", struct.pack(">HHH", 7, 8, 9))
    assert middle(png(1, 1, 8, 2, b"\0\x07\x08\x09", key)) == [255, 255, 255]
    assert middle(png(1, 1, 8, 2, b"\0\x07\x08\x0a", key)) == [7, 8, 10]
    assert middle(png(1, 1, 16, 2, b"\0" + bytes([7, 0, 8, 0, 10, 0]), key)) == [7, 8, 10]
    grey = png_chunk(b"tRNS", struct.pack(">H", 1000))
    assert middle(png(1, 1, 16, 0, b"\0" + struct.pack(">H", 1000), grey)) == [255, 255, 255]
    assert middle(png(1, 1, 16, 0, b"\0" + struct.pack(">H", 1001), grey)) == [3, 3, 3]


def test_a_deep_tiff_may_count_from_white() -> None:
    """Pillow inverts such a picture if it has 8 bits only."""
    content = encoded(Image.fromarray(np.full((4, 4), 0x1234, np.uint16)), "TIFF")
    entry = struct.pack("<HHIH", 262, 3, 1, 1)
    assert content.count(entry) == 1
    assert middle(content) == [0x12] * 3
    assert middle(content.replace(entry, struct.pack("<HHIH", 262, 3, 1, 0))) == [0xFF - 0x12] * 3


def test_print_colours_grey_and_black_and_white_become_rgb() -> None:
    cyan = middle(encoded(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG"))
    assert cyan[0] < 20
    assert min(cyan[1:]) > 235
    assert middle(encoded(Image.new("L", (4, 4), 77), "PNG")) == [77, 77, 77]
    assert middle(encoded(Image.new("1", (4, 4), 1), "PNG")) == [255, 255, 255]


@pytest.mark.parametrize("value", [0, 255, 256, 1000, 32768, 65535])
def test_sixteen_bits_are_scaled_not_clipped(value: int) -> None:
    grey = Image.fromarray(np.full((4, 4), value, np.uint16))
    wanted = [value >> 8] * 3
    assert middle(encoded(grey, "PNG")) == wanted
    assert middle(encoded(grey, "TIFF")) == wanted
    colour = b"\0" + struct.pack(">HHH", value, value, value)
    assert middle(png(1, 1, 16, 2, colour)) == wanted
    assert middle(png(1, 1, 16, 6, colour + b"\xff\xff")) == wanted


def test_floats_in_a_file_are_scaled_or_refused() -> None:
    assert middle(encoded(Image.fromarray(np.full((4, 4), 0.5, np.float32)), "TIFF")) == [128] * 3
    for wrong in (-1.0, 1e9, np.nan):
        with pytest.raises(EaseError, match=r"'x'.*16 bits"):
            decode(encoded(Image.fromarray(np.full((4, 4), wrong, np.float32)), "TIFF"), "x")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_of_an_animation_the_first_frame_counts(kind: str) -> None:
    first, second = Image.new("RGB", (16, 16), (200, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 200))
    red, _, blue = middle(encoded(first, kind, save_all=True, append_images=[second]))
    assert red > 180
    assert blue < 20


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_content_is_refused(kind: str, share: float) -> None:
    content = encoded(Image.fromarray(noise(0, 64)), kind)
    with pytest.raises(EaseError, match=r"'torn' cannot be read") as caught:
        decode(content[: int(share * len(content))], "torn")
    assert "\n" not in str(caught.value)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that can decode neither HEIC nor AVIF."""
    monkeypatch.setattr(formats, "HEIC", False)
    monkeypatch.setattr(formats, "AVIF", False)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("content", [HEIC, AVIF])
def test_heic_and_avif_are_refused_with_a_hint_where_they_cannot_be_read(content: bytes) -> None:
    with pytest.raises(EaseError, match=r"'IMG_1\.jpg'.*convert it to JPEG or PNG"):
        decode(content, "IMG_1.jpg")


@pytest.mark.parametrize(
    "content", [b"hello, I am a text", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xff\xd8\xff", b"RIFF"]
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(EaseError, match=r"'a\.jpg' cannot be read"):
        decode(content, "a.jpg")


def test_an_empty_file_is_called_empty() -> None:
    with pytest.raises(EaseError, match="0 bytes"):
        decode(b"", "a.jpg")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 60_000])
def test_decompression_bombs_are_refused_before_they_are_decoded(side: int) -> None:
    with pytest.raises(EaseError, match=r"'bomb'.*pixels"):
        decode(png(side, side, 8, 2, b""), "bomb")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damaged_bytes_never_raise_anything_but_a_refusal(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP"]))
    content = bytearray(encoded(Image.fromarray(noise(1)), kind))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = decode(bytes(content), "x")
    except EaseError:
        return
    assert image.dtype == torch.uint8
    assert image.ndim == 3


# -- images in memory


def test_all_kinds_of_images_of_one_picture_are_the_same(tmp_path: Path) -> None:
    pixels = noise(3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    images = as_image_set(
        [
            tmp_path / "a.png",
            str(tmp_path / "a.png"),
            content,
            bytearray(content),
            Image.fromarray(pixels),
            pixels,
            np.dstack([pixels, np.full((8, 8), 255, np.uint8)]),
            pixels.astype(np.uint16) * 257,
            pixels / 255,
            (pixels / 255).astype(np.float32),
            torch.from_numpy(pixels).permute(2, 0, 1),
        ]
    )
    assert images.labels.tolist() == [-1] * 11
    for i in range(len(images)):
        assert images.image(i).numpy().transpose(1, 2, 0).tolist() == pixels.tolist(), i
    digests = [images.digest(i) for i in range(len(images))]
    assert len(set(digests[:4])) == len(set(digests[4:])) == 1


def test_grey_arrays_and_alpha() -> None:
    grey = np.array([[0, 100], [200, 255]], np.uint8)
    clear = np.zeros((2, 2, 4), np.uint8)
    images = as_image_set([grey, grey[..., None], grey > 150, clear], labels=[1, 2, 3, 4])
    assert images.labels.tolist() == [1, 2, 3, 4]
    assert [images.image(i)[2].tolist() for i in range(4)] == [
        grey.tolist(),
        grey.tolist(),
        [[0, 0], [255, 255]],
        [[255, 255], [255, 255]],
    ]


def test_a_stack_of_images_is_a_list_of_images() -> None:
    stack = np.stack([noise(i) for i in range(3)])
    assert len(as_image_set(stack)) == len(as_image_set(torch.from_numpy(stack).permute(0, 3, 1, 2))) == 3
    assert len(as_image_set([])) == 0


def test_pixels_are_taken_when_they_are_handed_in() -> None:
    pixels, tensor = noise(0), torch.zeros(3, 4, 4, dtype=torch.uint8)
    images = as_image_set([pixels, tensor])
    before = images.digest(0), images.digest(1)
    pixels[:], tensor[:] = 0, 9
    assert (images.digest(0), images.digest(1)) == before


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 4), np.int64),
        np.full((4, 4), 1.5),
        np.full((4, 4), np.nan),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((3, 4, 4, 3), np.uint8),
        torch.zeros(3, 4, 4),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
        7,
        None,
    ],
)
def test_other_things_are_refused_by_name(wrong: object) -> None:
    with pytest.raises(EaseError, match=r"images\[1\].*: give|images\[1\].*: divide"):
        as_image_set([noise(0), wrong])


@pytest.mark.parametrize(
    "single", ["a.jpg", Path("a.jpg"), b"abc", noise(0), noise(0)[..., 0], Image.new("L", (3, 3)), 5]
)
def test_one_image_is_not_taken_for_a_list(single: Any) -> None:
    with pytest.raises(EaseError, match="put it into a list"):
        as_image_set(single)
    with pytest.raises(EaseError, match=r"'cat'.*put it into a list"):
        collect_images({"cat": single})


def test_labels_must_fit() -> None:
    with pytest.raises(EaseError, match="one label each"):
        as_image_set([noise(0)], labels=[1, 2])


# -- folders and mappings


def test_class_folders_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    put_classes(tmp_path, {"dog": 5, "cat": 6})
    put(tmp_path / "cat" / "deep" / "er" / "x.JPG", 9)
    photos = collect_images(tmp_path)
    assert photos.names == ("cat", "dog")
    assert photos.images.labels.tolist() == [0] * 7 + [1] * 5
    assert photos.images.image(0).shape == (3, 10, 12)
    assert photos.notes == ()
    assert collect_images(str(tmp_path)).images.digest(11) == photos.images.digest(11)


def test_one_class_is_enough(tmp_path: Path) -> None:
    assert collect_images(put_classes(tmp_path, {"cat": 5})).names == ("cat",)


def test_a_mapping_keeps_its_order_and_may_mix_kinds(tmp_path: Path) -> None:
    file = put(tmp_path / "a.png", 0)
    photos = collect_images(
        {"zebra": [file, noise(1)], " ant ": [Image.fromarray(noise(2)), file.read_bytes() + b" "]}
    )
    assert photos.names == ("zebra", "ant")
    assert photos.images.labels.tolist() == [0, 0, 1, 1]
    assert [photos.images.image(i).shape[0] for i in range(4)] == [3] * 4


def test_hidden_files_and_other_files_are_left_out_and_noted(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 5})
    put(tmp_path / "cat" / "._000.png", 10)
    put(tmp_path / "cat" / ".thumbs" / "a.png", 11)
    put(tmp_path / "__MACOSX" / "a.png", 12)
    (tmp_path / "cat" / "readme.txt").write_text("hello")
    photos = collect_images(tmp_path)
    assert len(photos.images) == 5
    other, hidden = photos.notes
    assert "cat/readme.txt" in other
    assert "3 files" in hidden
    assert "cat/._000.png" in hidden
    assert "hidden" in hidden


def put_bad(path: Path, kind: str) -> None:
    if kind == "torn":
        truncate(put(path, 5, (80, 60)))
    else:
        path.write_bytes({"heic": HEIC, "empty": b"", "text": b"hello"}[kind])


@pytest.mark.parametrize(("ending", "kind"), [("heic", "HEIF"), ("avif", "AVIF")])
def test_heic_and_avif_are_read_where_they_can_be(ending: str, kind: str) -> None:
    if ending == "heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
    elif not formats.AVIF:
        pytest.skip("this Pillow has no AVIF")
    assert f".{ending}" in formats.IMAGE_EXTENSIONS
    half = Image.new("RGB", (64, 48), "black")
    half.paste("white", (0, 0, 32, 48))
    buffer = io.BytesIO()
    half.save(buffer, kind)
    found = decode(buffer.getvalue(), f"IMG_1.{ending}")
    assert tuple(found.shape) == (3, 48, 64)
    assert found[:, :, :30].min() > 240
    assert found[:, :, 34:].max() < 15
    with pytest.raises(EaseError, match="cannot be read"):
        decode(buffer.getvalue()[:-200], "torn")


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.jpg", "torn"), ("b.heic", "heic"), ("c.jpg", "heic"), ("d.jpg", "text"), ("e.png", "empty")],
)
def test_a_bad_file_is_refused_by_name_or_left_out_with_a_note(tmp_path: Path, name: str, kind: str) -> None:
    put_bad(put_classes(tmp_path, {"cat": 5}) / "cat" / name, kind)
    with pytest.raises(EaseError, match=rf"{name}.*skip unreadable files") as caught:
        collect_images(tmp_path)
    assert ("convert it to JPEG or PNG" in str(caught.value)) == (kind == "heic")
    assert str(tmp_path / "cat" / name) in str(caught.value)
    photos = collect_images(tmp_path, unreadable="skip")
    assert len(photos.images) == 5
    (note,) = photos.notes
    assert f"cat/{name}" in note


def test_bad_images_of_a_mapping_are_treated_alike() -> None:
    given = {"cat": [noise(i) for i in range(5)], "dog": [noise(9), b"hello", noise(8) * 1.0]}
    with pytest.raises(EaseError, match=r"dog\[1\]"):
        collect_images(given)
    photos = collect_images(given, unreadable="skip")
    assert photos.images.labels.tolist() == [0] * 5 + [1]
    assert any("2 files (dog[1], dog[2])" in note for note in photos.notes)


@pytest.mark.usefixtures("plain")
def test_a_class_without_any_readable_image_is_an_error_that_says_why(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 3, "dog": 1})
    (tmp_path / "dog" / "000.png").unlink()
    (tmp_path / "dog" / "000.heic").write_bytes(HEIC)
    with pytest.raises(EaseError, match=r"'dog' has no image.*HEIC"):
        collect_images(tmp_path, unreadable="skip")
    with pytest.raises(EaseError, match=r"'dog' has no image.*a\.jpg"):
        collect_images({"cat": [noise(0)], "dog": [tmp_path / "a.jpg"]}, unreadable="skip")
    with pytest.raises(EaseError, match="'dog' has no image"):
        collect_images({"cat": [noise(0)], "dog": []})
    shutil.rmtree(tmp_path / "dog")
    (tmp_path / "dog").mkdir()
    with pytest.raises(EaseError, match="dog' has no image"):
        collect_images(tmp_path, unreadable="skip")


def test_folders_that_are_no_class_folders_are_explained(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="does not exist"):
        collect_images(tmp_path / "nowhere")
    with pytest.raises(EaseError, match="is a file"):
        collect_images(put(tmp_path / "a.png", 0))
    with pytest.raises(EaseError, match="no class folder but 1 loose"):
        collect_images(tmp_path)
    with pytest.raises(EaseError, match="no class"):
        collect_images({})
    for part in ("train", "test"):
        put_classes(tmp_path / "split" / part, {"cat": 1, "dog": 1})
    with pytest.raises(EaseError, match=r"give '.*train'"):
        collect_images(tmp_path / "split")
    put_classes(tmp_path / "vehicles", {"train": 5, "bus": 5, "test": 5})
    assert collect_images(tmp_path / "vehicles").names == ("bus", "test", "train")


def test_file_names_that_are_no_text_can_still_be_told(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 5})
    (tmp_path / "cat" / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"")
    with pytest.raises(EaseError, match="caf") as caught:
        collect_images(tmp_path)
    (note,) = collect_images(tmp_path, unreadable="skip").notes
    assert (str(caught.value) + note).encode().decode().count("caf") == 3


# -- what people should know of their photos


def test_copies_within_a_class_are_kept_and_counted(tmp_path: Path) -> None:
    cat = put_classes(tmp_path, {"cat": 5, "dog": 5}) / "cat"
    for name in ("b.png", "c.png"):
        shutil.copy(cat / "000.png", cat / name)
    photos = collect_images(tmp_path)
    assert len(photos.images) == 12
    (note,) = photos.notes
    assert note.startswith("2 exact copies of other images in the same class")
    assert "cat: 2" in note
    assert "dog" not in note


def test_one_picture_in_two_classes_is_reported_with_both_and_some_files(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 6, "dog": 6, "owl": 6})
    for i in range(4):
        shutil.copy(tmp_path / "cat" / f"00{i}.png", tmp_path / "dog" / f"copy{i}.png")
    (note,) = collect_images(tmp_path).notes
    assert note.startswith("4 images are in both 'cat' and 'dog'")
    assert "cat/000.png = dog/copy0.png" in note
    assert "copy2" in note
    assert "copy3" not in note


def test_imbalance_and_small_classes_are_noted(tmp_path: Path) -> None:
    assert collect_images(put_classes(tmp_path / "a", {"cat": 50, "dog": 5})).notes == ()
    (uneven,) = collect_images(put_classes(tmp_path / "b", {"cat": 51, "dog": 5})).notes
    assert "51" in uneven
    assert "'dog' 5" in uneven
    (few,) = collect_images(put_classes(tmp_path / "c", {"cat": 5, "dog": 4})).notes
    assert "dog: 4" in few
    assert "cat" not in few


def test_progress_is_shown() -> None:
    class Counting(Quiet):
        seen: list[int]

        @contextmanager
        def bar(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
            self.seen = [total]
            yield self.seen.append

    progress = Counting()
    collect_images({"cat": [noise(i) for i in range(70)]}, progress=progress)
    assert progress.seen == [70, 64, 6]


# -- names


def test_names_are_stripped_and_composed() -> None:
    assert class_name("  Käfer\n") == class_name(unicodedata.normalize("NFD", "Käfer")) == "Käfer"
    assert class_name("grüne Äpfel 🍏") == "grüne Äpfel 🍏"
    assert class_name("x" * 100) == "x" * 100


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "x" * 101,
        "a/b",
        "a\\b",
        "a\nb",
        "a\0b",
        "a\x7fb",
        "a\u2028b",
        "a\u202eb",
        "a\udcffb",
        "..",
        3,
        None,
    ],
)
def test_bad_names_are_refused_in_one_printable_line(name: Any) -> None:
    with pytest.raises(EaseError, match="class name") as caught:
        class_name(name)
    assert str(caught.value).isprintable()
    with pytest.raises(EaseError, match="class name"):
        collect_images({name: [noise(0)]})


def test_names_that_become_equal_are_refused(tmp_path: Path) -> None:
    nfd = unicodedata.normalize("NFD", "Käfer")
    with pytest.raises(EaseError, match="twice"):
        collect_images({"Käfer": [noise(0)], nfd: [noise(1)]})
    assert collect_images({"cat": [noise(0)], "Cat": [noise(1)]}).names == ("cat", "Cat")
    put_classes(tmp_path, {nfd: 1, "Käfer": 1})
    with pytest.raises(EaseError, match="twice"):
        collect_images(tmp_path)


@settings(deadline=None)
@given(
    st.text(st.sampled_from("aA /.\\\n\0\u0308\u0323\u212b\u00a0\u200d\u2028\udcff\U0001f34f"), max_size=110)
)
def test_a_kept_name_stays_as_it_is(name: str) -> None:
    try:
        kept = class_name(name)
    except EaseError:
        return
    assert class_name(kept) == kept
    assert kept.encode().decode() == kept
