"""A log that cannot be written does not keep the server from answering."""

from __future__ import annotations

import errno
import io
import json

from ease.app.server.telemetry import Log


class Full(io.StringIO):
    """A stream on a disk that is full for a while."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
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
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["lines_lost"] == 2
    assert "lines_lost" not in second
