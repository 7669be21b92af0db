"""Answers that are no success: a status and one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse


class RefusalError(HTTPException):
    """An answer that is a refusal: a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)


def refusal(error: HTTPException) -> JSONResponse:
    """As it is sent."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
)


def refusal_of_disk(error: BaseException | None) -> RefusalError | None:
    """The answer if the system refused the server a file, which is no fault of the request; None for other errors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return RefusalError(507, "the server's disk is full: free some space there and send it again")
        if isinstance(error, OSError) and error.errno in _UNUSABLE:
            reason = os.strerror(error.errno).lower()
            return RefusalError(503, f"the server cannot use its files now ({reason}): look at its log")
        error = error.__cause__
    return None
