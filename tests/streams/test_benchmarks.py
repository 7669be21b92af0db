"""The archives of train/CLASS and test/CLASS: seven names, one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ease.errors import EaseError
from ease.streams import dataset_list, load_dataset, make_stream
from ease.streams.datasets.dataset_info import DATASET_INFO, SplitInfo
from tests.streams.test_folder import names, put, put_classes

BENCHMARKS = ("cub200", "imagenet-a", "imagenet-r", "objectnet", "omnibenchmark", "vtab")
BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")


def put_split(root: Path, classes: tuple[str, ...], train: int = 3, test: int = 2) -> Path:
    put_classes(root / "train", dict.fromkeys(classes, train))
    put_classes(root / "test", dict.fromkeys(classes, test), start=500)
    return root


def put_cub_lists(root: Path, train: int = 2, test: int = 1) -> Path:
    """The folder Caltech gave away, with three birds; images are listed in no particular order."""
    pictures = [(c, i) for i in range(train + test) for c in range(len(BIRDS))]
    for number, (c, i) in enumerate(pictures):
        put(root / "images" / BIRDS[c] / f"bird_{i}.jpg", number)
    lists = {
        "images.txt": [f"{n} {BIRDS[c]}/bird_{i}.jpg" for n, (c, i) in enumerate(pictures, start=1)],
        "image_class_labels.txt": [f"{n} {c + 1}" for n, (c, _) in enumerate(pictures, start=1)],
        "train_test_split.txt": [f"{n} {int(i < train)}" for n, (_, i) in enumerate(pictures, start=1)],
        "classes.txt": [f"{c} {bird}" for c, bird in enumerate(BIRDS, start=1)],
    }
    for name, lines in lists.items():
        (root / name).write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def small_cub(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUB as if it had three birds: 3 train and 2 test images of each, officially 2 and 1."""
    small = replace(DATASET_INFO["cub200"], classes=3, train=9, test=6)
    small = replace(small, splits={"official": SplitInfo("the official CUB-200-2011 split", 6, 3)})
    monkeypatch.setitem(DATASET_INFO, "cub200", small)


def test_the_table_says_what_the_authors_published() -> None:
    counts = {name: (p.classes, p.train, p.test, *p.archives.items()) for name, p in DATASET_INFO.items()}
    expected = {
        "cub200": (200, 9430, 2358, ("cub.zip", "85e342a2d5f941e740193602057df7a5")),
        "imagenet-r": (200, 24000, 6000, ("imagenet-r.zip", "730aa3fb9c7d2ec0b6381c6b23040681")),
        "imagenet-a": (200, 5981, 1519, ("ina.zip", "7f4aaf0b1532b7a0bd670822c152d3c5")),
        "objectnet": (200, 26509, 6628, ("objnet.tgz", "63ff7443a47bd682016a8ec59b8cc1bc")),
        "omnibenchmark": (300, 89697, 5985, ("omnibenchmark.zip", "f1c30808a707f9197c6c811ea52e5cbb")),
        "vtab": (50, 1796, 8619, ("vtab.zip", "a9c37bde6105a2516c900b0c33a437c1")),
    }
    assert {name: counts[name] for name in BENCHMARKS} == expected
    assert [name for name in DATASET_INFO if DATASET_INFO[name].keep_order] == ["vtab"]
    official = DATASET_INFO["cub200"].splits["official"]
    assert (official.train, official.test) == (5994, 5794)
    assert set(BENCHMARKS) <= set(dataset_list())


@pytest.mark.usefixtures("small_cub")
def test_a_whole_benchmark_has_its_own_name_and_readable_classes(tmp_path: Path) -> None:
    cub = load_dataset("cub200", put_split(tmp_path, BIRDS))
    assert cub.name == "cub200"
    assert cub.class_names == ("Black footed Albatross", "Laysan Albatross", "Sooty Albatross")
    assert cub.notes == ()
    assert cub.augmentation.flip
    assert (len(cub.train), len(cub.test)) == (9, 6)


@pytest.mark.usefixtures("small_cub")
def test_a_subset_and_a_superset_have_names_of_their_own(tmp_path: Path) -> None:
    cub = load_dataset("cub200", put_split(tmp_path, BIRDS[:2]))
    assert cub.name == "cub200-subset"
    (note,) = cub.notes
    assert "2 of 3 classes, 6 of 9 train and 4 of 6 test" in note
    put_split(tmp_path, BIRDS, train=2)
    put_split(tmp_path, BIRDS, train=5)
    cub = load_dataset("cub200", tmp_path)
    assert cub.name == "cub200-other"
    assert "15 of 9 train" in cub.notes[0]


@pytest.mark.usefixtures("small_cub")
def test_few_images_of_every_class_are_named_by_their_number(tmp_path: Path) -> None:
    assert load_dataset("cub200", put_split(tmp_path, BIRDS, train=2, test=2)).name == "cub200-2"


@pytest.mark.usefixtures("small_cub")
def test_the_official_split_of_cub_is_recognised_in_either_layout(tmp_path: Path) -> None:
    folders = load_dataset("cub200", put_split(tmp_path / "folders", BIRDS, train=2, test=1))
    lists = load_dataset("cub200", put_cub_lists(tmp_path / "lists"))
    for cub in (folders, lists):
        assert cub.name == "cub200-official"
        (note,) = cub.notes
        assert "the official CUB-200-2011 split was found (6 train / 3 test)" in note
        assert "(9 / 6)" in note
    assert lists.class_names == folders.class_names
    assert lists.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert names(lists, "test") == [f"{bird}/bird_2.jpg" for bird in BIRDS]


@pytest.mark.parametrize("inside", ["cub", "CUB_200_2011", "cub200"])
@pytest.mark.usefixtures("small_cub")
def test_the_folder_an_archive_brings_along_may_stay(inside: str, tmp_path: Path) -> None:
    if inside == "CUB_200_2011":
        put_cub_lists(tmp_path / inside)
    else:
        put_split(tmp_path / inside, BIRDS)
    assert len(load_dataset("cub200", tmp_path).class_names) == 3


def test_the_archive_s_folders_may_be_nested_or_linked(tmp_path: Path) -> None:
    put_split(tmp_path / "data" / "vtab-cil" / "vtab", ("1", "2"))
    assert len(load_dataset("vtab", tmp_path / "data").class_names) == 2
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "vtab").symlink_to(tmp_path / "data" / "vtab-cil" / "vtab")
    assert len(load_dataset("vtab", tmp_path / "elsewhere").class_names) == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("images.txt", "1 001.Black_footed_Albatross/", "1 ../../../etc/", "not under images/"),
        ("images.txt", "1 001.Black_footed_Albatross/", "1 /etc/", "not under images/"),
        ("images.txt", "bird_0.jpg", "gone.jpg", "does not exist"),
        ("images.txt", "2 ", "1 ", "line 2"),
        ("image_class_labels.txt", "4 1", "4 9", "image 4"),
        ("train_test_split.txt", "5 1", "5 maybe", "image 5"),
        ("classes.txt", BIRDS[1], BIRDS[0], "twice"),
        ("classes.txt", "2 ", "\udcff", "not UTF-8"),
    ],
)
def test_wrong_lists_of_cub_are_one_line(file: str, old: str, new: str, says: str, tmp_path: Path) -> None:
    path = put_cub_lists(tmp_path) / file
    text = path.read_text().replace(old, new, 1)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(EaseError, match=says) as caught:
        load_dataset("cub200", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_list_or_image_is_refused_or_skipped(tmp_path: Path) -> None:
    put_cub_lists(tmp_path)
    (tmp_path / "images" / BIRDS[0] / "bird_0.jpg").unlink()
    skipped = load_dataset("cub200", tmp_path, unreadable="skip")
    assert len(skipped.train) == 5
    assert any("bird_0.jpg" in note for note in skipped.notes)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(EaseError, match=r"cannot read .*classes\.txt: it does not exist"):
        load_dataset("cub200", tmp_path)


def test_links_in_cub_s_own_layout_are_followed_and_a_dangling_one_is_named(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = put(tmp_path_factory.mktemp("outside") / "elsewhere.jpg", 1)
    picture = put_cub_lists(tmp_path) / "images" / BIRDS[0] / "bird_0.jpg"
    picture.unlink()
    picture.symlink_to(elsewhere)
    assert len(load_dataset("cub200", tmp_path).train) == 6
    elsewhere.unlink()
    with pytest.raises(EaseError, match=r"bird_0\.jpg.*does not exist"):
        load_dataset("cub200", tmp_path)


def test_vtab_keeps_the_order_of_its_numbers_and_others_that_of_their_names(tmp_path: Path) -> None:
    put_split(tmp_path, ("10", "9", "1", "2"))
    vtab = load_dataset("vtab", tmp_path)
    assert vtab.class_names == ("1", "2", "9", "10")
    assert names(vtab)[0].startswith("1/")
    assert names(vtab, "test")[-1].startswith("10/")
    assert make_stream(vtab, "B0 Inc2").class_names == ("1", "2", "9", "10")
    other = load_dataset("objectnet", tmp_path)
    assert other.class_names == ("1", "10", "2", "9")
    assert make_stream(other, "B0 Inc2").class_names != other.class_names


def test_wnids_become_words_in_the_order_of_the_folders(tmp_path: Path) -> None:
    data = load_dataset("imagenet-r", put_split(tmp_path, ("n01443537", "n09999999", "n01484850")))
    assert data.class_names == ("goldfish", "great white shark", "n09999999")
    assert names(data)[0] == "n01443537/000.png"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_missing_data_says_where_it_was_published_and_what_is_expected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EASE_DATA", raising=False)
    archive = next(iter(DATASET_INFO[name].archives))
    for root in (None, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(EaseError) as caught:
            load_dataset(name, root)
        line = str(caught.value)
        for word in (
            "train/CLASS and test/CLASS",
            archive,
            "RevisitingCIL",
            "EASE",
            f"{DATASET_INFO[name].train:,}",
        ):
            assert word in line
        assert "\n" not in line
        assert (str(root) if root else "EASE_DATA") in line
    monkeypatch.setenv("EASE_DATA", str(tmp_path))
    put_split(tmp_path / name, ("a", "b"))
    assert load_dataset(name).class_names == ("a", "b")


def test_train_without_test_is_refused(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", {"a": 2, "b": 2})
    with pytest.raises(EaseError, match="has train/ but no test/"):
        load_dataset("objectnet", tmp_path)
