"""Answers to requests that are refused: a status and one sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse


class RefusalError(HTTPException):
    """Refuse a request with a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)


def refusal(error: HTTPException) -> JSONResponse:
    """The answer for this error."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def stopping() -> RefusalError:
    """The refusal of a request that is under way when the server ends, or when its model is closed."""
    sentence = "the server is stopping, or this model is being closed: try again later"
    return RefusalError(503, sentence, {"Retry-After": "1"})


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNUSABLE = (
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
)


def refusal_of_disk(error: BaseException | None) -> RefusalError | None:
    """The answer to an error of the server's file system, which is no fault of the request; None for other errors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return RefusalError(
                507, "the server's disk is full: free some space there and send the request again"
            )
        if isinstance(error, OSError) and error.errno in _UNUSABLE:
            reason = os.strerror(error.errno).lower()
            return RefusalError(503, f"the server cannot use its files now ({reason}): see its log")
        error = error.__cause__
    return None
