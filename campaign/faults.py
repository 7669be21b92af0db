"""Every system call of every writing command fails once: `python -m campaign.faults`.

For each command, each kind of call and each harm, the n-th call is struck for every n until the command runs through
without being struck. After each strike the folder must open and hold what it held before or what the command makes,
and the next write must succeed and leave neither temporary files nor files that no generation names.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.injection import HARMS, KILLED, KINDS, Injection, in_child, injected

FORGOTTEN = "quagga"
"""The class that `forget` drops: a word that is in no file by chance."""
_SMALL = ["--input-size", "16", "--augment", "gentle", "--set", "layers=1", "--set", "patches=false"]


@dataclass(frozen=True)
class Operation:
    """A command that writes.

    Attributes:
        name: of the operation.
        words: of the command; `{root}` is the folder that is disturbed, `{photos}` one that is not.
        again: what is done after an interruption if the operation has to be repeated by another command.
        without: parts of the folder that are removed before.
    """

    name: str
    words: tuple[str, ...]
    again: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("first", ("learn", "{photos}/first", "--model", "{root}/model", *_SMALL), (), ("model",)),
        Operation("learn", ("learn", "{photos}/second", "--model", "{root}/model", "--thumbnails")),
        Operation("extend", ("learn", "{photos}/more", "--model", "{root}/model", "--extend")),
        Operation("forget", ("forget", FORGOTTEN, "--model", "{root}/model", "--yes")),
        Operation("rename", ("rename", "d1", "one", "--model", "{root}/model")),
        Operation("rollback", ("rollback", "1", "--model", "{root}/model")),
        Operation("compact", ("compact", "--model", "{root}/model", "--storage", "fp16")),
        Operation(
            "shrink", ("compact", "--model", "{root}/model", "--storage", "int8", "--forget-history", "-y")
        ),
        Operation(
            "run",
            (
                *("run", "--dataset", "digits", "--protocol", "B0 Inc5", "--method", "simplecil"),
                *("--limit-per-class", "4", "--input-size", "16", "--out", "{root}/run"),
            ),
            ("run", "--resume", "{root}/run"),
        ),
        Operation("pack", ("pack", "{root}/model", "--out", "{root}/model.ease")),
        Operation("unpack", ("unpack", "{root}/model.ease", "{root}/unpacked")),
    )
}


class BrokenPromiseError(AssertionError):
    """A strike left something that no command should leave."""


@dataclass
class Tally:
    """What was tried: strikes by command, kind of call and harm."""

    strikes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def by(self, position: int) -> Counter[str]:
        """Strikes summed over all but one of command (0), kind (1) and harm (2)."""
        found: Counter[str] = Counter()
        for key, count in self.strikes.items():
            found[key[position]] += count
        return found


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code and what it wrote to the error stream."""

    code: int
    error: str


def command(words: Sequence[str]) -> Outcome:
    """Run `ease` in this process."""
    from ease.cli import main

    before, error = sys.argv, io.StringIO()
    sys.argv = ["ease", *words]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
            main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as crash:
        return Outcome(1, f"{error.getvalue()}{type(crash).__name__}: {crash}")
    finally:
        sys.argv = before
    return Outcome(int(code), error.getvalue())


class World:
    """A model of two generations and an archive of it, and folders of photos to learn from."""

    def __init__(self, folder: Path) -> None:
        self.origin, self.photos, self.root = folder / "origin", folder / "photos", folder / "root"
        _write_photos(self.photos)
        self.origin.mkdir()
        model = str(self.origin / "model")
        for words in (
            ("learn", f"{self.photos}/first", "--model", model, "--thumbnails", *_SMALL),
            ("rename", "d0", "zero", "--model", model),
        ):
            self._must(words)
        self._must(("pack", model, "--out", f"{self.origin}/model.ease"))
        self._must(("rename", "zero", "d0", "--model", model))

    def _must(self, words: Sequence[str]) -> None:
        outcome = command(words)
        if outcome.code != 0:
            raise BrokenPromiseError(f"ease {' '.join(words)}: exit code {outcome.code}: {outcome.error}")

    def words(self, words: Sequence[str]) -> list[str]:
        """The words of a command with their places filled in."""
        return [word.format(root=self.root, photos=self.photos) for word in words]

    def fresh(self, operation: Operation) -> None:
        """The folder as it is before the operation."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.origin, self.root)
        for name in operation.without:
            shutil.rmtree(self.root / name)

    def state(self) -> dict[str, Any]:
        """What the folder holds, without dates."""
        archive = self.root / "model.ease"
        return {
            "archive": hashlib.sha256(archive.read_bytes()).hexdigest() if archive.exists() else None,
            **{name: model_state(self.root / name) for name in ("model", "unpacked", "run/model")},
        }


def _write_photos(folder: Path) -> None:
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    data = load_digits()
    names = {FORGOTTEN: 9, **{f"d{digit}": digit for digit in range(5)}}
    plan = {
        "first": (("d0", "d1", FORGOTTEN), slice(0, 8)),
        "second": (("d2", "d3"), slice(0, 8)),
        "more": (("d0", "d1"), slice(8, 12)),
    }
    for part, (classes, which) in plan.items():
        for name in classes:
            own = folder / part / name
            own.mkdir(parents=True)
            for number, image in enumerate(data.images[data.target == names[name]][which]):
                Image.fromarray((image * 15).astype(np.uint8)).save(own / f"{number}.png")


def model_state(path: Path) -> dict[str, Any] | None:
    """Generation, classes and checksums of a model whose files were all compared with its manifest."""
    from ease.storage.model_directory import ModelDirectory

    if not (path / "manifest.json").exists():
        return None
    ModelDirectory(path).verify()
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    kept = {
        key: manifest.get(key) for key in ("generation", "classes", "next_id", "calibration", "kept_images")
    }
    return {**kept, "files": {name: entry["sha256"] for name, entry in manifest["files"].items()}}


def model_generations(path: Path) -> list[dict[str, Any]]:
    """The states of all generations of a model that were not removed."""
    found = []
    for file in sorted((path / "manifests").glob("*.json")):
        shutil.copy(file, path / "manifest.json")
        found.append(model_state(path) or {})
    return found


class Trial:
    """One operation in one world: what it starts from, what it makes, and strikes against it."""

    def __init__(self, world: World, operation: Operation, tally: Tally) -> None:
        self.world, self.operation, self.tally = world, operation, tally
        world.fresh(operation)
        self.before = world.state()
        with injected(Injection(world.root)) as rehearsal:
            outcome = command(world.words(operation.words))
        if outcome.code != 0:
            raise BrokenPromiseError(f"{operation.name} fails without any strike: {outcome.error}")
        self.counts = {kind: rehearsal.counts[kind] for kind in KINDS}
        self.after = world.state()
        self.allowed = [self.before, self.after]
        if operation.name == "run":  # a run leaves a model after each stage
            between = model_generations(world.root / "run" / "model")
            self.allowed += [{**self.after, "run/model": state} for state in between]

    def strike(self, kind: str, number: int, harm: str) -> bool:
        """Strike one call and look at what is left. False if the command was through before."""
        world, operation = self.world, self.operation
        world.fresh(operation)
        words, struck = world.words(operation.words), False
        with _tidied(world.root.parent):
            if harm == "kill":
                code = in_child(lambda: self._doomed(words, kind, number))
                struck, outcome = code == KILLED, Outcome(code, "")
            else:
                with injected(Injection(world.root, kind, number, harm)) as injection:
                    outcome = command(words)
                struck = injection.struck > 0
        if not struck:
            return False
        what = f"{operation.name}, {harm} at {kind} {number}"
        self.tally.strikes[operation.name, kind, harm] += 1
        try:
            self._judge(outcome, harm)
            self._go_on()
        except Exception as error:
            raise BrokenPromiseError(f"{what}: {type(error).__name__}: {error}") from error
        return True

    def _doomed(self, words: list[str], kind: str, number: int) -> None:
        with injected(Injection(self.world.root, kind, number, "kill")):
            command(words)

    def _judge(self, outcome: Outcome, harm: str) -> None:
        found = self.world.state()
        if found not in self.allowed:
            raise BrokenPromiseError(f"a third state: {_difference(found, self.before, self.after)}")
        if harm == "kill":
            return
        if outcome.code == 0:
            self.tally.survived[self.operation.name] += 1
            if found != self.after:
                raise BrokenPromiseError("the command says that it succeeded, and has not")
        elif outcome.code != 2 or "Traceback" in outcome.error or _errors(outcome) != 1:
            raise BrokenPromiseError(f"exit code {outcome.code}, not one line: {outcome.error[-400:]}")
        if self.operation.name != "run" and (litter := temporaries(self.world.root)) and harm != "full":
            raise BrokenPromiseError(f"an error leaves {litter}")

    def _go_on(self) -> None:
        """The next write: it succeeds, and clears away what was left."""
        world, operation = self.world, self.operation
        state = world.state()
        if operation.name in ("run", "pack", "unpack", "first"):
            key = {"run": "run/model", "pack": "archive", "unpack": "unpacked", "first": "model"}[
                operation.name
            ]
            self._repeat(done=operation.name in ("unpack", "first") and state[key] == self.after[key])
            found = world.state()
            if found["run/model"] is not None:  # a number that was given to a whole generation stays taken
                found["run/model"]["generation"] = self.after["run/model"]["generation"]
            if found != self.after:
                raise BrokenPromiseError(f"repeating it: {_difference(found, self.before, self.after)}")
        else:
            name = state["model"]["classes"][0]["name"]
            world._must(("rename", name, "renamed", "--model", f"{world.root}/model"))
        if litter := temporaries(world.root):
            raise BrokenPromiseError(f"after the next write there is {litter}")
        for name in ("model", "unpacked", "run/model"):
            check_tidy(world.root / name)
        if operation.name == "forget" and FORGOTTEN not in json.dumps(state["model"]["classes"]):
            check_gone(world.root / "model", FORGOTTEN)

    def _repeat(self, done: bool) -> None:
        """Do the operation once more, the way its message says."""
        world, operation = self.world, self.operation
        if done:
            if operation.name == "first":
                world._must(("rollback", "1", "--model", f"{world.root}/model"))
            return
        outcome = Outcome(2, "")
        if operation.again:
            outcome = command(world.words(operation.again))
        if outcome.code != 0:
            outcome = command(world.words(operation.words))
        if outcome.code != 0 and "(ease rollback 1)" in outcome.error:
            outcome = command(["rollback", "1", "--model", f"{world.root}/model"])
        if outcome.code != 0:
            raise BrokenPromiseError(f"it cannot be repeated: {outcome.error}")


@contextlib.contextmanager
def _tidied(folder: Path) -> Iterator[None]:
    """No command may write beside the folder it was told to use."""
    before = sorted(folder.iterdir())
    yield
    if sorted(folder.iterdir()) != before:
        raise BrokenPromiseError(f"something new lies in {folder}")


def temporaries(folder: Path) -> list[str]:
    """What a writer leaves that did not end."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.tmp-*"))


def check_tidy(model: Path) -> None:
    """Each tensor file of a model is named by a generation, and each generation is whole."""
    from ease.storage.model_directory import ModelDirectory

    if not (model / "manifest.json").exists():
        return
    directory, named = ModelDirectory(model), set()
    for number in directory.generations():
        directory.verify(number)
        manifest = json.loads((model / "manifests" / f"{number:04d}.json").read_text(encoding="utf-8"))
        named |= {entry["path"] for entry in manifest["files"].values()}
    found = {str(path.relative_to(model)) for path in model.glob("*/*.safetensors")}
    if found != named:
        raise BrokenPromiseError(f"no generation names {sorted(found - named)}")


def check_gone(model: Path, name: str) -> None:
    """No file of a model holds a name."""
    for path in model.rglob("*"):
        if path.is_file() and name.encode() in path.read_bytes():
            raise BrokenPromiseError(f"{path.relative_to(model)} still names '{name}'")


def _errors(outcome: Outcome) -> int:
    return sum(line.startswith("error: ") for line in outcome.error.splitlines())


def _difference(found: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> str:
    parts = [key for key in found if found[key] not in (before[key], after[key])]
    return ", ".join(f"{part} is {str(found[part])[:300]}" for part in parts) or "parts of both"


@contextlib.contextmanager
def new_world() -> Iterator[World]:
    """A world in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ease-faults-") as folder:
        yield World(Path(folder))


def quick_disk() -> None:
    """Syncs count and may fail, but do not wait for the disk: only a power cut could tell the difference."""
    os.fsync = lambda handle: None  # type: ignore[assignment,misc]


def main() -> int:
    """Strike everything, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("operations", nargs="*", help=f"of {', '.join(OPERATIONS)}; all by default")
    parser.add_argument("--harms", default=",".join(HARMS))
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first broken promise")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    quick_disk()
    tally, started = Tally(), time.monotonic()
    with new_world() as world:
        for name in given.operations or OPERATIONS:
            trial = Trial(world, OPERATIONS[name], tally)
            for kind in KINDS:
                for harm in given.harms.split(","):
                    number = 0
                    while True:
                        number += 1
                        try:
                            if not trial.strike(kind, number, harm):
                                break
                        except BrokenPromiseError as error:
                            if not given.go_on:
                                raise
                            tally.broken.append(str(error))
                            print("BROKEN", error, flush=True)
            print(f"{name}: {tally.by(0)[name]} strikes at {trial.counts}", flush=True)
    print(
        f"{sum(tally.strikes.values())} strikes in {time.monotonic() - started:.0f} s, {len(tally.broken)} broken"
    )
    for position in (1, 2):
        print(", ".join(f"{key} {count}" for key, count in sorted(tally.by(position).items())))
    print(f"survived without an error: {sum(tally.survived.values())}")
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
