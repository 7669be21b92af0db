"""One writer at a time on storage that several machines share: a lease with a heartbeat and a fencing token."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from ease.documents import Count, Document, Text
from ease.errors import EaseError
from ease.filesystem import explained, read_bytes
from ease.storage import files as durable
from ease.storage.contents import encode_json

LEASE_SECONDS = 60.0
"""A holder that shows no sign of life for so long has lost its lease."""
LONGEST_BEAT = 5.0
"""Seconds between two signs of life, at most."""
_LEASE_LIMIT = 2**16
_NAME = re.compile(r"([0-9]{8})\.json")


class LeaseLostError(EaseError):
    """Another process has the work of this one, which was taken for dead: nothing more may be written."""


class LeaseHolder(Document):
    """What a lease file says.

    Attributes:
        node: what people call the machine.
        machine: tells machines apart, and containers with process numbers of their own.
        process: the process number there.
        started: when that process was started, so that a number that was given again is noticed.
        beat: grows with every sign of life.
        done: steps that the holder has made.
        total: steps that there are; 0 if that is not known yet.
        released: the holder has finished.
    """

    node: Text
    machine: Text
    process: Count
    started: Text
    beat: Count
    done: Count = 0
    total: Count = 0
    released: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether it was a process of this machine that has ended; of other machines this cannot be known."""
        return self.machine == _machine() and _start_of(self.process) != self.started


class Lease:
    """The right to write something, kept alive by a thread and taken over when its holder is lost.

    Every holder makes a file in the folder whose name is one more than the highest number there: the fencing token.
    Making a file that must not exist succeeds for one process only, on network file systems too. The highest number
    is the holder; it rewrites its file as a sign of life. Who wants the lease watches that file: it is free when the
    holder says so, when it was a process of this machine that has ended, or when the file stays the same for
    `seconds`. No clocks of two machines are compared. The last file stays, so that tokens only grow; `discard_lease`
    removes it where no process can be left that still believes to hold the lease.

    A holder that was stopped for longer than that finds a higher number in the folder: `check` then raises, and
    with `ease.storage.files.fenced` that happens before each write.

    Args:
        folder: where the lease files lie.
        seconds: how long a holder may be silent.
        node: what people call this machine.
    """

    def __init__(self, folder: Path, seconds: float = LEASE_SECONDS, node: str | None = None) -> None:
        self.folder, self.seconds = folder, seconds
        self.node = node or socket.gethostname()
        self.token = 0
        """The fencing token, 0 before the lease was ever held."""
        self.taken_over = False
        """Whether the holder before did not give the lease back."""
        self.done, self.total = 0, 0
        """How far this process has come; others can read it in the lease."""
        self._beat = 0

    @contextlib.contextmanager
    def hold(
        self, unneeded: Callable[[], bool], waiting: Callable[[LeaseHolder], None] | None = None
    ) -> Iterator[bool]:
        """Wait until the lease is free and hold it inside the `with`.

        Args:
            unneeded: asked while waiting; when it returns True the wait ends without the lease.
            waiting: told once who is waited for.

        Yields:
            Whether the lease is held.
        """
        if not self._acquire(unneeded, waiting):
            yield False
            return
        stop = threading.Event()
        beating = threading.Thread(target=self._keep_alive, args=(stop,), daemon=True)
        beating.start()
        try:
            yield True
        finally:
            stop.set()
            beating.join()
            with contextlib.suppress(EaseError):  # lost, or the disk is full: it runs out by itself
                self.check()
                self._write(released=True)

    def check(self) -> None:
        """Raise `LeaseLostError` if another process holds the lease now."""
        if _latest(self.folder) != self.token:
            raise LeaseLostError(
                f"the lease {self.folder} was lost: this process was silent for too long, and another one goes on"
            )

    def _acquire(self, unneeded: Callable[[], bool], waiting: Callable[[LeaseHolder], None] | None) -> bool:
        watched, since = (-1, b""), 0.0
        while True:
            durable.make_folder(self.folder)  # again each time: `discard_lease` may have removed it
            latest = _latest(self.folder)
            content = _content(self.folder, latest)
            holder = _decoded(content)
            if (latest, content) != watched:
                watched, since = (latest, content), time.monotonic()
            if unneeded():
                return False
            free = latest == 0 or (holder is not None and (holder.released or holder.is_gone))
            if free or time.monotonic() - since >= self.seconds:
                if self._claim(latest + 1):
                    self.taken_over = latest > 0 and not (holder is not None and holder.released)
                    return True
                continue
            if waiting is not None and holder is not None:
                waiting(holder)
                waiting = None
            time.sleep(min(1.0, self.seconds / 20))

    def _claim(self, token: int) -> bool:
        path = _path(self.folder, token)
        with explained("write", path):
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except (FileExistsError, FileNotFoundError):  # claimed or discarded by another process meanwhile
                return False
        self.token, self._beat = token, 0
        self._write()
        for number in _numbers(self.folder):
            if number < token:
                durable.sweep(self.folder, _path(self.folder, number).name)
                durable.remove(_path(self.folder, number))
        return True

    def _write(self, released: bool = False) -> None:
        self._beat += 1
        holder = LeaseHolder(
            node=self.node,
            machine=_machine(),
            process=os.getpid(),
            started=_start_of(os.getpid()),
            beat=self._beat,
            done=self.done,
            total=self.total,
            released=released,
        )
        content = encode_json(holder.as_json())
        durable.write_atomic(_path(self.folder, self.token), content, durable=False)

    def _keep_alive(self, stop: threading.Event) -> None:
        while not stop.wait(min(LONGEST_BEAT, self.seconds / 4)):
            try:
                self.check()
                self._write()
            except LeaseLostError:
                return
            except EaseError:  # perhaps the disk is full for a moment
                continue


def lease_holder(folder: Path) -> LeaseHolder | None:
    """Who holds the lease in a folder, or held it last; None if nobody did."""
    try:
        return _decoded(_content(folder, _latest(folder)))
    except EaseError:
        return None


def discard_lease(folder: Path) -> None:
    """Remove a lease, and its folder, if its one and only holder has given it back; any other one stays.

    A lease that was ever taken over stays, because the token of a holder that was taken for dead must not be given
    again.
    """
    holder = lease_holder(folder)
    with contextlib.suppress(EaseError):  # it stays, as leases do
        if holder is not None and holder.released and _numbers(folder) == [1]:
            durable.remove(_path(folder, 1))
            durable.remove_empty([folder])


def _path(folder: Path, token: int) -> Path:
    return folder / f"{token:08d}.json"


def _numbers(folder: Path) -> list[int]:
    """The tokens of the lease files in a folder. Listing it asks a file server, where a look at one name may not."""
    with explained("list", folder):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def _latest(folder: Path) -> int:
    return max(_numbers(folder), default=0)


def _content(folder: Path, token: int) -> bytes:
    try:
        return read_bytes(_path(folder, token), _LEASE_LIMIT)
    except EaseError:  # none yet, or replaced at this moment
        return b""


def _decoded(content: bytes) -> LeaseHolder | None:
    try:
        return LeaseHolder.model_validate_json(content)
    except ValidationError:  # just made and still empty, or cut off by a power failure
        return None


@cache
def _machine() -> str:
    """Tells machines and containers apart."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:  # not Linux
        parts.append(f"{uuid.getnode():x}")
    return " ".join(parts)


def _start_of(process: int) -> str:
    """When a process of this machine was started, in words that only compare; empty if there is none."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if os.path.isdir("/proc/self"):
            return ""
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            return "alive"
        return "alive"
    state, *rest = facts.rpartition(")")[2].split()
    return "" if state in ("Z", "X") else rest[18]  # a zombie writes nothing
