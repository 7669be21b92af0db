from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageChops, ImageFilter

from ease.errors import EaseError
from ease.streams import Dataset, load_dataset, make_stream
from ease.streams.datasets.glyphs import dataset as glyphs
from ease.streams.datasets.glyphs.characters import CHARACTERS, TEST_FONTS, TRAIN_FONTS, Character, font_file
from ease.streams.datasets.glyphs.rendering import RenderingStyle, glyph_shape, render_character

EVERY_FONT = (*TRAIN_FONTS, *TEST_FONTS)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EASE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield load_dataset("glyphs")


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images per class instead of sixty; the cache folder they go to."""
    monkeypatch.setattr(glyphs, "PARTS", {"train": (TRAIN_FONTS, 2), "test": (TEST_FONTS, 1)})
    monkeypatch.setenv("EASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_sixty_balanced_classes_with_enough_images(drawn: Dataset) -> None:
    assert len(drawn.class_names) == len(set(drawn.class_names)) == 60
    for images, least in ((drawn.train, 40), (drawn.test, 15)):
        counts = np.bincount(images.labels)
        assert len(counts) == 60
        assert counts.min() == counts.max() >= least
    assert drawn.train.image(0).shape == (3, 64, 64)
    assert not drawn.augmentation.flip
    assert drawn.augmentation.scale == (0.6, 1.0)


def test_no_image_is_there_twice(drawn: Dataset) -> None:
    digests = [images.digest(i) for images in (drawn.train, drawn.test) for i in range(len(images))]
    assert len(set(digests)) == len(digests)


def test_the_line_in_the_list_tells_the_truth(drawn: Dataset) -> None:
    from ease.streams import dataset_list

    assert f"{len(drawn.train):,} train / {len(drawn.test):,} test" in dataset_list()["glyphs"]


def test_class_names_are_safe_as_folder_names(drawn: Dataset) -> None:
    assert all(
        name.replace("-", "").isascii() and name.replace("-", "").isalnum() for name in drawn.class_names
    )
    assert len({name.lower() for name in drawn.class_names}) == 60


def test_train_and_test_share_no_font_family() -> None:
    def family(font: str) -> str:
        name = FT2Font(str(font_file(font))).family_name
        return next(root for root in ("DejaVu", "STIX", "cm") if name.startswith(root))

    assert not {family(font) for font in TRAIN_FONTS} & {family(font) for font in TEST_FONTS}


@pytest.mark.parametrize("font", EVERY_FONT)
def test_every_font_really_has_every_character(font: str) -> None:
    """In its character map, under the right name where names are kept, and neither blank nor the 'missing' box."""
    face = FT2Font(str(font_file(font)))
    places = face.get_charmap()
    # STIX draws nothing where a glyph is missing, and `glyph_shape` refuses that.
    box = None if font.startswith("STIX") else glyph_shape(Character("missing", "\ufffe", ".notdef"), font)[0]
    for character in CHARACTERS:
        code = ord(character.code(font))
        assert code in places, character.name
        if font.startswith(
            "cm"
        ):  # Computer Modern keeps some signs in other places, so the map is not enough
            assert face.get_glyph_name(places[code]) == character.glyph
        shape, _ = glyph_shape(character, font)
        assert np.asarray(shape).max() == 255
        assert box is None or shape.size != box.size or ImageChops.difference(shape, box).getbbox()


def test_a_character_that_a_font_lacks_is_an_error() -> None:
    with pytest.raises(EaseError, match="draws nothing for 'missing'"):
        glyph_shape(Character("missing", "\ufffe", ".notdef"), "STIXGeneral")
    with pytest.raises(EaseError, match=r"font .* is missing"):
        glyph_shape(CHARACTERS[0], "NoSuchFont")


REGULAR = ["DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "cmr10", "cmss10", "cmtt10"]


def likeness(characters: Sequence[Character], font: str) -> np.ndarray:
    """[C, C] how much of each one's ink, scaled to 48 x 48, lies within two pixels of the other's."""
    shapes = [glyph_shape(c, font)[0].resize((48, 48)).point(lambda v: 255 * (v > 127)) for c in characters]
    ink = np.stack([np.asarray(s).ravel() > 0 for s in shapes]).astype(float)
    near = np.stack([np.asarray(s.filter(ImageFilter.MaxFilter(5))).ravel() > 0 for s in shapes]).astype(
        float
    )
    covered = ink @ near.T / ink.sum(1, keepdims=True)
    return np.minimum(covered, covered.T) - np.eye(len(characters))


@pytest.mark.parametrize("font", REGULAR)
def test_no_two_classes_are_twins_even_when_scaled_to_one_size(font: str) -> None:
    alike = likeness(CHARACTERS, font)
    worst = np.unravel_index(alike.argmax(), alike.shape)
    assert alike.max() < 0.97, [CHARACTERS[i].name for i in worst]


@pytest.mark.parametrize("pair", ["Oo", "0O", "Cc", "Ss", "Vv", "Ww", "Xx", "Zz", "Uu", "Il"])
def test_the_twin_check_sees_twins(pair: str) -> None:
    assert likeness([Character(c, c, c) for c in pair], "DejaVuSans").max() > 0.97


def test_the_character_is_dark_on_light_and_inside_what_the_test_crop_shows(drawn: Dataset) -> None:
    for images in (drawn.train, drawn.test):
        for position in range(0, len(images), 7):
            grey = images.image(position).float().mean(0).numpy()
            ink = grey < 100
            assert 0.005 < ink.mean() < 0.45
            outside = np.ones_like(ink)
            outside[4:60, 4:60] = False
            assert not (ink & outside).any()


def test_a_print_depends_on_its_seed_alone() -> None:
    np.random.seed(0)
    first = render_character(CHARACTERS[0], "cmr10", RenderingStyle(), (1, 2))
    np.random.seed(1)
    assert np.array_equal(first, render_character(CHARACTERS[0], "cmr10", RenderingStyle(), (1, 2)))
    assert not np.array_equal(first, render_character(CHARACTERS[0], "cmr10", RenderingStyle(), (1, 3)))


def test_drawn_again_the_images_are_the_same(few: Path) -> None:
    first = load_dataset("glyphs")
    (cache,) = few.iterdir()
    cache.unlink()
    second = load_dataset("glyphs")
    for a, b in ((first.train, second.train), (first.test, second.test)):
        assert [a.digest(i) for i in range(len(a))] == [b.digest(i) for i in range(len(b))]


def test_the_second_load_reads_the_cache(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = load_dataset("glyphs")
    monkeypatch.setattr(glyphs, "draw", lambda: pytest.fail("drawn again"))
    again = load_dataset("glyphs")
    assert [p.suffix for p in few.iterdir()] == [".npz"]
    assert drawn.test.digest(3) == again.test.digest(3)


def test_other_settings_do_not_read_the_old_cache(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_dataset("glyphs")
    monkeypatch.setattr(glyphs, "STYLE", RenderingStyle(rotation=0.0))
    assert load_dataset("glyphs").train.digest(0) != before.train.digest(0)
    assert len(list(few.iterdir())) == 2


@pytest.mark.parametrize(
    "damage", ["empty", "garbage", "truncated", "flipped", "pickled", "other arrays", "folder"]
)
def test_a_damaged_cache_is_drawn_again(few: Path, damage: str) -> None:
    before = load_dataset("glyphs")
    (path,) = few.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "garbage":
        path.write_bytes(b"garbage" * 100)
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    elif damage == "pickled":
        np.savez(path, train=np.array([{}], dtype=object), test=np.array([{}], dtype=object))
    elif damage == "other arrays":
        np.savez(path, train=np.zeros((2, 3)), test=np.zeros((2, 3)))
    else:
        path.unlink()
        path.mkdir()
    after = load_dataset("glyphs")
    assert after.train.digest(7) == before.train.digest(7)


def test_a_cache_that_cannot_be_written_does_not_stop_the_work(
    few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few.parent.joinpath("file").write_text("in the way")
    monkeypatch.setenv("EASE_CACHE", str(few.parent / "file" / "cache"))
    assert len(load_dataset("glyphs").train) == 120
    assert not few.exists()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EASE_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert glyphs.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("EASE_CACHE")
    assert glyphs.cache_folder() == tmp_path / "b" / "ease"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert glyphs.cache_folder() == tmp_path / "c" / ".cache" / "ease"


def test_a_limited_stream_of_glyphs_has_many_fonts_per_class(drawn: Dataset) -> None:
    stream = make_stream(drawn, "B0 Inc6")
    assert len(stream) == 10
    first = stream.tasks[0].train.limit(9)
    prints = [np.asarray(Image.fromarray(first.image(i).numpy()[0]).resize((16, 16))) < 100 for i in range(9)]
    assert len({p.tobytes() for p in prints}) == 9
