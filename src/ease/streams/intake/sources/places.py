"""Where a path in a table or list leads: below a folder, to an absolute path, or to an address that is allowed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from ease.errors import EaseError
from ease.filesystem import shown
from ease.streams.intake.names import display_name
from ease.streams.intake.sources.web import WebImage, host_of

AllowUrls = bool | Literal["private"]
"""Whether addresses are fetched: not at all, public ones only, or also those of private networks."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
MAX_PATH = 4096


@dataclass(frozen=True)
class Places:
    """Turns the paths of a table or list into images.

    A relative path is one below the root, and never leads out of it. An absolute path is taken as it is: whoever
    wrote the table has asked for exactly this file. Addresses are refused unless they are allowed.

    Attributes:
        root: The folder that relative paths begin at.
        allow_urls: Whether http and https addresses are fetched.
        keep: Whether what was fetched is kept until the process ends, for images that are read several times.
        confined: Whether a relative path must stay below the root; paths that a person lists may lead anywhere.
    """

    root: Path
    allow_urls: AllowUrls = False
    keep: bool = True
    confined: bool = True

    def image(self, text: object) -> Path | WebImage:
        """The image that a path or an address stands for. Nothing is opened.

        Args:
            text: What the table says.

        Raises:
            EaseError: It is empty, leads out of the root, or is an address that is not allowed.
        """
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_PATH or "\0" in text:
            raise EaseError("there is no path to an image: fill it in or remove the row")
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:  # half a character, which JSON can write
            raise EaseError(
                f"'{display_name(text)}' holds a character that no path can have: check it"
            ) from error
        if _SCHEME.match(text):
            return self._address(text)
        path = Path(text)
        if path.is_absolute() or not self.confined:
            return path if path.is_absolute() else self.root / path
        depth = 0
        for part in PurePosixPath(text.replace("\\", "/") if "/" not in text else text).parts:
            depth += -1 if part == ".." else 1
            if depth < 0:
                raise EaseError(
                    f"'{display_name(text)}' leads out of '{shown(self.root)}': give another --root, "
                    "or write the absolute path"
                )
        return self.root / path

    def _address(self, text: str) -> WebImage:
        if not text.lower().startswith(("http://", "https://")):
            raise EaseError(
                f"'{display_name(text)}' is not an http or https address: save the image to a file"
            )
        if not self.allow_urls:
            raise EaseError(f"'{display_name(text)}' is an address: fetch images with --allow-urls")
        host_of(text)
        return WebImage(text, self.allow_urls == "private", self.keep)
