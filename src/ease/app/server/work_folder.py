"""The private folder for uploads, which is made again if a program that cleans temporary folders has removed it."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from ease.app.server.refusals import RefusalError
from ease.storage.files import make_folder


def private_folder(folder: Path) -> Path:
    """Make a folder and the one that it is in, both for this user only, unless they are there.

    Returns:
        The folder.
    """
    make_folder(folder.parent.parent)
    for each in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=0o700)
        # In a temporary folder, which everybody may write, another user may have taken the place of one that is gone.
        facts = each.lstat()
        if not stat.S_ISDIR(facts.st_mode) or (os.name == "posix" and facts.st_uid != os.geteuid()):
            raise RefusalError(503, "the server's folder for uploads belongs to somebody else: restart it")
    return folder


def folder_for_request(uploads: Path) -> Path:
    """A new folder for the files of one request."""
    return Path(tempfile.mkdtemp(dir=private_folder(uploads)))
