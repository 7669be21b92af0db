# ruff: noqa: E501
"""What lies beside a model: forged inboxes, links, other models' inboxes, and every way to say where a model is."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from campaign.outside.case import Case
from campaign.outside.fixtures import Fixtures, photos, picture

ID = "20261118-100000-000000-abcd"
ODD = [
    None, True, 0, -1, 1e400, 2**70, 5e300, float("nan"), "", " ", "x", "x" * 70_000, "\x1b[31mred", "\u202ered", "\u3164", "a/../b", "..", "/etc/passwd", "\ud800", "\x00", [], [[]], {}, {"a": 1}, "red", "2", 2, 99, "2026-13-45T00:00:00", "9999-12-31T23:59:59+14:00", "2026-01-01T00:00:00",
]  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "inbox": ["inbox", "--model", "m"], "json": ["inbox", "--model", "m", "--json"], "learn": ["learn", "--inbox", "--model", "m"], "predict": ["predict", "p.png", "--model", "m", "--json"], "undo": ["inbox", "--model", "m", "--undo"], "name": ["inbox", "--model", "m", "--name", "abcd=red"],
    "discard": ["inbox", "--model", "m", "--discard", "abcd"], "clear": ["inbox", "--model", "m", "--clear"], "correct": ["correct", "p.png", "red", "--model", "m"], "new": ["correct", "p.png", "violet", "--model", "m"], "rename": ["rename", "red", "scarlet", "--model", "m"],
    "forget": ["forget", "red", "--model", "m", "--yes"], "rollback": ["rollback", "1", "--model", "m"], "info": ["info", "m", "--json"], "pack": ["pack", "m", "--out", "x.ease"],
}  # fmt: skip


def facts(photo: bytes, **changes: object) -> dict[str, object]:
    """Facts of a photo as docs/format.md describes them."""
    return {
        "id": ID, "date": "2026-11-18T10:00:00+00:00", "changed": "2026-11-18T10:00:00+00:00", "state": "corrected", "digest": hashlib.blake2b(photo, digest_size=16).hexdigest(), "size": len(photo), "file": "photo.png",
        "class_id": 1, "name": "green", "suggestions": [{"id": 0, "confidence": 0.9}], "unknown": 0.2, "generation": 2, "judged": True, **changes,
    }  # fmt: skip


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family."""
    rng = random.Random(f"{seed}-inboxes")
    found: list[Case] = []
    image = (fixtures.root / "p.png").read_bytes()

    def add(label: str, make: Callable[[Path], None], commands: dict[str, list[str]], model: str = "small", **more) -> None:  # fmt: skip
        for key, argv in commands.items():

            def files(folder: Path) -> None:
                fixtures.model(model, folder / "m")
                picture("red", 99).save(folder / "p.png")
                make(folder)

            found.append(Case("inboxes", f"{label}: {key}", argv, files, **more))

    def some(count: int) -> dict[str, list[str]]:
        return {key: COMMANDS[key] for key in rng.sample(list(COMMANDS), count)}

    def kept(content: bytes, photo: bytes = image) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            (folder / "m.inbox").mkdir()
            (folder / "m.inbox" / f"{ID}.photo").write_bytes(photo)
            (folder / "m.inbox" / f"{ID}.json").write_bytes(content)

        return make

    for field in facts(image):
        for value in rng.sample(ODD, 9):
            content = json.dumps(facts(image, **{field: value})).encode() + b"\n"
            add(f"fact {field}={str(value)[:20]!r}", kept(content), some(2))
        without = {key: value for key, value in facts(image).items() if key != field}
        add(f"fact without {field}", kept(json.dumps(without).encode() + b"\n"), some(2))
    good = json.dumps(facts(image)).encode() + b"\n"
    contents = {
        "good": good, "empty": b"", "torn": good[:-30], "two lines": good + good, "list": b"[" + good + b"]", "deep": b"[" * 9000 + b"]" * 9000, "nul": good + b"\0", "utf-16": good.decode().encode("utf-16"), "long": good[:-2] + b" " * (5 << 20) + b"}",
        "more facts": json.dumps({**facts(image), "other": 1}).encode(), "bom": b"\xef\xbb\xbf" + good, "twice": good[:-2] + b', "name": "red"}',
    }  # fmt: skip
    for key, content in contents.items():
        add(f"facts {key}", kept(content), COMMANDS if key == "good" else some(5))
    for key, photo in (("text", b"hello"), ("empty", b""), ("zeros", bytes(3 << 20)), ("half", image[:200]), ("another", picture("blue", 5).tobytes())):  # fmt: skip
        add(f"photo {key}", kept(good, photo), some(5))

    def place(kind: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            inbox, outside = folder / "m.inbox", folder / "outside"
            outside.mkdir()
            (outside / "counts.json").write_text("{}")
            if kind == "link":
                inbox.symlink_to(outside)
            elif kind == "dangling":
                inbox.symlink_to("nothing")
            elif kind == "file":
                inbox.write_bytes(b"")
            elif kind == "fifo":
                os.mkfifo(inbox)
            else:
                kept(good)(folder)
                target = inbox / {"photo": f"{ID}.photo", "facts": f"{ID}.json", "counts": "counts.json", "forgetting": "forgetting.json", "lock": ".lock"}[kind.split()[0]]  # fmt: skip
                target.unlink(missing_ok=True)
                if kind.startswith(
                    "facts"
                ):  # a photo without facts is not there, and the next write removes it
                    (inbox / f"{ID}.photo").unlink()
                if kind.endswith("fifo"):
                    os.mkfifo(target)
                elif kind.endswith("folder"):
                    target.mkdir()
                elif kind.endswith("link"):
                    target.symlink_to("/dev/zero")
                else:
                    target.write_bytes(b'{"class_id": 1e400, "photos": ["../../p"]}')

        return make

    for kind in ("link", "dangling", "file", "fifo", *(f"{what} {how}" for what in ("photo", "facts", "counts", "forgetting", "lock") for how in ("fifo", "folder", "link", "forged"))):  # fmt: skip
        # A folder in place of a photo cannot be removed with it: that is told, and the photo is gone all the same.
        # What a `forget` left is finished by whatever writes next, also if that is refused then.
        add(f"place {kind}", place(kind), some(5), in_part=kind == "photo folder" or kind.startswith("forgetting"))  # fmt: skip

    def jobs(folder: Path) -> None:
        (folder / "m.jobs").mkdir()
        told = {"classes": ["red"], "state": "done", "message": "learned red", "error": None, "learned": {"classes": ["red"], "extended": [], "notes": ["few of red"]}}  # fmt: skip
        (folder / "m.jobs" / f"{ID[:15]}-abcdef.json").write_text(json.dumps(told))
        kept(json.dumps(facts(image, class_id=0, name="red", file="red 1.png")).encode())(folder)
        (folder / "link").symlink_to("m")
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "link").symlink_to("../m")

    def gone(folder: Path, code: int, out: str) -> str | None:
        """After `forget` no file of the model, its inbox or its jobs has the name."""
        left = [
            str(path.relative_to(folder)) for top in ("m", "m.inbox", "m.jobs") for path in (folder / "in" / top).rglob("*")
            if path.is_file() and (b'"red' in path.read_bytes() or b"learned red" in path.read_bytes())
        ]  # fmt: skip
        return f"the name is still in {left}" if code == 0 and left else None

    ways = ["m", "./m", "m/", "m/.", "m//", "../in/m", "deep/../m", "deep/er/../../m", "link", "link/", "deep/link", "deep/../link", "@CASE@/in/m", "@CASE@/in/link", "m/../m"]  # fmt: skip
    for way in ways:
        for model in ("trained", "strata"):
            add(f"forget at {way}", jobs, {"forget": ["forget", "red", "--model", way, "--yes"]}, model, expect="accepted", check=gone)  # fmt: skip
        at = {key: [way if word == "m" else word for word in argv] for key, argv in COMMANDS.items()}
        add(f"all at {way}", jobs, {key: at[key] for key in rng.sample(list(at), 6)})

    def another(folder: Path) -> None:
        """The inbox of a model that is gone; in the new one its class id is another class's."""
        kept(json.dumps(facts(image, class_id=0, name="red")).encode() + b"\n")(folder)
        shutil.rmtree(folder / "m")
        photos(folder / "photos", ("zebra", "apple"), 3)

    def not_taken(folder: Path, code: int, out: str) -> str | None:
        return "a photo of red was learned as another class" if "more of" in out else None

    add("another model's inbox", another, {"make": ["learn", "photos", "--model", "m", "--method", "simplecil", "--input-size", "16"], "learn": COMMANDS["learn"], "predict": COMMANDS["predict"], "inbox": COMMANDS["inbox"]}, check=not_taken)  # fmt: skip
    for name in ODD:
        if isinstance(name, str) and "\x00" not in name and len(name) < 1000:
            word = os.fsencode(name.replace("\ud800", "\udced\udca0\udc80"))
            add(f"correct as {name[:20]!r}", lambda folder: None, {"correct": ["correct", "p.png", word, "--model", "m", "--yes"], "name": ["inbox", "--model", "m", "--name", b"abcd=" + word]})  # fmt: skip
    return found
