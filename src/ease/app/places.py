"""Places that a packed model is shared in: a file, an HTTP(S) location, a repository of the Hugging Face hub."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

from ease.app.archive import ARCHIVE_LIMIT, PIECE
from ease.documents import reason_of, whole_number
from ease.errors import EaseError
from ease.filesystem import explained, is_folder, shown, size_of, what_is
from ease.storage import files as durable

TOKEN = "EASE_SHARE_TOKEN"
"""Environment variable with the token for HTTP(S) locations. The hub's client has its own, HF_TOKEN."""
SECONDS = 60.0
"""Longest silence of a server."""
SMALL = 64 * 1024
"""Most bytes of a checksum file."""

_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(?:/(?P<file>[\w.-]{1,96}\.ease))?(?:@(?P<revision>[\w./-]{1,96}))?"
)


class Place(Protocol):
    """Where an archive and the files beside it are put, or come from.

    Attributes:
        shown: The place without secrets, for messages.
        name: File name of the archive there.
    """

    shown: str
    name: str

    def put(self, archive: Path, beside: Mapping[str, bytes]) -> None:
        """Write the archive and files beside it, whose names begin with that of the archive or are README.md."""

    def get(self, suffix: str, sink: BinaryIO, limit: int) -> bool:
        """Copy the archive, or the file with its name and this suffix, into `sink`; False if there is no such file."""


def place(text: str, default_name: str) -> Place:
    """The place that a text names: `hf://user/name`, `https://...`, `file:///...` or a path."""
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme == "hf":
        return HubPlace(text)
    if scheme in ("http", "https"):
        return HttpPlace(text)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise EaseError(f"'{shown(text)}' is no file of this machine: write file:///folder/name.ease")
        return FilePlace(unquote(parts.path), default_name)
    if scheme:
        raise EaseError(
            f"'{scheme}://' is no place to share a model in: use hf://, https://, http:// or a path"
        )
    return FilePlace(text, default_name)


class FilePlace:
    """A file of this machine, or a folder (it exists, or ends with a slash) that gets one with the model's name."""

    def __init__(self, text: str, default_name: str) -> None:
        path = Path(text).expanduser()
        self._path = path / default_name if text.endswith("/") or is_folder(path) else path
        self.shown, self.name = str(self._path), self._path.name

    def put(self, archive: Path, beside: Mapping[str, bytes]) -> None:
        durable.check_place(self._path)
        with (
            durable.made_folder(self._path.parent),
            durable.replacing(self._path) as target,
            open(archive, "rb") as source,
        ):
            shutil.copyfileobj(source, target, PIECE)
        for name, content in beside.items():
            if name.startswith(self.name):  # a README.md there is somebody's own
                durable.write_atomic(self._path.with_name(name), content)

    def get(self, suffix: str, sink: BinaryIO, limit: int) -> bool:
        path = self._path.with_name(self.name + suffix)
        what = what_is(path)
        if what == "missing":
            return False
        if what != "file":
            raise EaseError(f"cannot read {shown(path)}: it is not a file, check the path")
        size = size_of(path)
        if not size or size > limit:  # files of the system that say that they are empty may never end
            problem = f"larger than {limit} bytes" if size else "empty"
            raise EaseError(f"{shown(path)} is {problem}: check that it is the right file")
        with explained("read", path), open(path, "rb") as source:
            _copy(source, sink, limit, str(path))
        return True


class HttpPlace:
    """A location that takes PUT and gives GET, such as a WebDAV folder or an object store."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise EaseError(f"the address has a password in it: put a token into {TOKEN} instead")
        self.name = unquote(parts.path).rpartition("/")[2]
        if not parts.hostname or not self.name or any(ord(c) <= 32 or ord(c) > 126 for c in url):
            raise EaseError(
                f"'{url[:120]}' is no address of a file: write https://host/folder/name.ease, with %20 for spaces"
            )
        self._parts = parts
        self.shown = urlunsplit(
            (parts.scheme, parts.netloc, parts.path, "", "")
        )  # a query may hold a signature
        self._headers = {"User-Agent": "ease-cil"}
        token = os.environ.get(TOKEN)
        if token:
            if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
                raise EaseError(f"{TOKEN} is set and {self.shown} is not encrypted: use https")
            self._headers["Authorization"] = f"Bearer {token}"
        self._open = urllib.request.build_opener(_Redirects()).open

    def put(self, archive: Path, beside: Mapping[str, bytes]) -> None:
        with open(archive, "rb") as file:
            self._put("", file, size_of(archive))
        for name, content in beside.items():
            if name.startswith(self.name):
                self._put(name.removeprefix(self.name), content, len(content))

    def _put(self, suffix: str, content: Any, size: int) -> None:
        headers = {
            **self._headers,
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size),
        }
        request = urllib.request.Request(self._url(suffix), data=content, headers=headers, method="PUT")
        with _Explained(f"{self.shown}{suffix}") as answers, self._open(request, timeout=SECONDS):
            pass
        if answers.missing:
            raise EaseError(f"{self.shown}{suffix} cannot be put: the server has no such folder")

    def get(self, suffix: str, sink: BinaryIO, limit: int) -> bool:
        request = urllib.request.Request(self._url(suffix), headers=self._headers)
        with _Explained(f"{self.shown}{suffix}") as answers, self._open(request, timeout=SECONDS) as answer:
            length = whole_number(answer.headers.get("Content-Length", ""))
            if length is not None and length > limit:
                raise EaseError(f"{self.shown}{suffix} is larger than {limit} bytes: is it the right file?")
            copied = _copy(answer, sink, limit, f"{self.shown}{suffix}")
            if length is not None and copied != length:
                raise EaseError(f"{self.shown}{suffix} ended early, after {copied} bytes: try again")
        return not answers.missing

    def _url(self, suffix: str) -> str:
        parts = self._parts
        return urlunsplit((parts.scheme, parts.netloc, parts.path + suffix, parts.query, ""))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirection, but never carry the token to another host, nor leave encryption."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme != before.scheme and after.scheme != "https":
            raise EaseError(
                f"{before.hostname} redirects to an address that is not https: use another address"
            )
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and after.netloc != before.netloc:
            following.remove_header("Authorization")
        return following


class _Explained:
    """Turn what may go wrong with a request into one line; a file that is missing is noted."""

    def __init__(self, where: str) -> None:
        self.where, self.missing = where, False

    def __enter__(self) -> _Explained:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, urllib.error.HTTPError):
            with suppress(OSError):
                error.close()
            if error.code in (404, 410):
                self.missing = True
                return True
            hint = f"check the token in {TOKEN}" if error.code in (401, 403) else "check the address"
            raise EaseError(f"{self.where} answers {error.code} {error.reason}: {hint}") from error
        if isinstance(error, urllib.error.URLError | OSError | http.client.HTTPException) and not isinstance(
            error, EaseError
        ):
            inner = getattr(error, "reason", None)
            reason = reason_of(inner if isinstance(inner, BaseException) else error, "no answer")
            raise EaseError(f"{self.where} cannot be reached ({reason}): check the address") from error
        return False


class HubPlace:
    """A repository of the Hugging Face hub, `hf://user/name[/file.ease][@revision]`, through the hub's own client."""

    def __init__(self, text: str) -> None:
        found = _REPOSITORY.fullmatch(text.partition("://")[2])
        if found is None:
            raise EaseError(f"'{text[:120]}' is no repository of the hub: write hf://user/name")
        self._repo, self._revision = found["repo"], found["revision"]
        self.name, self.shown = found["file"] or "model.ease", text

    def put(self, archive: Path, beside: Mapping[str, bytes]) -> None:
        """One commit with all files: readers see all of them or none."""
        from huggingface_hub import CommitOperationAdd, HfApi

        operations: list[Any] = [CommitOperationAdd(self.name, str(archive))]
        operations += [CommitOperationAdd(name, content) for name, content in beside.items()]
        api = HfApi(library_name="ease-cil")
        try:
            api.create_repo(self._repo, exist_ok=True)
            api.create_commit(
                self._repo, operations, commit_message=f"Upload {self.name}", revision=self._revision
            )
        except Exception as error:  # its client has many kinds, for tokens, names, networks and quotas
            raise self._failed(error) from error

    def get(self, suffix: str, sink: BinaryIO, limit: int) -> bool:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError

        name = self.name + suffix
        folder = Path(sink.name).parent / "hub"
        try:
            size = get_hf_file_metadata(hf_hub_url(self._repo, name, revision=self._revision)).size
            if size is None or size > limit:
                raise EaseError(
                    f"{self.shown}: '{name}' has {size} bytes, more than {limit}: is it the right file?"
                )
            fetched = hf_hub_download(
                self._repo, name, revision=self._revision, local_dir=folder, library_name="ease-cil"
            )
        except EaseError:
            raise
        except EntryNotFoundError:
            return False
        except Exception as error:
            raise self._failed(error) from error
        with open(fetched, "rb") as source:
            _copy(source, sink, limit, self.shown)
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _failed(self, error: Exception) -> EaseError:
        reason = reason_of(error, "no answer that can be used")
        return EaseError(
            f"the hub refused {self.shown} or cannot be reached ({reason}): "
            "check the name, the network and the token (HF_TOKEN)"
        )


def _copy(source: Any, sink: BinaryIO, limit: int, where: str) -> int:
    copied = 0
    while piece := source.read(PIECE):
        copied += len(piece)
        if copied > limit:
            raise EaseError(f"{where} is larger than {limit} bytes: check that it is the right file")
        with explained("write", sink.name):  # it is not the source that fails
            sink.write(piece)
    return copied


LARGEST = ARCHIVE_LIMIT
"""Most bytes of an archive."""
