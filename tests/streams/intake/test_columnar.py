"""Parquet and Arrow files of few bytes that stand for gigabytes: they are read or refused in little memory."""

from __future__ import annotations

import io
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ease.app.bulk import source_inputs
from ease.errors import EaseError
from ease.streams.intake import collect_images
from ease.streams.intake.checks import check_images
from ease.streams.intake.sources.columnar import parquet_batches
from ease.streams.intake.sources.parquet_pages import column_pages
from tests.forked import Forked, in_little_memory
from tests.streams.intake.test_shapes import picture

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

MIB = 2**20
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is counted as Linux does"
)


def repeated(value: Any, count: int) -> Any:
    """An array that holds a value once and stands for it many times."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


def long_label(path: Path) -> None:
    parquet.write_table(
        pa.table({"path": ["p.png"] * 1024, "label": repeated("x" * 4 * MIB, 1024)}), path, compression="zstd"
    )


def long_label_without_schema(path: Path) -> None:
    table = pa.table({"path": ["p.png"] * 1024, "label": repeated("x" * MIB, 1024)})
    parquet.write_table(table, path, compression="zstd", store_schema=False)


def long_paths(path: Path) -> None:
    table = pa.table({"path": ["x" * MIB] * 200, "label": ["x"] * 200})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False)


def in_footer(path: Path, value: int, other: int) -> None:
    """Replace a number wherever the footer has it, by a smaller one of as many bytes."""

    def bytes_of(number: int, length: int = 0) -> bytes:
        number *= 2  # a signed number in Thrift's compact form
        found = bytearray()
        while number or len(found) < max(1, length):
            found.append(number % 128 | 128)
            number //= 128
        found[-1] &= 127
        return bytes(found)

    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    old = bytes_of(value)
    assert old in data[start:]
    path.write_bytes(data[:start] + data[start:].replace(old, bytes_of(other, len(old))))


def one_large_page(path: Path, version: str = "1.0") -> None:
    """One page of 500 MB; the footer says that it has 1 kB."""
    size = 500 * MIB
    table = pa.table({"path": ["x" * size], "label": ["x"]})
    how = {"use_dictionary": False, "write_statistics": False, "data_page_version": version}
    parquet.write_table(table, path, compression="zstd", **how)
    in_footer(path, parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size, 1000)
    assert parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1000


def one_large_page_v2(path: Path) -> None:
    one_large_page(path, "2.0")


def written_as_changes(path: Path) -> None:
    """256 labels of 4 MB each, of which all but the first are written as a few bytes."""
    label, count = "x" * 4 * MIB, 256
    table = pa.table({"path": ["p.png"] * count, "label": [f"{label}{i:03}" for i in range(count)]})
    how = {"use_dictionary": False, "column_encoding": {"label": "DELTA_BYTE_ARRAY"}}
    parquet.write_table(table, path, compression="zstd", write_statistics=False, **how)


FORGED = {
    "a label that repeats": (long_label, "column 'label' has a cell of 4,194,304 bytes"),
    "a label without its type": (long_label_without_schema, "column 'label' has a cell of 1,048,576 bytes"),
    "paths": (long_paths, "a part of it unpacks to more than 128 MB"),
    "a footer that understates": (one_large_page, "a part of it unpacks to more than 128 MB"),
    "the same, pages of version 2": (one_large_page_v2, "a part of it unpacks to more than 128 MB"),
    "values as changes": (written_as_changes, "column 'label' has a cell of 4,194,307 bytes"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_text_of_megabytes_is_refused(tmp_path: Path, kind: str) -> None:
    write, message = FORGED[kind]
    # In a process of its own: else what it took would be there for the next one.
    assert Forked(lambda: write(tmp_path / "t.parquet"), tmp_path / "written").wait() == 0
    assert (tmp_path / "t.parquet").stat().st_size < 50_000
    line = in_little_memory(lambda: collect_images(tmp_path / "t.parquet"), tmp_path / "out")
    assert f"t.parquet': {message}" in line
    if kind == "paths":
        listed = in_little_memory(lambda: list(source_inputs(tmp_path / "t.parquet")), tmp_path / "listed")
        assert message in listed


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_text_is_read_from_every_encoding_and_version_of_pages(
    tmp_path: Path, encoding: str, version: str
) -> None:
    names = [f"{i}.png" for i in range(40)]
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(picture(i))
    table = pa.table({"path": names, "label": [f"class {i % 3}" for i in range(40)]})
    how = {"use_dictionary": False, "column_encoding": dict.fromkeys(("path", "label"), encoding)}
    parquet.write_table(
        table, tmp_path / "t.parquet", data_page_version=version, data_page_size=100, row_group_size=25, **how
    )
    found = collect_images(tmp_path / "t.parquet")
    assert found.names == ("class 0", "class 1", "class 2")
    assert found.images.labels.tolist() == sorted(i % 3 for i in range(40))


@given(
    values=st.lists(st.text(max_size=20) | st.none(), min_size=1, max_size=200),
    version=st.sampled_from(["1.0", "2.0"]),
    packing=st.sampled_from(["none", "zstd", "snappy"]),
    encoding=st.sampled_from([None, "PLAIN", "DELTA_BYTE_ARRAY"]),
    size=st.integers(1, 500),
    checked=st.booleans(),
)
def test_the_heads_of_all_pages_are_found(
    values: list[str | None], version: str, packing: str, encoding: str | None, size: int, checked: bool
) -> None:
    """In an honest file they say what the footer says, but for the lengths of the heads themselves."""
    file = io.BytesIO()
    parquet.write_table(
        pa.table({"a": pa.array(values, pa.string()), "b": range(len(values))}),
        file,
        data_page_version=version,
        compression=packing,
        use_dictionary=["a"] if encoding is None else False,
        column_encoding=encoding and {"a": encoding},
        data_page_size=size,
        write_batch_size=16,
        row_group_size=90,
        write_page_checksum=checked,
    )
    metadata = parquet.read_metadata(io.BytesIO(file.getvalue()))
    for group in range(metadata.num_row_groups):
        for chunk in map(metadata.row_group(group).column, range(2)):
            pages = list(column_pages(file, chunk))
            assert sum(page.values for page in pages) == chunk.num_values
            assert sum(page.unpacked - page.packed for page in pages) == (
                chunk.total_uncompressed_size - chunk.total_compressed_size
            )
            is_delta = chunk.path_in_schema == "a" and encoding == "DELTA_BYTE_ARRAY"
            assert any(page.as_changes for page in pages) == is_delta
            assert any(page.as_dictionary for page in pages) == chunk.has_dictionary_page


def test_a_page_whose_head_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"path": ["p.png"], "label": ["a"]}), path, use_dictionary=False)
    data = path.read_bytes()
    for head in (b"\xff" * 8, bytes(8), b"\x15\x00\x15\x01\x15\x02"):
        path.write_bytes(data[:4] + head + data[4 + len(head) :])
        with pytest.raises(EaseError, match=r"t\.parquet': it is damaged \(.*\): write it again"):
            collect_images(path)


def number(value: int, kind: int = 5, step: int = 1) -> bytes:
    """A field in Thrift's compact form, so many numbers after the one before."""
    value, found = 2 * value, bytearray()
    while True:
        found.append(value & 127 | (value > 127) << 7)
        value >>= 7
        if not value:
            return bytes([step << 4 | kind, *found])


OWN = b"\x2c" + number(1) + number(0) + number(3) + number(3) + b"\x00"
HEADS = {
    "a size twice, of two kinds": number(0) + number(11) + b"\x06\x04\x02" + number(11) + OWN,
    "a size again under a number that wraps around": (
        number(0) + number(11) + b"\x05\x84\x80\x08\x02" + b"\x05\x06" + number(11)[1:] + OWN
    ),
    "a size of another kind": number(0) + number(11, 6) + number(11) + OWN,
    "a size that wraps around": number(0) + number(2**32 + 11) + number(11) + OWN,
    "an index that goes beyond the column": number(1) + number(0) + number(2**31 - 1),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_readers_may_understand_differently_is_refused(tmp_path: Path, kind: str) -> None:
    """Otherwise pyarrow goes by a size, or to a page, that was not looked at."""
    path = tmp_path / "t.parquet"
    parquet.write_table(
        pa.table({"path": ["p" * 600], "label": ["a"]}), path, use_dictionary=False, write_statistics=False
    )
    data, head = path.read_bytes(), HEADS[kind] + bytes(1)
    path.write_bytes(data[:4] + head + data[4 + len(head) :])
    reasons = "a page does not say how large it is|a page goes beyond its column|the head of a page are not in order"
    with pytest.raises(EaseError, match=rf"t\.parquet': it is damaged \(.*({reasons})\): write it again"):
        collect_images(path)


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("packing", ["none", "zstd", "lz4", "snappy", "gzip", "brotli"])
def test_more_lengths_than_values_are_refused(
    tmp_path: Path, encoding: str, version: str, packing: str
) -> None:
    """The memory is taken for as many as the page says, before pyarrow looks whether they are there."""
    path = tmp_path / "t.parquet"
    texts = [f"{i}.png" if i % 3 else None for i in range(300)]
    how = {"use_dictionary": False, "column_encoding": {"path": encoding}, "data_page_version": version}
    parquet.write_table(pa.table({"path": texts, "n": range(300)}), path, compression=packing, **how)
    (batch,) = parquet_batches(path, ["path"], 1000)
    assert batch.column(0).to_pylist() == texts
    if packing != "none":
        return
    data, header = path.read_bytes(), b"\x80\x01\x04\xc8\x01"  # 128 in a block, 4 parts, 200 lengths
    at = [at for at in range(len(data)) if data.startswith(header, at)]
    assert len(at) == 1 + (encoding == "DELTA_BYTE_ARRAY")
    for each in at:
        path.write_bytes(data[:each] + b"\x80\x01\x04\xc8\x7f" + data[each + len(header) :])
        with pytest.raises(
            EaseError, match=r"damaged \(the lengths in a page make no sense\): write it again"
        ):
            collect_images(path, columns=["path", "n"])


def test_missing_values_of_one_length_take_no_memory(tmp_path: Path) -> None:
    """Each takes its length all the same, when it is read."""
    path = tmp_path / "t.parquet"

    def write() -> None:
        images = pa.StructArray.from_arrays([pa.array([None] * 64, pa.binary(16 * MIB))], ["bytes"])
        parquet.write_table(pa.table({"image": images, "label": ["a"] * 64}), path)

    assert Forked(write, tmp_path / "written").wait() == 0
    assert path.stat().st_size < 5000
    line = in_little_memory(lambda: read_all(path), tmp_path / "out")
    assert line == "64 images, 64 faults"


@pytest.mark.parametrize("inner", [pa.list_(pa.binary()), pa.struct([("bytes", pa.binary())])])
def test_images_within_lists_are_refused(tmp_path: Path, inner: Any) -> None:
    path = tmp_path / "t.parquet"
    value = [b"x"] if pa.types.is_list(inner) else {"bytes": b"x"}
    images = pa.array([{"bytes": value}], pa.struct([("bytes", inner)]))
    parquet.write_table(pa.table({"image": images, "label": ["a"]}), path)
    with pytest.raises(EaseError, match=r"column 'image\.bytes' has not one value per row: write it as text"):
        collect_images(path)


def test_row_groups_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """Bytes that stand in the file once would be read once for each of them."""
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"path": ["p" * 200] * 8, "label": ["a"] * 8}), path, row_group_size=4)
    size = parquet.read_metadata(path).row_group(0).column(0).total_compressed_size
    in_footer(path, size, 8000)
    with pytest.raises(
        EaseError, match=r"damaged \(its row groups are larger than the file\): write it again"
    ):
        collect_images(path)
    with pytest.raises(EaseError, match=r"its row groups are larger than the file"):
        collect_images(path, columns=["label", "path"])


def test_a_column_with_more_values_than_rows_is_refused(tmp_path: Path) -> None:
    path, many = tmp_path / "t.parquet", b"\xf2\xc0\x01"  # 12,345
    parquet.write_table(pa.table({"path": ["p"] * 12_345, "label": ["a"] * 12_345}), path)
    before, _, after = path.read_bytes().rpartition(many)  # the last number is that of the rows
    path.write_bytes(before + b"\xf0\xc0\x01" + after)
    with pytest.raises(
        EaseError, match=r"damaged \(a column has not as many values as rows\): write it again"
    ):
        collect_images(path)


@pytest.mark.parametrize("kind", ["decimal", "time"])
def test_only_the_columns_that_are_needed_are_converted(tmp_path: Path, kind: str) -> None:
    """Some times are none for Python, and no label is one."""
    for seed in range(3):
        (tmp_path / f"{seed}.png").write_bytes(picture(seed))
    odd = (
        pa.array([2**62] * 3, pa.timestamp("us", "UTC"))
        if kind == "time"
        else pa.array([Decimal("1.50")] * 3)
    )
    table = pa.table({"path": [f"{i}.png" for i in range(3)], "y": odd, "label": ["a", "a", "b"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert collect_images(tmp_path / "t.parquet").names == ("a", "b")
    with pytest.raises(
        EaseError, match=r"t\.parquet': column 'y' holds (timestamp|decimal).*: write it as text"
    ):
        collect_images(tmp_path / "t.parquet", columns=["path", "y"])


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    names = ["path", "label", "label"]
    parquet.write_table(pa.table([["a.png"], ["a"], ["b"]], names=names), tmp_path / "t.parquet")
    with pytest.raises(EaseError, match=r"t\.parquet': the column 'label' is there twice"):
        collect_images(tmp_path / "t.parquet")


def padded(count: int) -> Any:
    """Images of 4 MiB, all the same, with zeros after their end."""
    field = pa.StructArray.from_arrays([repeated(picture(1) + bytes(4 * MIB), count)], ["bytes"])
    return pa.table({"image": field, "label": ["a"] * count})


def read_all(path: Path) -> str:
    checks = check_images([each.content for each in source_inputs(path)])  # type: ignore[misc]
    return f"{len(checks)} images, {sum(check.fault is not None for check in checks)} faults"


def test_images_that_repeat_are_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(padded(130), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 50_000
    assert in_little_memory(lambda: read_all(path), tmp_path / "out") == "130 images, 0 faults"


def test_a_packed_arrow_file_is_not_unpacked_as_a_whole(tmp_path: Path) -> None:
    """What a record batch unpacks to is said in it, and believed before the memory is taken."""
    plain = pa.table({"image": [{"bytes": picture(1) + bytes(4 * MIB)}] * 20, "label": ["a"] * 20})
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for times, expected in ((1, "240 images, 0 faults"), (2, "unpacks to more than 128 MB")):
        with pa.ipc.new_stream(folder / "a.arrow", plain.schema, options=options) as writer:
            for _ in range(12 // times):
                writer.write_batch(pa.concat_tables([plain] * times).combine_chunks().to_batches()[0])
        line = in_little_memory(lambda: read_all(folder), tmp_path / f"out-{times}")
        assert expected in line


def test_images_of_a_row_group_are_found_wherever_pages_end(tmp_path: Path) -> None:
    seeds = [*range(40), 3, 3, 5]
    field = pa.array([{"bytes": picture(seed), "path": None} for seed in seeds])
    table = pa.table({"image": field, "label": [f"c{seed % 3}" for seed in seeds]})
    path = tmp_path / "t.parquet"
    parquet.write_table(table, path, row_group_size=37, data_page_size=500, dictionary_pagesize_limit=600)
    found = [each.content.read("x") for each in source_inputs(path)]  # type: ignore[union-attr]
    assert found == [picture(seed) for seed in seeds]
    assert len(collect_images(path).images) == len(seeds)
