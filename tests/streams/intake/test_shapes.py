"""Images and labels in the shapes in which people have them: all give the same classes as class folders do."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ease.errors import EaseError
from ease.streams.intake import LabelledImages, collect_images
from ease.streams.intake.sources.places import Places
from ease.streams.intake.sources.recognise import shard_files
from ease.streams.intake.sources.rows import Table

CLASSES = {"cat": [0, 1, 2, 3, 4], "dog": [5, 6, 7, 8, 9]}


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Loose images, called by their number."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for seeds in CLASSES.values():
        for seed in seeds:
            (folder / f"{seed}.png").write_bytes(picture(seed))
    return folder


Rows = list[tuple[str, Any]]


def rows(prefix: str = "") -> Rows:
    return [(f"{prefix}{seed}.png", name) for name, seeds in CLASSES.items() for seed in seeds]


def contents(found: LabelledImages) -> dict[str, set[bytes]]:
    """The pixels of each class."""
    return {
        name: {
            found.images.image(i).numpy().tobytes()
            for i in range(len(found.images))
            if found.images.labels[i] == label
        }
        for label, name in enumerate(found.names)
    }


def expected() -> dict[str, set[bytes]]:
    return contents(collect_images({name: [picture(s) for s in seeds] for name, seeds in CLASSES.items()}))


# -- tables


def write_csv(path: Path, content: Rows, heads: tuple[str, ...] = ("path", "label"), **options: Any) -> Path:
    with open(path, "w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        writer = csv.writer(file, **options)
        writer.writerow(heads)
        writer.writerows(content)
    return path


def write_tsv(path: Path, content: Rows) -> Path:
    return write_csv(path, content, ("File_Name", "Class"), delimiter="\t")


def write_bom(path: Path, content: Rows) -> Path:
    return write_csv(path, content, encoding="utf-8-sig", quoting=csv.QUOTE_ALL, lineterminator="\r\n")


def write_mac(path: Path, content: Rows) -> Path:
    return write_csv(path, content, lineterminator="\r")


def write_jsonl(path: Path, content: Rows) -> Path:
    path.write_text("\n".join(json.dumps({"label": c, "more": [1], "image": p}) for p, c in content) + "\n\n")
    return path


def write_parquet(path: Path, content: Rows) -> Path:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {"filename": [p for p, _ in content], "more": [0] * len(content), "category": [c for _, c in content]}
    )
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def write_coco(path: Path, content: Rows) -> Path:
    names = sorted({c for _, c in content})
    value = {
        "images": [{"id": i, "file_name": p} for i, (p, _) in enumerate(content)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 7 + names.index(c)} for i, (_, c) in enumerate(content)
        ],
        "categories": [{"id": 7 + i, "name": name} for i, name in enumerate(names)],
    }
    path.write_text(json.dumps(value))
    return path


TABLES: dict[str, tuple[str, Callable[[Path, Rows], Path]]] = {
    "csv": ("labels.csv", write_csv),
    "csv with a byte order mark and quotes": ("labels.csv", write_bom),
    "csv with line ends of old Macs": ("labels.csv", write_mac),
    "tsv": ("labels.tsv", write_tsv),
    "jsonl": ("labels.jsonl", write_jsonl),
    "parquet": ("labels.parquet", write_parquet),
    "coco": ("labels.json", write_coco),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_gives_the_classes_that_it_names(photos: Path, tmp_path: Path, kind: str) -> None:
    name, write = TABLES[kind]
    inside = write(photos / name, rows())
    assert contents(collect_images(inside)) == expected()
    outside = write(tmp_path / name, rows())
    assert contents(collect_images(photos, labels=outside)) == expected()
    assert contents(collect_images(outside, root=photos)) == expected()
    above = write(tmp_path / name, rows("photos/"))
    assert contents(collect_images(labels=above)) == expected()
    absolute = write(tmp_path / name, rows(f"{photos}/"))
    assert contents(collect_images(absolute, root=tmp_path / "none")) == expected()


@pytest.mark.parametrize("kind", TABLES)
def test_a_missing_file_is_named_with_its_row(photos: Path, kind: str) -> None:
    name, write = TABLES[kind]
    table = write(photos / name, [*rows(), ("none.png", "dog")])
    # Headings count in text files, as in an editor; COCO has positions in a list.
    row = {"jsonl": "row 11", "parquet": "row 11", "coco": r"images\[10\]"}.get(kind, "row 12")
    with pytest.raises(EaseError, match=rf"none\.png \({row} of {name}\).*No such file"):
        collect_images(table)
    found = collect_images(table, unreadable="skip")
    assert contents(found) == expected()
    assert "none.png" in found.notes[0]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(
    "path", ["../secret.png", "a/../../secret.png", "", "ftp://host/a.png", "http://host/a.png"]
)
def test_paths_that_lead_elsewhere_are_refused(photos: Path, kind: str, path: str) -> None:
    (photos.parent / "secret.png").write_bytes(picture(99))
    name, write = TABLES[kind]
    table = write(photos / name, [*rows(), (path, "dog")])
    with pytest.raises(EaseError, match=r"leads out of|no path|address") as caught:
        collect_images(table)
    assert name in str(caught.value)
    assert contents(collect_images(table, unreadable="skip")) == expected()


@given(st.lists(st.sampled_from(["..", ".", "a", "b c", "", "...", "a\\..", "\\.."]), min_size=1, max_size=8))
def test_no_relative_path_leads_out_of_the_root(parts: list[str]) -> None:
    root = Path("/data/photos")
    text = "/".join(parts)
    try:
        found = Places(root).image(text.lstrip("/"))
    except EaseError:
        return
    assert isinstance(found, Path)
    assert Path(os.path.normpath(found)).is_relative_to(root)


def test_columns_are_named_where_they_are_not_recognised(photos: Path) -> None:
    table = write_csv(photos / "t.csv", rows(), ("where", "species"))
    with pytest.raises(EaseError, match=r"no column of paths.*where, species.*--columns PATH,LABEL"):
        collect_images(table)
    with pytest.raises(EaseError, match=r"no column 'specie'.*where, species"):
        collect_images(table, columns=("where", "specie"))
    assert contents(collect_images(table, columns=("where", "species"))) == expected()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_one_column_cannot_be_paths_and_labels(photos: Path, kind: str) -> None:
    name, write = TABLES[kind]
    table, head = write(photos / name, rows()), "path" if kind == "csv" else "filename"
    with pytest.raises(EaseError, match=r"--columns names '.*' twice"):
        collect_images(table, columns=[head, head])


def test_labels_are_class_names(photos: Path) -> None:
    pytest.importorskip("pyarrow")
    whole = write_parquet(photos / "a.parquet", [(p, 3.0 if c == "cat" else 4.0) for p, c in rows()])
    assert collect_images(whole).names == ("3", "4")
    for bad in ("", "a/b", "\x07"):
        table = write_csv(photos / "t.csv", [*rows(), ("0.png", bad)])
        with pytest.raises(EaseError, match=r"row 12 of t\.csv.*(label|class name)"):
            collect_images(table)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", b"", "no names of columns"),
        ("a.csv", b"path,label\n", "no row"),
        ("a.csv", b"path,label\na,b,c\n", "row 2: it has 3 cells"),
        ("a.csv", b'path,label\n"a,b\n', "row"),
        ("a.csv", b"path,label\n\xff\xfe,b\n", "row 2: it is not UTF-8"),
        ("a.csv", b"path,label\n" + b"x" * 2**21, "row 2: the line has more than"),
        ("a.tsv", b"path,label\na,b\n", "no column of paths"),
        ("a.jsonl", b'{"path": "a", "label": "b"}\n[1]\n', "row 2: it is not an object"),
        ("a.jsonl", b"{", "row 1 is not valid JSON"),
        ("a.jsonl", b"[" * 100_000, "row 1 is not valid JSON"),
        ("a.json", b"[]", "COCO"),
        ("a.json", b'{"images": [], "annotations": [], "categories": []}', "no image with an annotation"),
        ("a.json", b'{"images": [{"id": []}], "annotations": [], "categories": []}', r"images\[0\]: 'id'"),
        (
            "a.json",
            b'{"images": [], "annotations": [{"image_id": 1, "category_id": 2}], "categories": []}',
            "category 2",
        ),
        ("a.csv", b"path,label,label\na,b,c\n", "column 'label' is there twice"),
        ("a.jsonl", b'{"path": "a", "label": "b", "label": "c"}\n', "the key 'label' is there twice"),
        ("a.jsonl", b'{"path": "a", "label": ' + b"1" * 5000 + b"}", "a number of thousands of digits"),
        ("a.jsonl", b'{"path": "\\ud800.png", "label": "b"}', "row 1.*a character that no path can have"),
        ("a.parquet", b"PAR1 nothing PAR1", "damaged or not Parquet|damaged"),
        ("a.txt", b"a b", "has no class folder|is a file|ending"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EaseError, match=problem) as caught:
        collect_images(tmp_path / name)
    assert name in str(caught.value)
    with pytest.raises(EaseError):
        collect_images(tmp_path, labels=tmp_path / name)


def test_an_image_with_several_categories_is_an_error_or_left_out(photos: Path) -> None:
    path = write_coco(photos / "labels.json", rows())
    value = json.loads(path.read_text())
    value["annotations"].append({"image_id": 0, "category_id": 7})  # the same once more
    value["annotations"].append({"image_id": 1, "category_id": 8})
    value["images"].append({"id": 99, "file_name": "none.png"})
    path.write_text(json.dumps(value))
    with pytest.raises(EaseError, match=r"images\[1\].*'1\.png' has several categories \(cat, dog\)"):
        collect_images(path)
    found = collect_images(path, unreadable="skip")
    assert len(found.images) == 9
    assert any("1 images of labels.json without an annotation" in note for note in found.notes)


def test_options_of_tables_are_refused_for_folders(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", rows())
    with pytest.raises(EaseError, match="not both"):
        collect_images(photos, labels=table, root=photos)
    with pytest.raises(EaseError, match="--root belongs to a table"):
        collect_images(photos, root=photos)
    with pytest.raises(EaseError, match="--columns belongs to a table"):
        collect_images(photos, columns=("a", "b"))
    with pytest.raises(EaseError, match="labels, root, columns"):
        collect_images({"a": [picture(0)]}, root=photos)
    with pytest.raises(EaseError, match="nothing to look at"):
        collect_images()


def test_a_table_is_read_row_by_row(tmp_path: Path) -> None:
    table = Table(write_csv(tmp_path / "t.csv", [(f"{i}.png", "a") for i in range(5000)]))
    reading = table.rows(("path",))
    assert [next(reading).values for _ in range(2)] == [{"path": "0.png"}, {"path": "1.png"}]
    assert sum(1 for _ in table.rows()) == 5000


# -- shards


def write_shard(path: Path, members: dict[str, bytes], **options: Any) -> Path:
    with tarfile.open(path, "w", **options) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def labelled(form: str) -> Callable[[str], dict[str, bytes]]:
    label = {"cls": "{}", "txt": "{}\n", "json": '{{"label": "{}"}}'}[form]
    return lambda name: {
        member: content
        for seed in CLASSES[name]
        for member, content in (
            (f"a/{seed:04d}.png", picture(seed)),
            (f"a/{seed:04d}.{form}", label.format(name).encode()),
        )
    }


@pytest.mark.parametrize("form", ["cls", "txt", "json"])
def test_shards_are_read_where_they_lie(tmp_path: Path, form: str) -> None:
    make = labelled(form)
    for number, name in enumerate(CLASSES):
        write_shard(tmp_path / f"s-{number:03d}.tar", make(name))
    for source in (tmp_path / "s-{000..001}.tar", tmp_path / "s-*.tar"):
        assert contents(collect_images(source)) == expected()
    both = write_shard(tmp_path / "both.tar", {**make("cat"), **make("dog")}, format=tarfile.PAX_FORMAT)
    assert contents(collect_images(str(both))) == expected()


def test_numbers_in_shards_are_named_by_the_list_beside_them(tmp_path: Path) -> None:
    members = {k: v for name in CLASSES for k, v in labelled("cls")(name).items()}
    numbers = {k: {b"cat": b"0", b"dog": b"1"}.get(v, v) for k, v in members.items()}
    shard = write_shard(tmp_path / "s.tar", numbers)
    assert collect_images(shard).names == ("0", "1")
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    assert contents(collect_images(shard)) == expected()
    (tmp_path / "classnames.txt").write_text("cat\n")
    with pytest.raises(EaseError, match=r"no class 1 in classnames\.txt, which has 1"):
        collect_images(shard)


def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "s.tar")) as out:
        for name, seeds in CLASSES.items():
            for seed in seeds:
                out.write({"__key__": f"k{seed}", "png": picture(seed), "cls": list(CLASSES).index(name)})
    assert list(contents(collect_images(tmp_path / "s.tar")).values()) == list(expected().values())


@pytest.mark.parametrize("member", ["a.pyd", "a.pth", "a.pkl", "x/a.label.pickle", "a.PT"])
def test_pickles_in_shards_are_refused(tmp_path: Path, member: str) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.png": picture(0), member: b"cos\nsystem\n."})
    for unreadable in ("refuse", "skip"):
        with pytest.raises(EaseError, match="is a pickle"):
            collect_images(shard, unreadable=unreadable)  # type: ignore[arg-type]


def test_links_and_damage_in_shards_are_refused(tmp_path: Path) -> None:
    good = {"a.png": picture(0), "a.cls": b"cat"}
    link = tarfile.TarInfo("b.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        archive.addfile(link)
    with pytest.raises(EaseError, match=r"'b\.png' is a link"):
        collect_images(tmp_path / "link.tar")
    whole = write_shard(tmp_path / "s.tar", good).read_bytes()
    (tmp_path / "torn.tar").write_bytes(whole[:600])
    (tmp_path / "header.tar").write_bytes(whole[:1024] + b"x" * 512 + whole[1536:])
    with tarfile.open(tmp_path / "zipped.tar", "w:gz"):
        pass
    for name in ("torn", "header", "zipped"):
        with pytest.raises(EaseError, match=rf"{name}\.tar.*(damaged|cut off|compressed)"):
            collect_images(tmp_path / f"{name}.tar")
    assert len(collect_images(tmp_path / "s.tar").images) == 1
    with pytest.raises(EaseError, match="no label"):
        collect_images(write_shard(tmp_path / "t.tar", {"a.png": picture(0)}))
    with pytest.raises(EaseError, match="no image"):
        collect_images(write_shard(tmp_path / "t.tar", {"a.cls": b"1"}))
    with pytest.raises(EaseError, match="no sample"):
        collect_images(write_shard(tmp_path / "t.tar", {}))
    with pytest.raises(EaseError, match="no file matches"):
        collect_images(tmp_path / "none-*.tar")
    with pytest.raises(EaseError, match="does not exist"):
        collect_images(tmp_path / "none-{0..1}.tar")
    with pytest.raises(EaseError, match="not one range"):
        shard_files("s-{0..999999999}.tar")


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.png": picture(0)}, format=tarfile.GNU_FORMAT)
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 8 * 2**30
    shard.write_bytes(long.tobuf(tarfile.GNU_FORMAT) + shard.read_bytes())
    with pytest.raises(EaseError, match="damaged"):
        collect_images(shard)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 4000),
    new=st.binary(min_size=1, max_size=40),
    kind=st.sampled_from(["tar", "csv", "json", "jsonl", "parquet"]),
)
def test_changed_bytes_are_read_or_refused_in_one_line(photos: Path, at: int, new: bytes, kind: str) -> None:
    path = photos / f"fuzz.{kind}"
    if kind == "tar":
        write_shard(path, {k: v for name in CLASSES for k, v in labelled("cls")(name).items()})
    else:
        {"csv": write_csv, "json": write_coco, "jsonl": write_jsonl, "parquet": write_parquet}[kind](
            path, rows()
        )
    content = path.read_bytes()
    at %= len(content)
    path.write_bytes(content[:at] + new + content[at + len(new) :])
    with contextlib.suppress(EaseError):
        collect_images(path, unreadable="skip")


# -- datasets of Hugging Face


def features() -> bytes:
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    return json.dumps({"info": {"features": {"image": {"_type": "Image"}, "label": label}}}).encode()


def arrow_table() -> Any:
    pa = pytest.importorskip("pyarrow")
    images = [{"bytes": picture(s), "path": None} for seeds in CLASSES.values() for s in seeds]
    labels = [list(CLASSES).index(name) for name, seeds in CLASSES.items() for _ in seeds]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": pa.array(labels, pa.int64())})
    return table.replace_schema_metadata({b"huggingface": features()})


def save_to_disk(folder: Path) -> Path:
    """What `Dataset.save_to_disk` writes, as far as it is read."""
    pa = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    table = arrow_table()
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        for batch in table.to_batches(max_chunksize=4):
            out.write_batch(batch)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    return folder


def test_a_saved_dataset_has_the_names_of_its_class_label(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "saved")
    assert contents(collect_images(folder)) == expected()
    assert contents(collect_images(folder, columns=("image", "label"))) == expected()
    with pytest.raises(EaseError, match="no column of images"):
        collect_images(folder, columns=("picture", "label"))


def test_a_parquet_file_with_images_is_a_dataset(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(arrow_table(), tmp_path / "a.parquet", row_group_size=3)
    assert contents(collect_images(tmp_path / "a.parquet")) == expected()


def test_of_several_splits_one_is_chosen(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "d" / "train")
    save_to_disk(tmp_path / "d" / "test")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(EaseError, match="holds the splits train, test: give the folder"):
        collect_images(tmp_path / "d")
    assert contents(collect_images(tmp_path / "d" / "test")) == expected()
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert contents(collect_images(tmp_path / "d")) == expected()


def test_what_datasets_saves_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    found = datasets.Dataset.from_dict(
        {
            "picture": [{"bytes": picture(s), "path": None} for seeds in CLASSES.values() for s in seeds],
            "kind": [0] * 5 + [1] * 5,
        },
        features=columns,
    )
    found.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    assert contents(collect_images(tmp_path / "saved")) == expected()


@pytest.mark.parametrize("name", ["../other.arrow", "/etc/passwd", "none.arrow"])
def test_a_saved_dataset_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder = save_to_disk(tmp_path / "saved")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(EaseError, match=r"names no data files|is not there"):
        collect_images(folder)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 6000), new=st.binary(min_size=1, max_size=16))
def test_a_changed_arrow_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, new: bytes
) -> None:
    folder = save_to_disk(tmp_path_factory.mktemp("saved") / "d")
    path = folder / "data-00000-of-00001.arrow"
    content = path.read_bytes()
    at %= len(content)
    path.write_bytes(content[:at] + new + content[at + len(new) :])
    with contextlib.suppress(EaseError):
        collect_images(folder, unreadable="skip")


def test_a_name_on_the_hub_that_cannot_be_loaded_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EaseError, match=r"cannot load the dataset 'nobody/none-such' from the hub") as caught:
        collect_images("hf:nobody/none-such:train")
    assert "\n" not in str(caught.value)
