# ruff: noqa: E501
"""Class folders: names of other systems and scripts, links, hidden and nested files, very many and very few classes."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from campaign.outside.case import Case
from campaign.outside.fixtures import Fixtures, picture

NAMES = [
    b"a\\b", b"C:\\x", b"CON", b"aux.txt", b" x", b"x ", b"x.", b"...", b"a:b", b"a*b?", b"a\nb", b"a\tb", b"\x1b[31mred", b"\x7f", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80",
    "😀".encode(), "👨‍👩‍👧‍👦".encode(), "\u202eabc".encode(), "\u200fabc".encode(), "a\u200bb".encode(), "\ufeffx".encode(), "\u2028".encode(), "\u00a0".encode(), "\u3164".encode(), "x" * 255, ("ß" * 127).encode(),
    "e\u0301".encode(), "é".encode(), "ﬁ".encode(), "İ".encode(), "שלום".encode(), "日本語".encode(), "\U000e0041".encode(), "\u0301".encode(), "a\u0300\u0301\u0302".encode() * 20, b"[bold]x[/bold]", b"[/]", b"{x}", b"%d", b"$HOME", b"`id`", b"-x", b"--model", b"red",
    b"null", b"0", b"1e5", b"__pycache__", b".hidden", b"train", b"test", b"<b>", b"'", b'"', b"a,b", b"=cmd()", b"@x", b"Thumbs.db", b"lost+found", b"\xf0\x9f\x98", b"x\xc2\x85y", b"\xe2\x80\xae\xe2\x81\xa6", "Ⅳ".encode(), "４".encode(),
]  # fmt: skip


def save(folder: bytes, at: int = 0, name: bytes = b"0.png") -> None:
    """Write one picture into a folder whose name is any bytes."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        picture(repr(folder[-20:]), at).save(file, "PNG")


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family."""
    rng = random.Random(f"{seed}-folders")
    found: list[Case] = []
    commands: dict[str, list[str]] = {
        "new": ["learn", "d", "--model", "new", "--method", "simplecil", "--input-size", "16"],
        "more": ["learn", "d", "--model", "m"], "skip": ["learn", "d", "--model", "m", "--unreadable", "skip", "--json"],
        "extend": ["learn", "d", "--model", "m", "--extend", "--json"], "predict": ["predict", "d", "--model", "m"],
        "csv": ["predict", "d", "--model", "m", "--csv"], "eval": ["eval", "d", "--model", "m", "--out", "page"],
        "check": ["datasets", "check", "folder", "--data-root", "d"], "check-json": ["datasets", "check", "folder", "--data-root", "d", "--json"],
        "run": ["run", "--dataset", "folder", "--data-root", "d", "--protocol", "B0 Inc1", "--method", "simplecil", "--input-size", "16", "--out", "o"],
    }  # fmt: skip

    def add(label: str, make: Callable[[bytes], None], which: list[str], **more) -> None:
        for key in which:

            def files(folder: Path) -> None:
                fixtures.model("small", folder / "m")
                (folder / "d").mkdir()
                make(os.fsencode(folder / "d"))

            found.append(Case("folders", f"{label}: {key}", commands[key], files, **more))

    every = list(commands)
    for name in NAMES:
        raw = (name.encode() if isinstance(name, str) else name).replace(b"/", "∕".encode())

        def named(d: bytes, raw: bytes = raw) -> None:
            for at in range(3):
                save(os.path.join(d, raw), at, b"%d.png" % at)
            save(os.path.join(d, b"green"), 1)

        def filed(d: bytes, raw: bytes = raw) -> None:
            save(os.path.join(d, b"green"), 1, raw[:200] + b".png")
            save(os.path.join(d, b"red"), 1)

        def broken(d: bytes, raw: bytes = raw) -> None:
            save(os.path.join(d, b"green"), 1)
            with open(os.path.join(d, b"green", raw[:200] + b".jpg"), "wb") as file:
                file.write(b"no image")

        add(f"class {raw[:24]!r}", named, rng.sample(every, 3))
        add(f"file {raw[:24]!r}", filed, rng.sample(every, 2))
        add(f"broken file {raw[:24]!r}", broken, rng.sample(every, 2))

    def pair(first: bytes, second: bytes) -> Callable[[bytes], None]:
        def make(d: bytes) -> None:
            save(os.path.join(d, first), 1)
            save(os.path.join(d, second), 2)

        return make

    for first, second in ((b"cat", b"Cat"), ("é".encode(), "e\u0301".encode()), (b"a", b"a "), ("ﬁ".encode(), b"fi"), (b"x", "x\u200b".encode()), (b"4", "４".encode()), ("ß".encode(), b"ss"), (b"K", b"K"), (b"n01443537", b"goldfish")):  # fmt: skip
        add(f"pair {first!r} {second!r}", pair(first, second), ["new", "more", "run", "check"])

    def many(d: bytes, count: int) -> None:
        for at in range(count):
            save(os.path.join(d, b"c%d" % at), at)

    def deep(d: bytes) -> None:
        path = os.path.join(d, b"red")
        for _ in range(400):
            path = os.path.join(path, b"n")
        os.makedirs(path)
        save(path)

    def cycle(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.symlink(b"..", os.path.join(d, b"red", b"up"))
        os.symlink(d, os.path.join(d, b"self"))

    def outward(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.symlink(b"/etc", os.path.join(d, b"etc"))
        os.symlink(b"/dev/zero", os.path.join(d, b"red", b"z.png"))

    def device(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.mkfifo(os.path.join(d, b"red", b"f.png"))

    def null(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.symlink(b"/dev/null", os.path.join(d, b"red", b"n.jpg"))

    def dangling(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.symlink(b"nothing", os.path.join(d, b"red", b"n.jpg"))

    def directory(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.makedirs(os.path.join(d, b"red", b"x.png"))

    def unreadable(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        save(os.path.join(d, b"blue"))
        os.chmod(os.path.join(d, b"red"), 0)

    def unreadable_file(d: bytes) -> None:
        save(os.path.join(d, b"red"))
        os.chmod(os.path.join(d, b"red", b"0.png"), 0)

    def same(d: bytes) -> None:
        for name in (b"a", b"b"):
            os.makedirs(os.path.join(d, name))
            picture("x", 0).save(os.path.join(os.fsdecode(d), os.fsdecode(name), "0.png"))

    layouts: dict[str, Callable[[bytes], None]] = {
        "nothing": lambda d: None, "empty class": lambda d: os.mkdir(os.path.join(d, b"red")), "one of one": lambda d: many(d, 1), "two": lambda d: many(d, 2), "thousand": lambda d: many(d, 1000),
        "deep": deep, "cycle": cycle, "outward": outward, "fifo": device, "null": null, "dangling": dangling, "directory": directory, "same": same,
        "flat": lambda d: save(d), "only hidden": lambda d: save(os.path.join(d, b"red"), 0, b".x.png"), "hidden class": lambda d: save(os.path.join(d, b".red")), "text only": lambda d: (os.mkdir(os.path.join(d, b"red")), open(os.path.join(d, b"red", b"x.txt"), "w").close()),
        "no extension": lambda d: save(os.path.join(d, b"red"), 0, b"photo"), "upper": lambda d: save(os.path.join(d, b"red"), 0, b"X.PNG"), "train only": lambda d: save(os.path.join(d, b"train", b"red")), "test only": lambda d: save(os.path.join(d, b"test", b"red")),
        "train and test": lambda d: (save(os.path.join(d, b"train", b"red")), save(os.path.join(d, b"test", b"blue"))), "train as class": lambda d: (save(os.path.join(d, b"train")), save(os.path.join(d, b"test"))), "many files": lambda d: [save(os.path.join(d, b"red"), 0, b"%d.png" % i) for i in range(2000)],
        "macos": lambda d: (save(os.path.join(d, b"red")), save(os.path.join(d, b"__MACOSX", b"red"), 0, b"._0.png"), open(os.path.join(d, b".DS_Store"), "w").close()),
    }  # fmt: skip
    for label, make in layouts.items():
        add(label, make, every)
    for label, make in (("unreadable class", unreadable), ("unreadable file", unreadable_file)):
        add(label, make, ["new", "check", "check-json", "run"], nobody=True)

    def vanish(seconds: float, what: str) -> Callable[[Path], None]:
        def harm(folder: Path) -> None:
            time.sleep(seconds)
            target = folder / "d" / "c3"
            if what == "class":
                shutil.rmtree(target, ignore_errors=True)
            elif what == "all":
                shutil.rmtree(folder / "d", ignore_errors=True)
            elif what == "replace":
                for path in (folder / "d").rglob("*.png"):
                    path.write_bytes(b"gone")
            elif what == "grow":
                for at in range(40):
                    picture("late", at).save(folder / "d" / f"c{at % 30}" / f"late{at}.png")
            elif what == "model":
                shutil.rmtree(folder / "m", ignore_errors=True)
            elif what == "fifo":
                for path in sorted((folder / "d").rglob("*.png"))[-10:]:
                    path.unlink()
                    os.mkfifo(path)

        return harm

    for what in ("class", "all", "replace", "grow", "model", "fifo"):
        for seconds in (0.01, 0.05, 0.1, 0.2, 0.4, 0.8):
            add(
                f"{what} vanishes after {seconds}",
                lambda d: many(d, 60),
                ["new", "skip", "run"],
                alongside=vanish(seconds, what),
            )
    return found
