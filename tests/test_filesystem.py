"""One place asks the file system, and answers with one kind of error."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ease import filesystem
from ease.errors import EaseError
from ease.filesystem import read_bytes

GB = 2**30


def address_space() -> int:
    """Bytes that this process has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_reading_asks_for_no_more_memory_than_the_file_has(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"content")
    child = os.fork()
    if child == 0:
        limit = address_space() + GB // 2
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            os._exit(9 if read_bytes(tmp_path / "small", 16 * GB) == b"content" else 1)
        except MemoryError:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_file_that_grows_while_it_is_read_is_read_whole_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "growing").write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "before").write_bytes(b"123")
    then = os.stat(tmp_path / "before")
    monkeypatch.setattr(filesystem.os, "fstat", lambda handle: then)
    monkeypatch.setattr(filesystem.os, "stat", lambda path: then)
    assert read_bytes(tmp_path / "growing", 300_000) == bytes(range(256)) * 1000
    with pytest.raises(EaseError, match="more than the 100000 allowed"):
        read_bytes(tmp_path / "growing", 100_000)
