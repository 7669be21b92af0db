# ruff: noqa: E501
"""Archives: packed models that were cut, rearranged, forged, or are bombs; and zips of class folders for a server."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from campaign.outside.case import Case
from campaign.outside.fixtures import Fixtures, picture, sealed
from campaign.outside.models import VALUES, changed, leaves

Members = list[tuple[str, bytes]]


def members(path: Path) -> Members:
    """Names and contents of a zip, in order."""
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def zipped(
    content: Members,
    compression: int = zipfile.ZIP_STORED,
    attributes: dict[str, int] | None = None,
    system: int = 3,
) -> bytes:
    """A zip that is dated and ordered as a packed model is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in content:
            info = zipfile.ZipInfo("x", (1980, 1, 1, 0, 0, 0))
            info.filename = name
            info.compress_type = compression
            info.create_system = system
            info.external_attr = (attributes or {}).get(name, 0o100644) << 16
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(info, data)
    return buffer.getvalue()


def directory(content: bytes) -> int:
    """Where the central directory begins."""
    return struct.unpack("<I", content[-6:-2])[0]


def patched(content: bytes, at: int, form: str, value: int) -> bytes:
    """The same bytes with a number overwritten."""
    size = struct.calcsize(form)
    return content[:at] + struct.pack(form, value & ((1 << (8 * size)) - 1)) + content[at + size :]


Later = Callable[[], bytes]


def broken_zips(content: bytes, rng: random.Random) -> Iterator[tuple[str, Later]]:
    """Zips with lies in their heads: works for every zip without a comment. Each is made when it is asked for."""
    start = directory(content)
    end = len(content) - 22
    yield "tar", partial(_tar, [("a/x.png", b"x")])
    yield "gz tar", partial(_tar, [("a/x.png", b"x")], "gz")
    yield "nothing", lambda: b""
    yield "end only", lambda: content[-22:]
    yield "comment", lambda: content[:-2] + b"\x05\0hello"
    yield "prefix", lambda: b"#!/bin/sh\n" + content
    yield "twice", lambda: content + content
    yield "tail", lambda: content + b"\0" * 30
    for _ in range(25):
        cut = rng.choice(
            (
                rng.randrange(len(content)),
                rng.randrange(start, len(content)),
                len(content) - rng.randrange(1, 60),
            )
        )
        yield f"cut at {cut}", lambda cut=cut: content[:cut]
    for _ in range(45):
        spot = rng.choice(
            (
                rng.randrange(start, len(content)),
                rng.randrange(start, len(content)),
                rng.randrange(min(120, start)),
            )
        )
        bits = rng.randrange(1, 256)
        yield (
            f"flip {spot} by {bits}",
            lambda spot=spot, bits=bits: content[:spot] + bytes([content[spot] ^ bits]) + content[spot + 1 :],
        )
    for name, offset, form in (
        ("disk", 4, "<H"),
        ("here", 8, "<H"),
        ("total", 10, "<H"),
        ("size", 12, "<I"),
        ("offset", 16, "<I"),
        ("comment", 20, "<H"),
    ):
        for value in (0, 1, 65535, 2**32 - 1, 2**31):
            yield f"end {name} {value}", partial(patched, content, end + offset, form, value)
    for name, offset, form in (("made", 4, "<H"), ("needed", 6, "<H"), ("flags", 8, "<H"), ("method", 10, "<H"), ("time", 12, "<I"), ("crc", 16, "<I"), ("packed", 20, "<I"), ("size", 24, "<I"), ("name", 28, "<H"), ("extra", 30, "<H"), ("attributes", 38, "<I"), ("local", 42, "<I")):  # fmt: skip
        for value in (0, 1, 8, 99, 2**32 - 1, 2**31, 0xA1FF0000):
            yield f"central {name} {value}", partial(patched, content, start + offset, form, value)
    for name, offset, form in (
        ("flags", 6, "<H"),
        ("method", 8, "<H"),
        ("crc", 14, "<I"),
        ("packed", 18, "<I"),
        ("size", 22, "<I"),
        ("name", 26, "<H"),
        ("extra", 28, "<H"),
    ):
        for value in (0, 1, 8, 65535, 2**32 - 1):
            yield f"local {name} {value}", partial(patched, content, offset, form, value)
    for size in (0, 2**63, 2**64 - 1, 2**40):
        big = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, size, size, size, size)
        locator = struct.pack("<IIQI", 0x07064B50, 0, end, 1)
        marked = content[end : end + 8] + b"\xff" * 12 + b"\0\0"
        yield f"zip64 {size}", lambda tail=big + locator + marked: content[:end] + tail


def _tar(content: Members, mode: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{mode}") as archive:
        for name, data in content:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def class_zips(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Archives that are sent to a server's /learn."""
    buffer = io.BytesIO()
    picture("new", 0).save(buffer, "PNG")
    good = buffer.getvalue()
    plain = zipped([(f"new{i}/{j}.png", good + bytes([i, j])) for i in range(2) for j in range(2)])
    for label, make in broken_zips(plain, rng):
        yield label, make()
    for name in ("/etc/x.png", "../x.png", "../../a/x.png", "a/../../x.png", "a/./x.png", "C:\\a\\x.png", "\\\\host\\x.png", "a\\b.png", "a//x.png", "x.png", "a/", "", ".", "a/b/c/d/e/x.png", "a\nb/x.png", "\x1b[2J/x.png", "\u202ea/x.png", "é/x.png", "e\u0301/x.png", "a" * 300 + "/x.png", "a/" + "x" * 300 + ".png", "a/x.svg", "a/x.PNG", "a/x.png/", ".a/x.png", "__MACOSX/a/._x.png", "CON/x.png", "red/x.png", "Red/x.png", "a/x.zip", "a\0b/x.png", "\ud800/x.png".encode("utf-8", "replace").decode()):  # fmt: skip
        yield f"name {name[:20]!r}", zipped([(name, good)])
        yield f"name {name[:20]!r} and a good one", zipped([(name, good), ("new/x.png", good)])
    yield "duplicate", zipped([("a/x.png", good), ("a/x.png", good + b"1")])
    yield "case", zipped([("a/x.png", good), ("A/x.png", good + b"1")])
    for mode in (0o120777, 0o040755, 0o020666, 0o010644, 0o140777, 0o104755, 0):
        yield (
            f"mode {mode:o}",
            zipped([("a/x.png", b"/etc/passwd" if mode == 0o120777 else good)], attributes={"a/x.png": mode}),
        )
    yield "bomb", zipped([("a/x.png", b"\0" * 150_000_000)], zipfile.ZIP_DEFLATED)
    yield "bombs", zipped([(f"a/{i}.png", b"\0" * 20_000_000) for i in range(12)], zipfile.ZIP_DEFLATED)
    inner = zipped([("a/x.png", b"\0" * 10_000_000)], zipfile.ZIP_DEFLATED)
    for _ in range(4):
        inner = zipped([("a/x.zip", inner), ("a/x.png", good)], zipfile.ZIP_DEFLATED)
    yield "nested", inner
    yield "nested as png", zipped([("a/x.png", inner)])
    yield "many", zipped([(f"c{i}/x.png", b"") for i in range(12000)])
    yield "empty", zipped([])
    yield "empty members", zipped([("a/x.png", b""), ("b/x.png", b"")])
    yield "bzip2", zipped([("a/x.png", good)], zipfile.ZIP_BZIP2)
    yield "lzma", zipped([("a/x.png", good)], zipfile.ZIP_LZMA)
    single = zipped([("a/x.png", good)])
    start = directory(single)
    yield "encrypted", patched(patched(single, 6, "<H", 1), start + 8, "<H", 1)
    yield "strong", patched(patched(single, 6, "<H", 65), start + 8, "<H", 65)
    overlapping = zipped([("a/x.png", good), ("b/x.png", good)])
    second = overlapping.find(b"PK\1\2", directory(overlapping) + 4)
    yield "overlap", patched(overlapping, second + 42, "<I", 0)


def packed_models(fixtures: Fixtures, rng: random.Random) -> Iterator[tuple[str, Later]]:
    """Packed models that were taken apart and put together wrongly."""
    content = members(fixtures.packed)
    raw = fixtures.packed.read_bytes()
    yield from broken_zips(raw, rng)
    facts = dict(content)
    manifest = json.loads(facts["manifest.json"])
    pack = json.loads(facts["pack.json"])

    def again(**replaced: bytes) -> bytes:
        both = {**facts, **{key.replace("__", "."): value for key, value in replaced.items()}}
        if "pack__json" in replaced:
            return zipped(sorted(both.items()))
        listed = json.loads(both["pack.json"])
        for name in ("manifest.json", "backbone.safetensors"):
            if isinstance(listed, dict) and isinstance(listed.get("files"), dict) and isinstance(listed["files"].get(name), dict) and name in both:  # fmt: skip
                listed["files"][name] = {
                    "sha256": hashlib.sha256(both[name]).hexdigest(),
                    "size": len(both[name]),
                }
        both["pack.json"] = json.dumps(listed).encode()
        return zipped(sorted(both.items()))

    yield "unchanged again", again
    for path in leaves(pack):
        for value in rng.sample(VALUES, 6):
            yield (
                f"pack {'/'.join(map(str, path))} {repr(value)[:20]}",
                partial(again, pack__json=json.dumps(changed(pack, path, value)).encode()),
            )
    for text in (b"", b"{}", b"[]", b"null", b"[" * 100000, b"{" + b" " * 1_100_000 + b"}", b"\xff"):
        yield f"pack.json {text[:10]!r}", partial(again, pack__json=text)
        yield f"manifest.json {text[:10]!r}", partial(again, manifest__json=text)
    paths = list(leaves(manifest))
    for _ in range(60):
        path, value = rng.choice(paths), rng.choice(VALUES)
        yield (
            f"manifest {'/'.join(map(str, path))} {repr(value)[:20]}",
            partial(again, manifest__json=sealed(changed(manifest, path, value))),
        )
    for path in ("../evil.safetensors", "/tmp/evil.safetensors", "prototypes/../../evil.safetensors", "manifests/0001.safetensors", "prototypes/x.json", "prototypes\\0000.safetensors", "prototypes/.x.safetensors", "prototypes/a\0.safetensors", ".lock/x.safetensors", "PROTOTYPES/0000.safetensors"):  # fmt: skip
        logical = "prototypes/0000"
        forged = changed(manifest, ("files", logical, "path"), path)
        names = {**facts, "manifest.json": sealed(forged), path: facts[manifest["files"][logical]["path"]]}
        names.pop(manifest["files"][logical]["path"], None)
        listed = changed(
            pack,
            ("files", "manifest.json"),
            {
                "sha256": hashlib.sha256(names["manifest.json"]).hexdigest(),
                "size": len(names["manifest.json"]),
            },
        )
        names["pack.json"] = json.dumps(listed).encode()
        yield f"path {path!r}", partial(zipped, sorted(names.items()))
    for extra in (
        "evil.txt",
        "../evil",
        "/evil",
        "manifests/0001.json",
        ".lock",
        "prototypes/",
        "a\\b",
        "backbone.safetensors.bak",
        "\x1b[31m",
        "PACK.JSON",
    ):
        yield f"extra {extra!r}", partial(zipped, sorted([*content, (extra, b"x")]))
    for name, data in content:
        yield f"without {name}", partial(zipped, [entry for entry in content if entry[0] != name])
        yield f"twice {name}", partial(zipped, [*content, (name, data)])
        yield (
            f"link {name}",
            partial(
                zipped,
                [(n, b"/etc/passwd" if n == name else d) for n, d in content],
                attributes={name: 0o120777},
            ),
        )
        yield f"empty {name}", partial(zipped, [(n, b"" if n == name else d) for n, d in content])
        yield (
            f"changed {name}",
            partial(zipped, [(n, d[:-1] + b"\0" if n == name else d) for n, d in content]),
        )
    yield "deflated", partial(zipped, content, zipfile.ZIP_DEFLATED)
    yield "reversed", partial(zipped, content[::-1])
    yield "windows", partial(zipped, content, system=0)
    yield (
        "bomb",
        partial(
            zipped, [*content, ("prototypes/bomb.safetensors", b"\0" * 100_000_000)], zipfile.ZIP_DEFLATED
        ),
    )
    yield "many", partial(zipped, [(f"prototypes/{i}.safetensors", b"") for i in range(25000)])
    yield "noise", lambda: zlib.compress(raw[:100000])


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family that are given to `ease unpack`; those of a server are in server.py."""
    rng = random.Random(f"{seed}-archives")
    found: list[Case] = []

    def inside(folder: Path, code: int, out: str) -> str | None:
        names = {path.name for path in (folder / "in").iterdir()} - {"x.ease", "new"}
        return f"wrote beside its folder: {names}" if names else None

    for label, content in packed_models(fixtures, rng):

        def files(folder: Path, content: Later = content) -> None:
            (folder / "x.ease").write_bytes(content())

        argv = ["unpack", "x.ease", "new", *rng.choice(([], ["--json"]))]
        found.append(Case("archives", label, argv, files, check=inside))
    folders: list[tuple[str, Callable[[Path], object]]] = [
        ("full folder", lambda f: ((f / "new").mkdir(), (f / "new" / "x").write_text("x"))), ("file", lambda f: (f / "new").write_text("x")),
        ("dangling", lambda f: (f / "new").symlink_to("nowhere")), ("link to folder", lambda f: ((f / "other").mkdir(), (f / "new").symlink_to("other"))),
        ("empty", lambda f: (f / "new").mkdir()), ("hidden", lambda f: ((f / "new").mkdir(), (f / "new" / ".x").write_text("x"))),
    ]  # fmt: skip
    for label, make in folders:

        def target(folder: Path, make: Callable = make) -> None:
            (folder / "x.ease").write_bytes(fixtures.packed.read_bytes())
            make(folder)

        found.append(Case("archives", f"target {label}", ["unpack", "x.ease", "new"], target))
    return found
