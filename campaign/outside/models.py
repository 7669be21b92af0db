# ruff: noqa: E501
"""Model directories: damaged files, and manifests and tensor files that were forged with right checksums."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign.outside.case import Case
from campaign.outside.fixtures import MODELS, Fixtures, picture, sealed

NESTED: list = []
for _ in range(300):
    NESTED = [NESTED]
VALUES = [
    0, 1, 2, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -1e308, 5e-324, float("nan"), float("inf"), 0.5, "", "x", "\x1b[31m", "\ud800", "../../x", "a" * 100000,
    [], [[]], {}, {"a": 1}, None, True, False, NESTED, [None], ["x"] * 2000, "0", " ", "__proto__", "\u202e",
]  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "info": ["info", "m"], "info-json": ["info", "m", "--json"], "predict": ["predict", "p.png", "--model", "m", "--json"], "learn": ["learn", "d", "--model", "m"],
    "extend": ["learn", "e", "--model", "m", "--extend"], "rename": ["rename", "red", "rot", "--model", "m"], "forget": ["forget", "red", "--model", "m", "--json", "--yes"], "rollback": ["rollback", "1", "--model", "m"],
    "generations": ["rollback", "--model", "m"], "compact": ["compact", "--model", "m", "--storage", "fp16"], "pack": ["pack", "m", "--out", "x.ease"], "eval": ["eval", "e", "--model", "m", "--json"],
    "budget": ["predict", "p.png", "--model", "m", "--budget", "1"], "export": ["export", "m", "--onnx", "x.onnx"], "serve": ["serve", "--model", "m", "--host", "300.1.1.1"],
}  # fmt: skip
WEIGHTS = {
    key: {"predict": 8, "info": 3, "learn": 3, "export": 0.3, "serve": 0.5}.get(key, 2) for key in COMMANDS
}


def leaves(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Paths of all parts of a document, with the first and last of long lists only."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for at in sorted({0, len(value) - 1}):
            yield from leaves(value[at], (*path, at))


def changed(document: dict, path: tuple, value: object, how: str = "set") -> dict:
    """A copy of a document with one part replaced, removed, repeated or moved."""
    document = copy.deepcopy(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    if how == "remove":
        del place[path[-1]]
    elif how == "repeat" and isinstance(place, list):
        place.extend([copy.deepcopy(place[path[-1]])] * 3)
    elif how == "add" and isinstance(place, dict):
        place["unknown " + str(path[-1])] = value
    else:
        place[path[-1]] = value
    return document


def write(folder: Path, manifest: dict, where: str = "both") -> None:
    """Write a forged manifest with a right checksum as the current generation."""
    content = sealed(manifest)
    if where in ("both", "current"):
        (folder / "manifest.json").write_bytes(content)
    newest = sorted((folder / "manifests").iterdir())[-1]
    if where in ("both", "numbered"):
        newest.write_bytes(content)
    if where == "oldest":
        sorted((folder / "manifests").iterdir())[0].write_bytes(content)


def folders_of(model: Path) -> list[Path]:
    """Folders of tensor files."""
    return sorted(path for path in model.iterdir() if path.is_dir() and path.name != "manifests")


def tensors(content: bytes) -> tuple[dict, bytes]:
    """Head and data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(head: dict | bytes, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file with any head."""
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", (len(raw) if length is None else length) & (2**64 - 1)) + raw + data


def forgeries(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Tensor files that are wrong although their checksum will be right."""
    head, data = tensors(content)
    names = [name for name in head if name != "__metadata__"]
    name = rng.choice(names)
    for dtype in ("F64", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "C64", "F4", "X", 5, None):
        yield f"dtype {dtype}", joined(changed(head, (name, "dtype"), dtype), data)
    shape = head[name]["shape"]
    for other in ([], [0], [0, 2**62], [1, *shape], shape[::-1], [-1, -1], [2**63], [2**64], [10**30], "x", [1.5], [None], [*[side + 1 for side in shape[:1]], *shape[1:]], [2**32, 2**32], [True] * len(shape)):  # fmt: skip
        yield f"shape {other}", joined(changed(head, (name, "shape"), other), data)
    for offsets in (
        [0, 0],
        [0, 2**63],
        [-4, 4],
        [8, 4],
        [4, 8],
        [2**64 - 8, 2**64],
        ["a", 1],
        [0],
        [0, len(data) + 8],
        None,
    ):
        yield f"offsets {offsets}", joined(changed(head, (name, "data_offsets"), offsets), data)
    for length in (0, 1, 7, 2**20, 2**40, 2**63, 2**64 - 1, len(content)):
        yield f"head of {length}", joined(head, data, length)
    yield "no metadata", joined({key: value for key, value in head.items() if key != "__metadata__"}, data)
    yield "other metadata", joined({**head, "__metadata__": {"ease.model": "prototypes/9999"}}, data)
    yield "metadata of numbers", joined({**head, "__metadata__": {"ease.model": 5}}, data)
    yield "no tensors", joined({"__metadata__": head.get("__metadata__", {})}, b"")
    yield (
        "another name",
        joined({("x" + key if key == name else key): value for key, value in head.items()}, data),
    )
    yield (
        "an extra tensor",
        joined(
            {**head, "extra": {"dtype": "U8", "shape": [4], "data_offsets": [len(data), len(data) + 4]}},
            data + b"abcd",
        ),
    )
    yield "a twin", joined({**head, "twin": head[name]}, data)
    yield (
        "duplicate key",
        joined(json.dumps(head).encode()[:-1] + b"," + json.dumps({name: head[name]}).encode()[1:], data),
    )
    yield "deep head", joined(b'{"a":' * 20000 + b"1" + b"}" * 20000, data)
    yield "list head", joined(b"[]", data)
    yield "no utf-8", joined(b'{"\xff": 1}', data)
    begin, end = head[name]["data_offsets"]
    for label, pattern in (("nan", b"\0\0\xc0\x7f"), ("inf", b"\0\0\x80\x7f"), ("-inf", b"\0\0\x80\xff"), ("zero", b"\0\0\0\0"), ("huge", b"\xff\xff\x7f\x7f"), ("tiny", b"\1\0\0\0"), ("negative", b"\0\0\x80\xbf"), ("ones", b"\xff" * 4)):  # fmt: skip
        filled = (pattern * ((end - begin) // 4 + 1))[: end - begin]
        yield f"all {label}", joined(head, data[:begin] + filled + data[end:])
        yield (
            f"one {label}",
            joined(
                head, data[:begin] + pattern[: end - begin] + data[begin + 4 :] if end - begin >= 4 else data
            ),
        )
    yield "trailing", content + b"\0" * 8
    yield "empty", b""
    yield "pickle", b"\x80\x04cos\nsystem\n(S'id'\ntR."


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family."""
    rng = random.Random(f"{seed}-models")
    found: list[Case] = []
    answers = json.loads((fixtures.root / "answers.json").read_text())

    def add(label: str, model: str, harm: Callable[[Path], None], which: str | None = None, **more) -> None:
        which = which or rng.choices(list(COMMANDS), list(WEIGHTS.values()))[0]
        argv = COMMANDS[which]

        def files(folder: Path) -> None:
            fixtures.model(model, folder / "m")
            if "p.png" in argv:
                picture("red", 99).save(folder / "p.png")
            if "d" in argv:
                fixtures.model("more", folder / "d")
                os.rename(folder / "d" / "yellow", folder / "d" / "violet")
            if "e" in argv:
                fixtures.model("photos", folder / "e")
            harm(folder / "m")

        found.append(Case("models", f"{model}: {label}: {which}", argv, files, **more))

    def true_answer(model: str) -> Callable[[Path, int, str], str | None]:
        def check(folder: Path, code: int, out: str) -> str | None:
            if code != 0:
                return None
            ranked = [entry["name"] for entry in json.loads(out)["predictions"][0]["classes"]]
            if ranked == answers[model]:
                return None
            return f"a damaged model answers {ranked}, a whole one {answers[model]}"

        return check

    for model in MODELS:
        add("untouched", model, lambda folder: None, "predict", expect="accepted", check=true_answer(model))
        _damages(add, model, fixtures, rng, true_answer(model))
        manifest = json.loads((fixtures.root / model / "manifest.json").read_bytes())
        paths = list(leaves(manifest))
        for _ in range(190):
            path, value = rng.choice(paths), rng.choice(VALUES)
            how = rng.choices(("set", "remove", "repeat", "add"), (12, 2, 1, 1))[0]
            forged = changed(manifest, path, value, how)
            where = rng.choices(("both", "current", "numbered", "oldest"), (8, 1, 1, 1))[0]
            label = f"{how} {'/'.join(map(str, path))} = {repr(value)[:24]} in {where}"
            add(label, model, lambda folder, forged=forged, where=where: write(folder, forged, where))
        for path in [
            path for path in paths if path[0] in ("learner", "settings", "calibration") and len(path) > 1
        ]:
            for value in rng.sample(VALUES, 5 if path[0] == "learner" else 1):
                forged = changed(manifest, path, value)
                label = f"every {'/'.join(map(str, path))} = {repr(value)[:24]}"
                add(
                    label,
                    model,
                    lambda folder, forged=forged: write(folder, forged),
                    rng.choice(("predict", "learn")),
                )
        for logical, facts in manifest["files"].items():
            content = (fixtures.root / model / facts["path"]).read_bytes()
            if len(content) > 8 << 20:
                continue
            kept = list(forgeries(content, rng))
            for label, forged in rng.sample(kept, min(len(kept), 14)):

                def swap(folder: Path, forged=forged, logical=logical, manifest=manifest) -> None:
                    copy_ = copy.deepcopy(manifest)
                    entry = copy_["files"][logical]
                    (folder / entry["path"]).write_bytes(forged)
                    entry.update(sha256=hashlib.sha256(forged).hexdigest(), size=len(forged))
                    write(folder, copy_)

                add(f"forged {logical}: {label}", model, swap)
    return found


def _damages(add: Callable, model: str, fixtures: Fixtures, rng: random.Random, check: Callable) -> None:
    """Harm without new checksums: refused, or the right answer."""
    root = fixtures.root / model
    files = sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock"
    )

    def both(label: str, harm: Callable[[Path], None], **more) -> None:
        add(label, model, harm, "predict", check=check, **more)
        add(
            label,
            model,
            harm,
            rng.choice([key for key in COMMANDS if key not in ("predict", "export")]),
            **more,
        )

    for name in files:
        size = (root / name).stat().st_size
        other = rng.choice(
            [f for f in files if f != name and not (f.endswith("json") and name.endswith("json"))]
        )
        for cut in {0, 1, size // 2, size - 1, rng.randrange(size)}:
            both(f"{name} cut to {cut}", lambda folder, name=name, cut=cut: os.truncate(folder / name, cut))

        def flip(folder: Path, name: str = name, spot: int = rng.randrange(size)) -> None:
            content = bytearray((folder / name).read_bytes())
            content[spot] ^= 0x10
            (folder / name).write_bytes(content)

        def replace(kind: str, name: str = name, other: str = other) -> Callable[[Path], None]:
            def harm(folder: Path) -> None:
                path = folder / name
                content = path.read_bytes()
                if kind == "swap":
                    path.write_bytes((folder / other).read_bytes())
                    (folder / other).write_bytes(content)
                    return
                path.unlink()
                if kind == "folder":
                    path.mkdir()
                elif kind == "fifo":
                    os.mkfifo(path)
                elif kind == "zero":
                    os.symlink("/dev/zero", path)
                elif kind == "loop":
                    os.symlink(path.name, path)
                elif kind == "outside":
                    (folder.parent / "elsewhere").write_bytes(content)
                    os.symlink(folder.parent / "elsewhere", path)
                elif kind == "inside":
                    path.with_name("real").write_bytes(content)
                    os.symlink("real", path)
                elif kind == "sparse":
                    with path.open("wb") as file:
                        file.truncate(1 << 40)
                elif kind == "bom":
                    path.write_bytes(b"\xef\xbb\xbf" + content)
                elif kind == "space":
                    path.write_bytes(content + b" \n")
                elif kind == "future":
                    path.write_bytes(content)
                    os.utime(path, (2**33, 2**33))

            return harm

        both(f"{name} flipped", flip)
        for kind in (
            "swap",
            "gone",
            "folder",
            "fifo",
            "zero",
            "loop",
            "outside",
            "inside",
            "sparse",
            "bom",
            "space",
            "future",
        ):
            if rng.random() < 0.75:
                both(f"{name} {kind}", replace(kind))

    def rights(folder: Path, name: str, mode: int) -> None:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 65534, 65534)
        (folder / name).chmod(mode)

    for name in [*files, ".", "manifests", ".lock"]:
        both(f"{name} without rights", lambda folder, name=name: rights(folder, name, 0), nobody=True)
    for name in (".", "manifests", folders_of(root)[0].name):
        both(f"{name} read-only", lambda folder, name=name: rights(folder, name, 0o500), nobody=True)

    def stray(kind: str) -> Callable[[Path], None]:
        def harm(folder: Path) -> None:
            if kind == "numbers":
                (folder / "manifests" / "9999999999.json").write_text("{}")
                (folder / "manifests" / "-1.json").write_text("{}")
                (folder / "manifests" / "x.json").write_text("{}")
            elif kind == "fifo":
                os.mkfifo(folder / "manifests" / "0009.json")
            elif kind == "folder":
                (folder / "manifests" / "0009.json").mkdir()
            elif kind == "tensor":
                (folders_of(folder)[0] / "stray.safetensors").write_bytes(b"\xff" * 50)
            elif kind == "fifo tensor":
                os.mkfifo(folders_of(folder)[0] / "stray.safetensors")
            elif kind == "temporary":
                (folder / ".manifest.json.tmp-1-abcd").mkdir()
            elif kind == "lock":
                (folder / ".lock").unlink(missing_ok=True)
                os.symlink("/etc/passwd", folder / ".lock")
            elif kind == "lock fifo":
                (folder / ".lock").unlink(missing_ok=True)
                os.mkfifo(folder / ".lock")
            elif kind == "lock folder":
                (folder / ".lock").unlink(missing_ok=True)
                (folder / ".lock").mkdir()
            elif kind == "no manifests":
                for path in (folder / "manifests").iterdir():
                    path.unlink()
                (folder / "manifests").rmdir()
            elif kind == "manifests link":
                (folder / "manifests").rename(folder.parent / "moved")
                os.symlink("../moved", folder / "manifests")
            elif kind == "prototypes link":
                place = folders_of(folder)[0]
                place.rename(folder.parent / "moved")
                os.symlink(folder.parent / "moved", place)
            elif kind == "backbone":
                (folder / "backbone.safetensors").write_bytes(b"\xff" * 100)
            elif kind == "backbone fifo":
                os.mkfifo(folder / "backbone.safetensors")
            elif kind == "many":
                for at in range(3000):
                    (folder / "manifests" / f"{at + 10:04}.json").write_bytes(b"{")

        return harm

    for kind in ("numbers", "fifo", "folder", "tensor", "fifo tensor", "temporary", "lock", "lock fifo", "lock folder", "no manifests", "manifests link", "prototypes link", "backbone", "backbone fifo", "many"):  # fmt: skip
        for _ in range(2):
            both(f"stray {kind}", stray(kind))
