"""Pack a saved model and its backbone into one archive file, and unpack it on a machine that has no weights."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from ease import __version__
from ease.backbone.ports import tensors_hash
from ease.backbone.zoo import backbone_tensors
from ease.errors import EaseError
from ease.filesystem import entries, explained, read_bytes, shown, what_is
from ease.methods import BACKBONE_FILE, making_sense, with_weights
from ease.storage import files as durable
from ease.storage.contents import (
    JSON_LIMIT,
    TENSORS_LIMIT,
    FileEntry,
    decode_json,
    encode_json,
    encode_tensors,
    entry_of,
)
from ease.storage.manifest import BackboneEntry, Manifest, decode_manifest, manifest_copy
from ease.storage.model_directory import ModelDirectory, model_directory

FORMAT = 1
MANIFEST, INDEX = "manifest.json", "pack.json"
IMAGES = "memory/"
"""Files of a model under this prefix contain training images."""

MEMBERS = 20_000
INDEX_LIMIT = 2**20
ARCHIVE_LIMIT = 2 * TENSORS_LIMIT
PIECE = 2**20


@dataclass(frozen=True)
class PackedModel:
    """The result of `pack` or `unpack`.

    Attributes:
        path: The archive, or the model directory made from it.
        bytes: Size of the archive.
        files: Number of files of the model, including its backbone's.
        generation: Generation of the model.
    """

    path: Path
    bytes: int
    files: int
    generation: int


# --- packing --------------------------------------------------------------------------------------


def pack(path: Path, out: Path, *, weights: Path | None = None, images: bool = False) -> PackedModel:
    """Write the current generation of a model and its backbone's weights into one archive.

    The archive is an uncompressed zip file; equal models give equal bytes.

    Args:
        path: Model directory, or the folder of a run.
        out: The archive; it is replaced if it exists.
        weights: Weights file of the backbone, if it is neither embedded nor on the hub.
        images: Include the training images that an exemplar-based method keeps; without it such a model is refused.

    Returns:
        What was written.
    """
    directory = model_directory(path)
    durable.check_place(out)
    raw = read_bytes(directory.manifest_path, JSON_LIMIT)
    manifest = decode_manifest(raw, directory.manifest_path)
    stored = manifest.files
    if not images and any(name.startswith(IMAGES) for name in stored):
        raise EaseError(
            f"the model in {directory.path} keeps training images, which anyone who has the archive can see: "
            "allow that (--with-images), or use an exemplar-free method"
        )
    with making_sense(directory):
        backbone = _backbone(directory, manifest.backbone, weights)
    inside = {MANIFEST: raw, BACKBONE_FILE: backbone}
    index = {
        "format": FORMAT,
        "ease": __version__,
        "files": {name: asdict(entry_of(data)) for name, data in inside.items()},
    }
    inside[INDEX] = encode_json(index)
    by_path = {entry.path: entry for entry in stored.values()}
    total = sum(entry.size for entry in by_path.values()) + len(backbone)
    if total > ARCHIVE_LIMIT or len(by_path) > MEMBERS - len(inside):
        raise EaseError(
            f"the model in {directory.path} has {total / 2**30:.1f} GB in {len(by_path)} files: an archive holds at "
            f"most {ARCHIVE_LIMIT // 2**30} GB and {MEMBERS} files, copy the model directory as it is"
        )
    with durable.made_folder(out.parent), durable.replacing(out) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted([*inside, *by_path]):
                _add(archive, name, inside[name] if name in inside else directory.read(by_path[name]))
        size = file.tell()
    return PackedModel(out, size, len(by_path) + 1, manifest.generation)


def _backbone(directory: ModelDirectory, spec: BackboneEntry, weights: Path | None) -> bytes:
    """The backbone's weights as safetensors, without its classifier."""

    def load(file: Path | None) -> dict[str, Tensor]:
        return backbone_tensors(spec.name, file)

    def content(loaded: Mapping[str, Tensor]) -> str:
        return tensors_hash(dict(loaded))

    if weights is None:
        return encode_tensors(with_weights(directory, spec, load, content))
    tensors = load(weights)
    if tensors_hash(tensors) != spec.weights_hash:
        raise EaseError(
            f"the model in {directory.path} was learned on another '{spec.name}' than the one found here: "
            "give the file it was learned with (--weights)"
        )
    return encode_tensors(tensors)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Add a member without date and owner, so that equal models give equal archives."""
    member = zipfile.ZipInfo(name)  # dated 1980-01-01
    member.create_system = 3
    member.external_attr = (stat.S_IFREG | 0o644) << 16
    archive.writestr(member, data, zipfile.ZIP_STORED)


# --- unpacking ------------------------------------------------------------------------------------


def unpack(archive: Path, folder: Path) -> PackedModel:
    """Turn an archive into a model directory, with the backbone's weights beside the manifest.

    The archive is not trusted: everything in it is checked, and the folder is written completely or not at all.

    Args:
        archive: File that `pack` wrote.
        folder: New or empty folder.

    Returns:
        What was written.
    """
    check_new(folder)
    with _opened(archive) as opened:
        members = _members(opened, archive)
        index = _index(opened, members, archive)
        raw = _read(opened, members[MANIFEST], index[MANIFEST], archive)
        manifest = decode_manifest(raw, Path(f"{archive}/{MANIFEST}"))
        sizes = manifest.learner.get("task_sizes")
        if not isinstance(sizes, list) or sum(s for s in sizes if isinstance(s, int)) != len(
            manifest.classes
        ):
            raise _refused(archive, "its manifest contradicts itself about the classes")
        stored = manifest.files
        wanted: dict[str, FileEntry] = {entry.path: entry for entry in stored.values()}
        if any(wanted[entry.path] != entry for entry in stored.values()):
            raise _refused(archive, "its manifest contradicts itself about a file")
        wanted[BACKBONE_FILE] = index[BACKBONE_FILE]
        _check_members(members, {**wanted, MANIFEST: index[MANIFEST]}, archive)
        with _becoming(folder) as temporary:
            for name, entry in wanted.items():
                _extract(opened, members[name], entry, temporary / name, archive)
            _check_backbone(temporary, manifest, archive)
            copy = temporary / manifest_copy(manifest.generation)
            copy.parent.mkdir()
            for path in (copy, temporary / MANIFEST):
                durable.write_atomic(path, raw)
            for inner in {path.parent for path in temporary.rglob("*")}:
                durable.sync_folder(inner)
    return PackedModel(folder, archive.stat().st_size, len(wanted), manifest.generation)


def check_new(folder: Path) -> None:
    """Refuse a place at which no model can be unpacked. Nothing is made."""
    what = what_is(folder)
    if folder.is_symlink() or (
        what != "missing" and (what != "folder" or bool(entries(folder)) or not folder.name)
    ):
        raise EaseError(f"'{shown(folder)}' is there already: choose a new folder for the model")
    durable.check_folder_place(folder)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with explained("read", path):
        what = what_is(path)
        if what != "file":
            reason = "there is no such file" if what == "missing" else "it is not a file"
            raise EaseError(f"cannot read {shown(path)}: {reason}, check the path")
        if not path.stat().st_size:  # some files of the system say so and never end
            raise _refused(path, "it is empty")
        if path.stat().st_size > ARCHIVE_LIMIT:
            raise _refused(path, f"it is larger than {ARCHIVE_LIMIT // 2**30} GB")
        try:
            _check_directory(path)
            with zipfile.ZipFile(path) as archive:
                yield archive
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
            raise _refused(path, "it is not an archive of a model, or is damaged") from error


def _check_directory(path: Path) -> None:
    """Check the size of the table of contents before it is read: zipfile believes what it claims."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 22 - 20 - 56))
        tail = file.read()
    end = tail[-22:]
    if end[:4] != b"PK\5\6" or end[20:] != b"\0\0":  # a comment could hide another end record
        raise zipfile.BadZipFile("no end of directory where `pack` puts it")
    count, length = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    large = tail[-22 - 20 - 56 : -22 - 20]
    if tail[-22 - 20 : -22][:4] == b"PK\6\7":  # archives over 4 GB have a larger record
        if large[:4] != b"PK\6\6":
            raise zipfile.BadZipFile("no end of directory where `pack` puts it")
        count, length = int.from_bytes(large[32:40], "little"), int.from_bytes(large[40:48], "little")
    if count > MEMBERS or length > 400 * MEMBERS:
        raise _refused(path, f"it has more than {MEMBERS} members")


def _members(opened: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Members by name. They must be plain files with unique names inside the folder."""
    found: dict[str, zipfile.ZipInfo] = {}
    seen: set[str] = set()
    if len(opened.infolist()) > MEMBERS:
        raise _refused(path, f"it has more than {MEMBERS} members")
    for member in opened.infolist():
        name, shown = member.orig_filename, _shown(member.orig_filename)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
            raise _refused(path, f"its member '{shown}' leads out of the folder")
        if not name or "\0" in name or name.endswith("/") or kind not in (0, stat.S_IFREG):
            raise _refused(path, f"its member '{shown}' is not a plain file")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise _refused(path, f"its member '{shown}' is compressed or encrypted")
        if name.casefold() in seen:
            raise _refused(path, f"its member '{shown}' occurs twice")
        seen.add(name.casefold())
        found[name] = member
    # Nothing is compressed, so the members cannot be larger than the archive.
    claimed = sum(member.file_size for member in found.values())
    if claimed > path.stat().st_size or any(m.file_size != m.compress_size for m in found.values()):
        raise _refused(path, "its members claim to be larger than the archive")
    for name in (INDEX, MANIFEST, BACKBONE_FILE):
        if name not in found:
            raise _refused(path, f"it lacks '{name}'")
    return found


def _index(
    opened: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], path: Path
) -> dict[str, FileEntry]:
    """Size and checksum of the two files that the manifest does not list."""
    if members[INDEX].file_size > INDEX_LIMIT or members[MANIFEST].file_size > JSON_LIMIT:
        raise _refused(path, "its table of files is too large")
    index = decode_json(opened.read(members[INDEX]), f"{path}/{INDEX}")
    try:
        if index["format"] > FORMAT:
            raise EaseError(
                f"{path} is of a later format, this version reads up to {FORMAT}: upgrade ease-cil"
            )
        entries = {name: index["files"][name] for name in (MANIFEST, BACKBONE_FILE)}
        return {name: FileEntry(entry["sha256"], entry["size"]) for name, entry in entries.items()}
    except (KeyError, TypeError) as error:
        raise _refused(path, f"its {INDEX} is not valid") from error


def _check_members(
    members: Mapping[str, zipfile.ZipInfo], wanted: Mapping[str, FileEntry], path: Path
) -> None:
    """Check, before any is read, that there are exactly the listed files with the listed sizes."""
    for name in [*members, *wanted]:
        if name not in members:
            raise _refused(path, f"it lacks '{name}'")
        if name not in wanted and name != INDEX:
            raise _refused(path, f"its member '{_shown(name)}' is not a file of the model")
    for name, entry in wanted.items():
        if members[name].file_size != entry.size:
            found = members[name].file_size
            raise _refused(path, f"'{name}' has {found} bytes instead of {_shown(entry.size)}")


def _read(opened: zipfile.ZipFile, member: zipfile.ZipInfo, entry: FileEntry, path: Path) -> bytes:
    data = opened.read(member)
    if entry_of(data) != entry:
        raise _refused(path, f"the checksum of '{member.filename}' differs")
    return data


def _extract(
    opened: zipfile.ZipFile, member: zipfile.ZipInfo, entry: FileEntry, target: Path, path: Path
) -> None:
    digest = hashlib.sha256()
    target.parent.mkdir(exist_ok=True)
    with opened.open(member) as source, open(target, "xb") as sink:
        while piece := source.read(PIECE):
            digest.update(piece)
            sink.write(piece)
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != entry.sha256:
        raise _refused(path, f"the checksum of '{member.filename}' differs")


def _check_backbone(folder: Path, manifest: Manifest, path: Path) -> None:
    """Refuse a backbone that is not the model's."""
    with making_sense(ModelDirectory(path)):
        spec = manifest.backbone
        try:
            found = tensors_hash(backbone_tensors(spec.name, folder / BACKBONE_FILE))
        except EaseError as error:
            raise _refused(path, f"'{BACKBONE_FILE}' is not valid safetensors") from error
        if found != spec.weights_hash:
            raise _refused(
                path, f"its backbone is not the '{_shown(spec.name)}' that the model was learned on"
            )


@contextlib.contextmanager
def _becoming(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes this one when the `with` block succeeds; otherwise it is removed."""
    with durable.temporary_folder(folder) as temporary:
        yield temporary
        if folder.exists():  # it is empty; some systems cannot rename a folder over it
            folder.rmdir()
        temporary.rename(folder)
        durable.sync_folder(folder.parent)


def _shown(name: object) -> str:
    """A name from the archive, safe to print."""
    return repr(str(name)[:80])[1:-1]


def _refused(path: Path, why: str) -> EaseError:
    return EaseError(f"{path} cannot be unpacked: {why}; get the archive again from its source")
