"""Push a packed model to a place from which others pull it, by its name and its SHA-256."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ease.app.archive import check_new, pack, unpack
from ease.app.card import model_card
from ease.app.places import LARGEST, SMALL, Place, place
from ease.errors import EaseError
from ease.filesystem import resolved
from ease.storage import files as durable
from ease.storage.contents import sha256_of
from ease.storage.model_directory import model_directory

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TransferredModel:
    """The result of `push` or `pull`.

    Attributes:
        place: Where the archive is, without secrets.
        name: File name of the archive there.
        sha256: SHA-256 of the archive.
        bytes: Size of the archive.
        generation: Generation of the model.
        checked: What the archive was compared with: `given`, `beside` (its .sha256 file), both, or nothing.
    """

    place: str
    name: str
    sha256: str
    bytes: int
    generation: int
    checked: tuple[str, ...] = ()


def push(
    model: Path | str,
    target: str,
    *,
    weights: Path | None = None,
    images: bool = False,
    license: str | None = None,
) -> TransferredModel:
    """Pack a model and put it where others can get it, with its SHA-256 in a file beside it.

    Args:
        model: Model directory, or the folder of a run.
        target: `hf://user/name` (with the model card as README.md), `https://host/folder/name.ease` for a server that
            takes PUT, or a path.
        weights: Weights file of the backbone, if it is not found otherwise.
        images: Include the training images that an exemplar-based method keeps.
        license: License for the model card.

    Returns:
        Where it is, and its SHA-256.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> from ease.app.sharing import pull, push
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = Classifier.create(f"{folder}/shades", input_size=16)
        ...     _ = model.learn({"dark": images[:2], "bright": images[2:]})
        ...     pushed = push(model.path, f"{folder}/shades.ease")
        ...     pulled = pull(f"{folder}/shades.ease", f"{folder}/again", sha256=pushed.sha256)
        >>> pulled.checked
        ('given', 'beside')
    """
    directory = model_directory(Path(model))
    name = directory.path.resolve().name
    where = place(target, f"{name}.ease")
    card = model_card(directory.path, title=name, license=license)
    with _private(_temporary_place() / "ease-push") as folder:
        archive = folder / "model.ease"
        done = pack(directory.path, archive, weights=weights, images=images)
        digest = sha256_of(archive)
        beside = {f"{where.name}.sha256": f"{digest}  {where.name}\n".encode(), "README.md": card.encode()}
        where.put(archive, beside)
    return TransferredModel(where.shown, where.name, digest, done.bytes, done.generation)


def pull(source: str, model: Path | str, *, sha256: str | None = None) -> TransferredModel:
    """Fetch an archive and unpack it into a new model directory. Nothing of it is trusted.

    Args:
        source: What `push` was given as its target.
        model: New or empty folder.
        sha256: What the archive's SHA-256 must be. Without it, that of the .sha256 file beside the archive counts, if
            there is one; the files in the archive are checked against its manifest in any case.

    Returns:
        Where it came from, and its SHA-256.
    """
    if sha256 is not None and not _SHA256.fullmatch(sha256.strip().lower()):
        raise EaseError(
            f"'{sha256[:80]}' is no SHA-256: give its 64 hexadecimal digits, as 'ease push' printed them"
        )
    model = Path(model)
    check_new(model)  # before gigabytes are fetched
    where = place(source, f"{resolved(model).name}.ease")
    with _private(model) as folder:
        archive = folder / "model.ease"
        with open(archive, "xb") as sink:
            if not where.get("", sink, LARGEST):
                raise EaseError(f"there is no model at {where.shown}: check the place")
        found = sha256_of(archive)
        expected = {
            "given": None if sha256 is None else sha256.strip().lower(),
            "beside": _beside(where, folder),
        }
        for which, value in expected.items():
            if value is not None and value != found:
                said = "that was given" if which == "given" else f"in '{where.name}.sha256' beside it"
                raise EaseError(
                    f"{where.shown} has the SHA-256 {found}, not the one {said} ({value}): it is damaged or another "
                    "model, get it from its owner"
                )
        done = unpack(archive, model)
    checked = tuple(which for which, value in expected.items() if value is not None)
    return TransferredModel(where.shown, where.name, found, done.bytes, done.generation, checked)


def _temporary_place() -> Path:
    """The system's folder for temporary files."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise EaseError(
            "no temporary folder can be written to (TMPDIR, /tmp and others): name one with TMPDIR, "
            "free some space, and check the limit of file sizes (ulimit -f)"
        ) from error


@contextmanager
def _private(path: Path) -> Iterator[Path]:
    """A temporary folder beside this path that only this user can look into, as others may use that place, too."""
    with durable.temporary_folder(path) as folder:
        folder.chmod(0o700)
        yield folder


def _beside(where: Place, folder: Path) -> str | None:
    """The SHA-256 in the file beside the archive, if there is one."""
    note = folder / "sha256"
    with open(note, "xb") as sink:
        if not where.get(".sha256", sink, SMALL):
            return None
    digest = note.read_text(encoding="utf-8", errors="replace").strip()[:64].lower()
    if not _SHA256.fullmatch(digest):
        raise EaseError(
            f"'{where.name}.sha256' beside {where.shown} has no SHA-256: get the model from its owner"
        )
    return digest
