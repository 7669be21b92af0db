"""Shards in the form of webdataset as a source: tar files whose members KEY.jpg and KEY.cls belong together.

Members are never unpacked. Images are read where they lie in the tar file, so a shard must not be compressed.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ease.documents import parse_json
from ease.errors import EaseError
from ease.filesystem import is_file, read_text, shown
from ease.streams.intake.formats import IMAGE_EXTENSIONS, UNSUPPORTED_EXTENSIONS, unsupported_format
from ease.streams.intake.limits import MB
from ease.streams.intake.names import display_name, is_system_file
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.sources.candidates import Candidates, Gathered
from ease.streams.intake.sources.table import LABEL_COLUMNS, label_text
from ease.streams.intake.stored import FilePiece

MAX_MEMBERS = 10_000_000
"""Members of all shards together."""
MAX_LABEL = 64 * 1024
"""Bytes of a member that holds a label."""
MAX_HEADER = MB
"""Bytes that are read at once. The headers of a member may claim any length."""
CLASS_NAMES = "classnames.txt"
"""A file beside the shards with one class name per line, for shards whose labels are numbers."""

_LABELS = (".cls", ".txt", ".json")
_PROGRAMS = frozenset({".pyd", ".pth", ".pt", ".pkl", ".pickle"})
"""Endings under which webdataset unpickles members, which would run whatever program is in them."""


@dataclass
class Sample:
    """What a shard holds under one key.

    Attributes:
        shard: The tar file.
        key: The names of its members up to the first dot.
        image: Where the image lies; None if there is none.
        name: The name of the image's member.
        labels: Ending -> content of the members that may hold the label.
        fault: Why the sample cannot be used; empty if it can.
    """

    shard: Path
    key: str
    image: FilePiece | None = None
    name: str = ""
    labels: dict[str, bytes] = field(default_factory=dict)
    fault: str = ""

    @property
    def shown(self) -> str:
        """What messages call it: SHARD/MEMBER."""
        return f"{self.shard.name}/{display_name(self.name or self.key.removeprefix('/'))}"


def from_shards(shards: Sequence[Path], unreadable: Unreadable = "refuse") -> Candidates:
    """List the images of shards.

    Args:
        shards: The tar files. The label of KEY.jpg is in KEY.cls or KEY.txt (a number or a name), or in KEY.json.
        unreadable: What to do with samples that cannot be used.

    Returns:
        The images; classes in the order of their names.
    """
    names = _class_names(shards[0].parent)
    gathered, count = Gathered(unreadable), 0
    for shard in shards:
        for sample in read_shard(shard):
            count += 1
            try:
                if sample.fault or sample.image is None:
                    raise EaseError(sample.fault or "it has no image: add KEY.jpg or remove the sample")
                gathered.add(
                    _label(sample, names), sample.shown, sample.image, f"{shard}/{display_name(sample.name)}"
                )
            except EaseError as error:
                gathered.leave_out(sample.shown, f"sample '{sample.shown}': {error}")
    if not count:
        raise EaseError(f"'{shown(shards[0])}' has no sample in it: put KEY.jpg and KEY.cls into it")
    return gathered.candidates()


def shard_images(shards: Sequence[Path]) -> Iterator[tuple[str, FilePiece | EaseError]]:
    """The images of shards without their labels, one after the other. A damaged shard is an error, not the end.

    Args:
        shards: The tar files.

    Yields:
        SHARD/MEMBER, and the image or the error that says why there is none.
    """
    for shard in shards:
        try:
            for sample in read_shard(shard):
                if sample.fault or sample.image is None:
                    problem = sample.fault or "it has no image: add KEY.jpg or remove the sample"
                    yield sample.shown, EaseError(f"sample '{sample.shown}': {problem}")
                else:
                    yield sample.shown, sample.image
        except EaseError as error:
            yield shard.name, error


def read_shard(shard: Path) -> Iterator[Sample]:
    """The samples of a tar file, one after the other. Members of one sample follow each other.

    Raises:
        EaseError: The file is damaged, compressed, or holds a link or a pickle.
    """
    if not is_file(shard):
        raise EaseError(f"shard '{shown(shard)}' does not exist, or is not a file: check the path")
    current: Sample | None = None
    for member, file in _members(shard):
        folder, _, base = member.name.rpartition("/")
        stem, dot, rest = base.partition(".")
        key, ending = f"{folder}/{stem}", f".{rest.lower()}"
        if not dot or is_system_file(base):
            continue
        last = f".{ending.rpartition('.')[2]}"
        if last in _PROGRAMS:
            raise _bad(
                shard, member.name, "is a pickle, which can run any program: write the label as KEY.cls"
            )
        if current is None or current.key != key:
            if current is not None:
                yield current
            current = Sample(shard, key)
        if last in IMAGE_EXTENSIONS and current.image is None:
            current.name, current.image = member.name, FilePiece(shard, member.offset_data, member.size)
        elif last in UNSUPPORTED_EXTENSIONS:
            current.fault = str(unsupported_format(member.name, display_name(member.name)))
        elif ending in _LABELS:
            if member.size > MAX_LABEL:
                current.fault = f"the label has more than {MAX_LABEL:,} bytes: shorten it"
            else:
                current.labels[ending] = file.read_at(member.offset_data, member.size)
    if current is not None:
        yield current


def _members(shard: Path) -> Iterator[tuple[tarfile.TarInfo, _Bounded]]:
    try:
        with _Bounded(shard) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            count = 0
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
                count += 1
                if count > MAX_MEMBERS:
                    raise EaseError(
                        f"shard '{shown(shard)}' has more than {MAX_MEMBERS:,} members: divide it"
                    )
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise _bad(shard, member.name, "is a link or not a plain file: pack the file itself")
                if member.offset_data + member.size > file.size:
                    raise _bad(shard, member.name, "is cut off: copy the shard again")
                yield member, file
            file.seek(archive.offset)
            if any(file.read(tarfile.BLOCKSIZE)):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError("a header is damaged")
    except EaseError:
        raise
    except Exception as error:  # on damaged archives tarfile raises almost anything
        raise EaseError(
            f"shard '{shown(shard)}' is damaged, compressed or not a tar file: unpack it or write it again"
        ) from error


class _Bounded(io.BufferedReader):
    """A file of which little is read at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.size = path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        """Read as from any file, but not more than the header of a member may need."""
        if size is None or not 0 <= size <= MAX_HEADER:
            raise tarfile.ReadError("the header of a member is too long")
        return super().read(size)

    def read_at(self, start: int, size: int) -> bytes:
        """The bytes at a place; the position stays where it was."""
        before = self.tell()
        try:
            self.seek(start)
            return self.read(size)
        finally:
            self.seek(before)


def _label(sample: Sample, names: Sequence[str]) -> str:
    for ending in _LABELS:
        if ending in sample.labels:
            where = f"{sample.shard.name}/{display_name(sample.key)}{ending}"
            return label_text(_named(_value(sample.labels[ending], ending, where), names))
    raise EaseError("it has no label: add KEY.cls, KEY.txt or KEY.json")


def _value(content: bytes, ending: str, where: str) -> object:
    if ending != ".json":
        return content.decode("utf-8-sig", "replace").strip()
    value = parse_json(content, f"'{where}'", "repair it")
    if isinstance(value, dict):
        found = next((key for key in LABEL_COLUMNS if key in value), None)
        if found is None:
            raise EaseError(f"'{where}' has no label (one of {', '.join(LABEL_COLUMNS)}): add it")
        value = value[found]
    return value


def _named(value: object, names: Sequence[str]) -> object:
    """A class number as the name in its line of `CLASS_NAMES`, where there is such a file."""
    text = str(value)
    if names and text.isdecimal() and len(text) < 10:
        if int(text) >= len(names):
            raise EaseError(f"there is no class {text} in {CLASS_NAMES}, which has {len(names)}: repair it")
        return names[int(text)]
    return value


def _class_names(folder: Path) -> list[str]:
    path = folder / CLASS_NAMES
    return read_text(path, MB).splitlines() if is_file(path) else []


def _bad(shard: Path, name: str, problem: str) -> EaseError:
    return EaseError(f"shard '{shown(shard)}': member '{display_name(name)}' {problem}")
