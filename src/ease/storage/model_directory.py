"""The model directory: all saved states (generations) of a model. Writing is atomic."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ease.errors import EaseError
from ease.filesystem import entries, explained, is_file, is_folder, is_inside, read_bytes, shown, what_is
from ease.storage import files as durable
from ease.storage.contents import (
    JSON_LIMIT,
    BrokenFileError,
    FileEntry,
    damaged,
    encode_json,
    encode_tensors,
    entry_of,
    read_checked,
    read_metadata,
    read_tensors,
)
from ease.storage.lock import WriterLock
from ease.storage.manifest import (
    FILE_NAME,
    Manifest,
    ModelState,
    StoredFile,
    decode_manifest,
    encode_manifest,
    manifest_copy,
)
from ease.storage.remembered import RememberedFile, RememberedGeneration, content_of, facts_of

KINDS = ("subspaces", "prototypes", "learner", "memory", "thumbnails")
OWNER = "ease.model"
"""Metadata key by which a tensor file says that it belongs to a model directory, and under which name."""

HISTORY_LIMIT = 64 * 2**20
"""Bytes that files which only earlier generations use may take."""
HISTORY_GENERATIONS = 100
"""Earlier generations that are kept at most. Every commit looks at all of them: a stream of a thousand tasks would
otherwise spend most of its time on its own history."""
HISTORY_MANIFESTS = 8 * 2**20
"""Bytes that the manifests of earlier generations may take. A manifest grows with the number of tasks, and the first
commit of a process reads all of them."""

_MANIFEST = re.compile(r"[0-9]{4,12}\.json")
_TEMPORARY = re.compile(r"\..+\.(json|safetensors)\.tmp-[0-9]+-[0-9a-f]+")


@dataclass(frozen=True)
class Generation:
    """One saved state of a model: its manifest and the requested tensors by logical name."""

    manifest: Manifest
    files: dict[str, dict[str, Tensor]]

    @property
    def number(self) -> int:
        """The number of the generation; the first commit of a directory has number 1."""
        return self.manifest.generation


class ModelDirectory:
    """A folder of safetensors and JSON files with the generations of one model.

    A tensor file never changes once written. A generation is a manifest that names its files with their
    checksums; `manifest.json` is the current one and is replaced last, in one step. Reading takes no lock and
    writes nothing.

    A file that most generations replace, such as a covariance, would make the directory grow without limit. So the
    oldest generations are removed when files that only earlier generations use exceed `history_limit` bytes, when their
    manifests exceed `HISTORY_MANIFESTS` bytes, or when there are more than `HISTORY_GENERATIONS`; the newest earlier
    generation is always kept.

    A commit does not read again, nor encode again, what this object saved before and what has not changed since: its
    time grows with what is new and with the length of the manifest, not with the bytes of the model.
    """

    def __init__(self, path: Path | str, history_limit: int = HISTORY_LIMIT) -> None:
        self.path, self.history_limit = Path(path), history_limit
        self.manifest_path = self.path / "manifest.json"
        self._lock = WriterLock(self.path)
        self._manifests: dict[Path, tuple[tuple[int, int, int], RememberedGeneration]] = {}
        self._saved: dict[str, RememberedFile] = {}

    # --- reading ----------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a current generation."""
        return is_file(self.manifest_path)

    def generations(self) -> list[int]:
        """The numbers of the generations on disk in ascending order, including those undone by a rollback."""
        folder = self.path / "manifests"
        if not is_folder(folder):
            return []
        numbers = (int(path.stem) for path in entries(folder) if _MANIFEST.fullmatch(path.name))
        return sorted(number for number in numbers if is_file(self._manifest_file(number)))

    def manifest(self, generation: int | None = None) -> Manifest:
        """Read and check the manifest of a generation (by default the current one)."""
        path = self.manifest_path if generation is None else self._manifest_file(generation)
        # Not by the list of all generations: whoever reads each of them would list the folder as often.
        if not (is_file(path) and (generation is None or generation > 0)):
            known = ", ".join(map(str, self.generations()))
            if generation is None:
                hint = (
                    f"roll back to generation {known}" if known else "check the path, or learn a first task"
                )
                raise BrokenFileError(f"there is no model in {shown(self.path)} (no manifest.json): {hint}")
            raise EaseError(
                f"the model in {self.path} has no generation {generation}: known: {known or 'none'}"
            )
        manifest = decode_manifest(read_bytes(path, JSON_LIMIT), path)
        if generation is not None and manifest.generation != generation:
            raise damaged(path, f"it holds generation {manifest.generation}")
        return manifest

    def version(self, generation: int) -> tuple[int, int, int] | None:
        """What changes when the manifest of a generation is written again; None if there is no such generation."""
        with contextlib.suppress(OSError):
            facts = self._manifest_file(generation).stat()
            return facts.st_ino, facts.st_mtime_ns, facts.st_size
        return None

    def load(self, generation: int | None = None, names: Iterable[str] | None = None) -> Generation:
        """Read a generation, or only the named files of it. A file that does not match its checksum is an error."""
        manifest = self.manifest(generation)
        stored = manifest.files
        wanted = list(stored) if names is None else list(names)
        for name in wanted:
            if name not in stored:
                raise EaseError(
                    f"the model in {self.path} has no file '{name}' in generation {manifest.generation}: "
                    f"known: {', '.join(stored) or 'none'}"
                )
        return Generation(manifest, {name: self._read_tensors(name, stored[name]) for name in wanted})

    def _read_tensors(self, name: str, entry: StoredFile) -> dict[str, Tensor]:
        """The tensors of a file. They need not be written again as long as neither they nor the file change."""
        path = self._inside(entry.path)
        with explained("read", path):
            facts = facts_of(path)
        tensors = read_tensors(path, entry)
        saved = RememberedFile.of(tensors, entry, facts)
        if saved is not None:
            self._saved[name] = saved
        return tensors

    def next_class_id(self) -> int:
        """The lowest class id that no generation on disk has given or skipped; damaged manifests do not count."""
        return max([0, *(seen.next_id for seen in self._all_manifests()[0].values())])

    def read(self, entry: StoredFile) -> bytes:
        """The checked content of one file."""
        return read_checked(self._inside(entry.path), entry)

    def verify(self, generation: int | None = None) -> None:
        """Check every file of a generation against its manifest."""
        for entry in self.manifest(generation).files.values():
            self.read(entry)

    def check_free(self) -> None:
        """Raise an error if no new model can be created here. Files left by a killed first write are ignored."""
        if self.exists:
            raise EaseError(f"{self.path} already holds a model: open it, or choose another folder")
        if numbers := self.generations():
            raise EaseError(
                f"{self.path} holds generations of a model but no manifest.json: go back to one of them "
                f"(ease rollback {numbers[-1]}), or choose another folder"
            )
        what = what_is(self.path)
        if what != "missing" and (what != "folder" or not all(map(self._is_left_behind, entries(self.path)))):
            raise EaseError(f"{self.path} is not empty: choose a new folder for the model")
        durable.check_folder_place(self.path)

    # --- writing ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writer lock inside the `with`. A second writer, in any process, gets an error immediately."""
        with self._lock.hold():
            yield

    def commit(
        self,
        state: ModelState,
        files: Mapping[str, Mapping[str, Tensor]],
        keep: Iterable[str] = (),
    ) -> int:
        """Write a new generation and make it the current one.

        Args:
            state: what the manifest contains in addition to the list of files.
            files: all tensors of the generation by logical name, such as "subspaces/0003". A file with that
                name and content in any generation on disk is used again, not written again.
            keep: logical names of the current generation that are carried over without being read.

        Returns:
            The number of the new generation.
        """
        encode_json(state.as_json())  # what JSON cannot hold fails before anything is written
        for name in files:
            if not FILE_NAME.fullmatch(name):
                raise ValueError(f"'{name}' is no model file: name it folder/name, such as subspaces/0003")
        with self.writing():
            number, current = self._current()
            fresh: dict[str, RememberedFile] = {}
            stored = {name: self._kept(name, current) for name in keep}
            if number:
                self._mend_copy(number)
            number = max([number, *self.generations()]) + 1  # a number given up by a rollback stays taken
            self._finish_clearing()
            self._sweep(files)
            recorded = [seen.files for seen in self._all_manifests()[0].values()]
            written: list[Path] = []
            raw = b""
            try:
                for name in sorted(files):
                    saved = self._unchanged(name, files[name])
                    if saved is None:
                        data = encode_tensors(files[name], {OWNER: name})
                        known = self._known(name, entry_of(data), recorded)
                        entry = known or self._add(name, data, number, written)
                        with explained("read", self.path / entry.path):
                            facts = facts_of(self.path / entry.path)
                        saved = RememberedFile.of(files[name], entry, facts, content_of(files[name]))
                    else:
                        entry = saved.entry
                    stored[name] = entry
                    if saved is not None:
                        fresh[name] = saved
                raw = encode_manifest(number, state, stored)
                durable.make_folder(self.path / "manifests")
                written.append(self._manifest_file(number))
                durable.write_atomic(written[-1], raw)
                self._point_at(raw)
            except BaseException:
                self._abandon(written, raw)
                raise
            self._saved = fresh
            if state.clears_history:
                self._clear(number)
                return number
            with contextlib.suppress(EaseError):  # the generation is safe; the next one tries again
                self._limit_history(number)
        return number

    def rollback(self, generation: int) -> None:
        """Make another generation the current one. No generation is removed, so this can be undone in the same way."""
        self.manifest(generation)  # a generation that does not exist is reported before the lock is asked for
        with self.writing():
            with contextlib.suppress(EaseError):  # a lost manifest is what people go back for
                self._finish_clearing()
            self.verify(generation)
            self._sweep(())
            self._point_at(read_bytes(self._manifest_file(generation), JSON_LIMIT))

    def clear_history(self) -> None:
        """Remove all generations but the current one, and the files that only they used."""
        with self.writing():
            current = self.manifest().generation
            self._mend_copy(current)
            self._clear(current)

    def _clear(self, current: int) -> None:
        for number in self.generations():
            if number != current:
                durable.remove(self._manifest_file(number))
        folders = self._sweep(()) | {self.path / "manifests"}
        for folder in filter(Path.is_dir, folders):
            with explained("clear the history of", self.path):
                durable.sync_folder(folder)

    def _finish_clearing(self) -> None:
        """Remove what the current generation says must go, if its writer was killed before that was done.

        If the writer was killed before its generation became the current one, that goes: the next writer would clear
        the history once somebody had gone back to it.
        """
        if not self.exists:
            return
        current = self._seen_now()
        first = min(self.generations(), default=current.generation)
        if current.clears_history and first < current.generation:
            self._clear(current.generation)
            return
        for path, seen in self._all_manifests()[0].items():
            if seen.clears_history and first < seen.generation != current.generation:
                durable.remove(path)

    def _limit_history(self, current: int) -> None:
        """Remove the oldest generations if there are too many, or if files that only they use exceed the limit."""
        manifests, complete = self._all_manifests()
        if not complete:  # a manifest that cannot be read may need any file
            return
        manifests.pop(self.manifest_path)
        counted = set(manifests.pop(self._manifest_file(current)).sizes)
        taken = listed = 0
        for position, seen in enumerate(manifests.values()):  # the newest first
            own = seen.sizes.keys() - counted
            counted |= own
            taken += sum(seen.sizes[path] for path in own)
            listed += seen.size
            too_large = taken > self.history_limit or listed > HISTORY_MANIFESTS
            if (too_large and position > 0) or position >= HISTORY_GENERATIONS:
                for old in reversed(list(manifests)[position:]):
                    durable.remove(old)
                self._sweep(())
                return

    # --- manifests --------------------------------------------------------------------------------

    def _manifest_file(self, generation: int) -> Path:
        return self.path / manifest_copy(generation)

    def _point_at(self, raw: bytes) -> None:
        """Replace manifest.json. If this fails, the old manifest is still the current one."""
        limit = JSON_LIMIT
        before = read_bytes(self.manifest_path, limit) if self.exists else None
        try:
            durable.write_atomic(self.manifest_path, raw)
        except BaseException:
            # The folder's sync comes after the replacement, so a failure may leave the new manifest in place.
            if before is None:
                durable.remove(self.manifest_path)
            elif read_bytes(self.manifest_path, limit) != before:
                durable.write_atomic(self.manifest_path, before)
            raise

    def _mend_copy(self, current: int) -> None:
        """Make sure that the numbered copy of the current manifest, which was just checked, exists and is correct."""
        raw = read_bytes(self.manifest_path, JSON_LIMIT)
        copy = self._manifest_file(current)
        with contextlib.suppress(EaseError):
            if read_bytes(copy, JSON_LIMIT) == raw:
                return
        durable.make_folder(copy.parent)
        durable.write_atomic(copy, raw)

    def _abandon(self, written: list[Path], raw: bytes) -> None:
        """Remove the files of a commit that failed, unless its manifest became the current one."""
        with contextlib.suppress(EaseError, OSError):
            durable.check_fence(self.path)  # who goes on in our place may have written files of these names
            if self.exists and read_bytes(self.manifest_path, JSON_LIMIT) == raw:
                return
            for path in reversed(written):  # the manifest first: it must never name a file that is gone
                path.unlink(missing_ok=True)
            durable.remove_empty({path.parent for path in written})

    def _current(self) -> tuple[int, dict[str, StoredFile]]:
        if not self.exists:
            return 0, {}
        seen = self._seen_now()
        return seen.generation, seen.files

    def _seen_now(self) -> RememberedGeneration:
        """The current generation. The file is read each time, and decoded only if its content is new."""
        raw = read_bytes(self.manifest_path, JSON_LIMIT)
        return self._seen_as(raw, self.manifest_path)

    def _seen_as(self, raw: bytes, path: Path) -> RememberedGeneration:
        """The generation that a manifest file describes."""
        digest = hashlib.sha256(raw).digest()
        others = [seen for _, seen in self._manifests.values()]
        same = next((seen for seen in others if seen.digest == digest), None)
        return same or RememberedGeneration.of(decode_manifest(raw, path), raw, others)

    # --- files ------------------------------------------------------------------------------------

    def _inside(self, relative: str) -> Path:
        """The path of a file of this directory; a link that leads out of it is refused."""
        path = self.path / relative
        if not is_inside(path, self.path):
            raise EaseError(f"{path} leads out of the model directory: remove that link, or restore a backup")
        return path

    def _kept(self, name: str, current: Mapping[str, StoredFile]) -> StoredFile:
        if name not in current:
            raise EaseError(f"the model in {self.path} has no file '{name}' to keep: pass its tensors")
        entry = current[name]
        path = self._inside(entry.path)
        with explained("keep", path):
            size = path.stat().st_size
        if size != entry.size:
            raise damaged(path, f"it has {size} bytes in place of {entry.size}")
        return entry

    def _unchanged(self, name: str, tensors: Mapping[str, Tensor]) -> RememberedFile | None:
        """The file that holds these tensors, if it is as this object left it: neither they nor it have changed."""
        saved = self._saved.get(name)
        if saved is None:
            return None
        with contextlib.suppress(OSError):
            if facts_of(self.path / saved.entry.path) == saved.facts:
                if saved.holds(tensors):
                    return saved
                if saved.content is not None and content_of(tensors) == saved.content:
                    return RememberedFile.of(tensors, saved.entry, saved.facts, saved.content)
        return None

    def _known(
        self, name: str, entry: FileEntry, recorded: Iterable[Mapping[str, StoredFile]]
    ) -> StoredFile | None:
        """A file on disk with this name and content."""
        for stored in recorded:
            known = stored.get(name)
            if known and (known.sha256, known.size) == (entry.sha256, entry.size):
                # A file that was damaged since must not get into a new generation.
                with contextlib.suppress(EaseError):
                    read_checked(self._inside(known.path), known)
                    return known
        return None

    def _add(self, name: str, data: bytes, number: int, written: list[Path]) -> StoredFile:
        """Write a file at a path that no generation uses, and list it in `written`."""
        relative = f"{name}.safetensors"
        while (self.path / relative).exists() or (self.path / relative).is_symlink():
            relative = f"{relative.removesuffix('.safetensors')}-g{number:04d}.safetensors"
        path = self._inside(relative)
        durable.make_folder(path.parent)
        written.append(path)
        durable.write_atomic(path, data)
        entry = entry_of(data)
        return StoredFile(entry.sha256, entry.size, relative)

    def _all_manifests(self) -> tuple[dict[Path, RememberedGeneration], bool]:
        """What is needed of all manifests that can be read, by file, the newest first, and whether these are all.

        A file is decoded again only if it has changed.
        """
        paths = [self._manifest_file(number) for number in reversed(self.generations())]
        paths += [self.manifest_path] if self.exists else []
        seen: dict[Path, tuple[tuple[int, int, int], RememberedGeneration]] = {}
        for path in paths:
            with explained("read", path):
                facts = path.stat()
            version = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            cached = self._manifests.get(path)
            if cached is None or cached[0] != version:
                try:
                    cached = (version, self._seen_as(read_bytes(path, JSON_LIMIT), path))
                except EaseError:  # an old one that is damaged must not keep the model from growing
                    continue
            seen[path] = self._manifests[path] = cached
        self._manifests = seen
        return {path: found for path, (_, found) in seen.items()}, len(seen) == len(paths)

    def _is_left_behind(self, path: Path) -> bool:
        """Whether a path in a directory without any generation was certainly left by a killed writer."""
        if path in (self._lock.path, self._lock.flag) or _is_temporary(path):
            return True
        if path.name not in (*KINDS, "manifests") or path.is_symlink() or not is_folder(path):
            return False
        return all(_is_temporary(inner) or _is_ours(inner, path.name) for inner in entries(path))

    def _sweep(self, coming: Iterable[str]) -> set[Path]:
        """Remove what crashed writers left behind, and return the folders where something was.

        Only files that are known to belong to the model are removed: users may keep other files in the same folder.
        """
        left = durable.sweep(self.path, self.manifest_path.name)
        left += durable.sweep(self.path / "manifests")
        manifests, complete = self._all_manifests()
        needed = set[str]().union(*(seen.sizes for seen in manifests.values()))
        kinds = {name.split("/")[0] for name in coming}.union(
            KINDS, *(seen.kinds for seen in manifests.values())
        )
        for kind in sorted(kinds):
            folder = self.path / kind
            if folder.is_symlink() or not folder.is_dir():
                continue
            left += durable.sweep(folder, "*.safetensors")
            if not complete:  # a manifest that cannot be read may need any file
                continue
            for path in sorted(folder.glob("*.safetensors")):
                if f"{kind}/{path.name}" not in needed and _is_ours(path, kind):
                    durable.remove(path)
                    left.append(path)
        return {path.parent for path in left}


def model_directory(path: Path) -> ModelDirectory:
    """The model directory at a path, or inside the folder of a run at that path."""
    for candidate in (path, path / "model"):
        directory = ModelDirectory(candidate)
        if directory.exists:
            return directory
    raise EaseError(f"{shown(path)} holds no model: it has no manifest.json")


def _is_temporary(path: Path) -> bool:
    return _TEMPORARY.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def _is_ours(path: Path, kind: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        owner = read_metadata(path).get(OWNER, "")
    except EaseError:
        return False
    return owner.startswith(f"{kind}/") and path.name.startswith(owner.removeprefix(f"{kind}/"))
