"""Durable files are whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posix
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ease.errors import EaseError
from ease.storage import files
from ease.storage.contents import (
    FileEntry,
    decode_json,
    encode_json,
    encode_tensors,
    entry_of,
    read_json,
    read_metadata,
    read_tensors,
    write_json,
    write_tensors,
)

Fault = Callable[[str, Path], None]


@pytest.fixture(scope="module", autouse=True)
def _real_disk() -> Iterator[None]:
    """Other tests do without syncing."""
    replaced, os.fsync = os.fsync, posix.fsync
    yield
    os.fsync = replaced


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def points_of_a_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(files, "fault", lambda point, _: seen.append(point))
    files.write_atomic(path, b"new")
    monkeypatch.undo()
    return seen


def test_a_write_replaces_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "record"
    files.write_atomic(path, b"a long first content")
    files.write_atomic(str(path), b"short")
    assert content(tmp_path) == {"record": b"short"}


def test_the_points_of_failure_are_all_announced_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert points_of_a_write(tmp_path / "record", monkeypatch) == [
        "before-write",
        "after-write",
        "before-fsync",
        "after-fsync",
        "before-replace",
        "after-replace",
        "before-folder-fsync",
        "after-folder-fsync",
    ]


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        fsync(handle)
        steps.append(("fsync", os.fstat(handle).st_ino))

    def record_replace(source: Path, target: Path) -> None:
        replace(source, target)
        steps.append(("replace", target.stat().st_ino))

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    files.write_atomic(tmp_path / "record", b"new")
    inode = (tmp_path / "record").stat().st_ino
    assert steps == [("fsync", inode), ("replace", inode), ("fsync", tmp_path.stat().st_ino)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EIO])
def test_an_error_at_any_point_is_one_line_and_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for point in points_of_a_write(tmp_path / "record", monkeypatch):
        files.write_atomic(tmp_path / "record", b"old")

        def strike(now: str, _: Path, point: str = point) -> None:
            if now == point:
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(files, "fault", strike)
        with pytest.raises(EaseError, match=r"^cannot write \S+record: .+: .+$"):
            files.write_atomic(tmp_path / "record", b"new")
        monkeypatch.undo()
        replaced = point in ("after-replace", "before-folder-fsync", "after-folder-fsync")
        assert content(tmp_path) == {"record": b"new" if replaced else b"old"}


def test_an_interruption_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strike(point: str, _: Path) -> None:
        if point == "after-write":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "fault", strike)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(tmp_path / "record", b"new")
    assert content(tmp_path) == {}


def test_a_real_file_size_limit_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "record").write_bytes(b"old")
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            files.write_atomic(tmp_path / "record", bytes(100_000))
        except EaseError as error:
            os._exit(9 if "the file size limit is reached" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert content(tmp_path) == {"record": b"old"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "nowhere" / "x", "does not exist"),
        (lambda p: (p / "file").touch() or p / "file" / "x", "is a file"),
        (lambda p: (p / "folder").mkdir() or p / "folder", "is a folder"),
        (lambda p: p / ("x" * 300), "too long"),
    ],
)
def test_a_bad_place_is_one_line(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(EaseError, match=words):
        files.write_atomic(make(tmp_path), b"new")
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(EaseError, match="permission denied"):
            files.write_atomic(tmp_path / "record", b"new")
        with pytest.raises(EaseError, match="permission denied"):
            files.make_folder(tmp_path / "a" / "b")
    finally:
        tmp_path.chmod(0o700)


def test_a_temporary_folder_goes_with_its_parents_and_is_left_alone_while_it_is_in_use(
    tmp_path: Path,
) -> None:
    wanted = tmp_path / "new" / "model"
    with files.temporary_folder(wanted) as one, files.temporary_folder(wanted) as other:
        assert one.is_dir()
        assert other.is_dir()
        assert one.parent == other.parent == wanted.parent
    assert content(tmp_path) == {}
    assert not wanted.parent.exists()
    with files.temporary_folder(wanted) as one:
        (one / "file").write_text("done")
        one.rename(wanted)
    assert content(tmp_path) == {"new/model/file": b"done"}


def test_several_files_are_written_or_none_of_the_new_ones(tmp_path: Path) -> None:
    wanted = {"page.html": b"page", "table.csv": b"table"}
    folder = tmp_path / "new" / "folder"
    assert files.write_all(folder, wanted) == [folder / name for name in wanted]
    assert content(folder) == wanted
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(EaseError, match="ulimit"):
            files.write_all(tmp_path / "other" / "folder", {"small": b"1", "large": b"2" * 11})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "other").exists()


def test_the_sweep_takes_what_a_killed_writer_left_and_nothing_else(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        files.fault = lambda point, path: os._exit(9) if point == "after-write" else None
        files.write_atomic(tmp_path / "record", b"new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for name in ("record", ".hidden", "notes.tmp-1-2", ".other.tmp-1-2"):
        (tmp_path / name).write_bytes(b"mine")
    assert len(content(tmp_path)) == 5
    (swept,) = files.sweep(tmp_path, "record")
    assert swept.name.startswith(".record.tmp-")
    assert sorted(content(tmp_path)) == [".hidden", ".other.tmp-1-2", "notes.tmp-1-2", "record"]
    assert files.sweep(tmp_path / "nowhere") == []


def test_new_folders_are_recorded_in_the_folders_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


# --- JSON -----------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
@example({"name": "caf\u00e9 \udcff"})
@settings(deadline=None)
def test_json_comes_back_as_it_went(value: object) -> None:
    raw = encode_json(value)
    assert decode_json(raw, "x") == value
    assert encode_json(decode_json(raw, "x")) == raw


def test_json_keeps_its_order_and_ends_in_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "r.json", {"b": 1, "a": ["ä"]})
    assert (tmp_path / "r.json").read_text(encoding="utf-8") == '{\n "b": 1,\n "a": [\n  "ä"\n ]\n}\n'
    assert read_json(tmp_path / "r.json") == {"b": 1, "a": ["ä"]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "r.json", {"accuracy": value})
    assert content(tmp_path) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b"[NaN]",
        b"[Infinity]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 200 + b"]" * 200,
        b"9" * 10_000,
    ],
)
def test_damaged_json_is_one_line(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "r.json").write_bytes(raw)
    with pytest.raises(EaseError, match=r"r\.json is (damaged|nested deeper)"):
        read_json(tmp_path / "r.json")


def test_missing_large_or_strange_json_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="does not exist"):
        read_json(tmp_path / "r.json")
    (tmp_path / "r.json").write_text("[1, 2, 3]")
    with pytest.raises(EaseError, match="more than the 5 allowed"):
        read_json(tmp_path / "r.json", limit_bytes=5)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    with pytest.raises(EaseError, match="not a regular file"):
        read_json(tmp_path / "pipe")


# --- tensors --------------------------------------------------------------------------------------


def some_tensors() -> dict[str, torch.Tensor]:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "w": whole,
        "row": whole[1],  # shares memory
        "column": whole[:, 1],  # and is not contiguous
        "half": torch.ones(3, dtype=torch.float16),
        "brain": torch.ones(3, dtype=torch.bfloat16),
        "counts": torch.tensor([1, 2**40]),
        "flag": torch.tensor(True),
        "none": torch.zeros(0, 5),
        "grad": torch.ones(2, requires_grad=True),
    }


def test_tensors_come_back_as_they_went(tmp_path: Path) -> None:
    entry = write_tensors(tmp_path / "t", some_tensors(), {"kind": "adapter", "é": "ü"})
    assert entry.size == (tmp_path / "t").stat().st_size
    back = read_tensors(tmp_path / "t", entry)
    assert list(back) == sorted(some_tensors())
    for name, value in some_tensors().items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)
        assert not back[name].requires_grad
    back["w"].add_(1)  # writable
    assert read_metadata(tmp_path / "t") == {"kind": "adapter", "é": "ü"}
    assert read_tensors(tmp_path / "t").keys() == back.keys()


def test_no_tensors_at_all_are_a_file_too(tmp_path: Path) -> None:
    entry = write_tensors(tmp_path / "t", {})
    assert read_tensors(tmp_path / "t", entry) == {}
    assert read_metadata(tmp_path / "t") == {}


def test_equal_tensors_are_equal_bytes_in_any_order() -> None:
    """Safetensors' own metadata order is random, per call as well as per process."""
    ways = []
    for names in ("abcdef", "fedcba") * 5:
        tensors = {name: torch.full((2,), float(ord(name))) for name in names}
        ways.append(encode_tensors(tensors, {name: name for name in names}))
    assert len(set(ways)) == 1


def test_a_checksum_catches_every_flipped_byte(tmp_path: Path) -> None:
    path = tmp_path / "t"
    entry = write_tensors(path, {"w": torch.ones(3)}, {"kind": "adapter"})
    raw = path.read_bytes()
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
        with pytest.raises(
            EaseError, match=r"is damaged \(its checksum differs\): restore it .* or roll back"
        ):
            read_tensors(path, entry)


def test_a_cut_or_grown_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t"
    entry = write_tensors(path, {"w": torch.ones(3)})
    raw = path.read_bytes()
    for other in (raw[:-1], raw + b"x", b""):
        path.write_bytes(other)
        with pytest.raises(EaseError, match=r"bytes in place of"):
            read_tensors(path, entry)
        with pytest.raises(EaseError, match="not valid safetensors"):
            read_tensors(path)


@given(position=st.integers(0, 400), value=st.integers(0, 255))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_without_a_checksum_damage_is_one_line_or_still_tensors(
    tmp_path: Path, position: int, value: int
) -> None:
    raw = bytearray(encode_tensors(some_tensors()))
    raw[position] = value
    (tmp_path / "t").write_bytes(raw)
    for read in (read_tensors, read_metadata):
        with contextlib.suppress(EaseError):
            read(tmp_path / "t")


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "t")
    with pytest.raises(EaseError, match="not valid safetensors"):
        read_tensors(tmp_path / "t")


def test_a_header_that_lies_about_its_length_costs_no_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in (2**63, 2**40, 10**9):
        (tmp_path / "t").write_bytes(length.to_bytes(8, "little") + json.dumps({}).encode())
        for read in (read_tensors, read_metadata):
            with pytest.raises(EaseError, match="not valid safetensors"):
                read(tmp_path / "t")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_an_entry_names_the_content() -> None:
    assert entry_of(b"abc") == FileEntry(
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 3
    )
