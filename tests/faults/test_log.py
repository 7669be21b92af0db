"""A log that cannot be written does not keep the server from answering."""

from __future__ import annotations

import errno
import io
import json

from ease.app.server.telemetry import Log
from ease.errors import EaseError


class Full(io.StringIO):
    """A stream on a disk that is full for a while."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            super().write(text[:9])  # as much as still fits
            raise OSError(errno.ENOSPC, "full")
        return super().write(text)


def test_lines_that_cannot_be_written_are_counted() -> None:
    stream = Full()
    log = Log(stream)
    log.event("request")
    log.failure("something", ValueError("x"))
    stream.full = False
    log.event("request")
    log.event("request")
    first, second = map(json.loads, stream.getvalue().splitlines()[-2:])
    assert first["lines_lost"] == 2
    assert "lines_lost" not in second


def test_a_full_disk_is_one_sentence_and_an_unexpected_error_has_its_traceback() -> None:
    stream = io.StringIO()
    log = Log(stream)
    for error in (OSError(errno.EFBIG, "File too large"), EaseError("cannot write model"), ValueError("bug")):
        try:
            raise error
        except Exception as caught:
            log.failure("POST /learn", caught)
    full, refused, unexpected = map(json.loads, stream.getvalue().splitlines())
    assert "File too large" in full["error"]
    assert refused["error"] == "cannot write model"
    assert "detail" not in full
    assert "detail" not in refused
    assert "Traceback" in unexpected["detail"]
