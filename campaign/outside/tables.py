# ruff: noqa: E501
"""Tables, lists, COCO files, saved datasets and videos: spellings of other programs, lies about sizes, addresses that are none."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import multiprocessing
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from campaign.outside.case import Case
from campaign.outside.fixtures import Fixtures, picture

LEARN = ["learn", "@", "--model", "new", "--method", "simplecil", "--input-size", "16"]
COMMANDS: dict[str, list[str]] = {
    "learn": LEARN, "more": ["learn", "@", "--model", "m", "--json"], "skip": ["learn", "@", "--model", "m", "--unreadable", "skip"], "eval": ["eval", "@", "--model", "m", "--json"],
    "check": ["check", "@", "--model", "m"], "predict": ["predict", "--from", "@", "--model", "m", "--json"], "rows": ["predict", "--from", "@", "--model", "m", "--out", "rows.csv"], "frames": ["predict", "--from", "@", "--model", "m", "--every", "3", "--json"], "parts": ["predict", "--from", "@", "--model", "m", "--to", "parts", "--format", "jsonl"],
}  # fmt: skip
PATHS = [
    "p.png", "./p.png", "q/../p.png", "../p.png", "/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem", "nothing.png", "p.png/", "P.PNG", " p.png", "p.png ", "'p.png'", "p.png\t", "p.png\r", "a b.png", "", ".", "..", "/", "~", "~/p.png", "$HOME/p.png",
    "http:/127.0.0.1:@/p.png", "http://127.0.0.1:@/p.png", "HTTP://127.0.0.1:@/p.png", "http:127.0.0.1:@/p.png", "https:/127.0.0.1:@/x.mp4", "http:/127.0.0.1:@/x.mp4", "tcp:/127.0.0.1:@", "tcp://127.0.0.1:@/x.mp4", "cache:http:/127.0.0.1:@/x.mp4", "async:tcp:/127.0.0.1:@/x.mp4",
    "crypto:http:/127.0.0.1:@/x.mp4", "ftp://127.0.0.1:@/x.mp4", "rtmp:/127.0.0.1:@/x.mp4", "udp:/127.0.0.1:@/x.mp4", "concat:/etc/passwd|/etc/hosts.mp4", "subfile:,start,0,end,9,,:/etc/passwd.mp4", "file:p.png", "file:///etc/passwd", "file:x.mp4", "pipe:0.mp4", "data:image/png;base64,AAAA", "data:,x.mp4",
    "x" * 300 + ".png", "x/" * 2500 + "p.png", "\ud800.png", "\udcff.png", "\x00.png", "\x1b[31m.png", "\u202ep.png", "p.png\u200b", "ｐ.png", "p\ufe0f.png", "=cmd()", "-p.png", "--model", "C:\\p.png", "\\\\host\\share\\p.png", "{a,b}.png", "*.png", "[p].png", "p.png#x", "p.png?x", "p%2epng", "📷.png",
]  # fmt: skip
LABELS = [
    "red", "Red", "", " ", "red ", "\u00a0", "\u3164", "a\u0300" * 80, "é", "e\u0301", "x" * 5000, "1", "1.0", "1.50", "01", "1e400", "9" * 5000, "nan", "inf", "-0", "null", "None", "true", "2026-01-01", "a/b", "..", "a\nb", "a,b", '"', "<b>", "=1+1", "\x1b]0;x\x07", "\ud800", "\U000e0041", "\ufffe", "a\u200db",
]  # fmt: skip


def _png(folder: Path) -> None:
    picture("red", 1).save(folder / "p.png")
    picture("blue", 2).save(folder / "b.png")


def _rows(rng: random.Random, bad_path: str | None, bad_label: str | None) -> list[tuple[str, str]]:
    rows = [("p.png", "sun"), ("b.png", "sea")] * 2
    rows.insert(rng.randrange(len(rows)), (bad_path if bad_path is not None else "p.png", bad_label if bad_label is not None else "sun"))  # fmt: skip
    return rows


def _written(rows: list[tuple[str, str]], kind: str) -> bytes:
    """A table of some kind; what a kind cannot hold is written as its writers do."""
    if kind in ("csv", "tsv"):
        text = io.StringIO()
        csv.writer(text, delimiter="," if kind == "csv" else "\t").writerows([("path", "label"), *rows])
        return text.getvalue().encode("utf-8", "surrogatepass")
    if kind == "jsonl":
        return "".join(json.dumps({"path": p, "label": name}) + "\n" for p, name in rows).encode()
    if kind == "txt":
        return "".join(p + "\n" for p, _ in rows).encode("utf-8", "surrogatepass")
    if kind == "json":
        names = sorted({name for _, name in rows})
        return json.dumps({
            "images": [{"id": at, "file_name": p} for at, (p, _) in enumerate(rows)],
            "annotations": [{"id": at, "image_id": at, "category_id": names.index(name)} for at, (_, name) in enumerate(rows)],
            "categories": [{"id": at, "name": name} for at, name in enumerate(names)],
        }).encode()  # fmt: skip
    import pyarrow as pa
    import pyarrow.parquet as pq

    clean = [tuple(text.encode("utf-8", "replace").decode() for text in row) for row in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"path": [p for p, _ in clean], "label": [name for _, name in clean]}), sink)
    return sink.getvalue().to_pybytes()


def _shapes() -> dict[str, tuple[str, bytes]]:
    """Whole files, by what is odd about them: name and content."""
    good = "path,label\np.png,sun\nb.png,sea\n"
    found: dict[str, tuple[str, bytes]] = {
        "empty": ("t.csv", b""), "head only": ("t.csv", b"path,label\n"), "no head": ("t.csv", b"p.png,sun\nb.png,sea\n"), "cr": ("t.csv", good.replace("\n", "\r").encode()), "crlf": ("t.csv", good.replace("\n", "\r\n").encode()), "bom": ("t.csv", b"\xef\xbb\xbf" + good.encode()),
        "utf-16": ("t.csv", good.encode("utf-16")), "utf-32": ("t.csv", good.encode("utf-32")), "latin-1": ("t.csv", good.replace("sun", "été").encode("latin-1")), "nul": ("t.csv", good.encode() + b"\0" * 4096), "one column": ("t.csv", b"path\np.png\nb.png\n"), "twice": ("t.csv", b"path,label,label\np.png,sun,sea\nb.png,sea,sun\n"),
        "paths twice": ("t.csv", b"path,file,label\np.png,b.png,sun\nb.png,p.png,sea\n"), "ragged": ("t.csv", good.encode() + b"p.png\n,\np.png,sun,more,and,more\n"), "open quote": ("t.csv", good.encode() + b'"p.png,sun\n'), "semicolons": ("t.csv", good.replace(",", ";").encode()), "spaces": ("t.csv", b"path , label\np.png , sun\nb.png , sea\n"),
        "upper": ("t.CSV", good.upper().encode()), "huge cell": ("t.csv", good.encode() + b"p.png," + b"x" * (3 << 20) + b"\n"), "huge quoted": ("t.csv", good.encode() + b'"' + b"x\n" * (1 << 20) + b'",sun\n'), "many columns": ("t.csv", ",".join(f"c{i}" for i in range(50_000)).encode() + b"\n"), "same row": ("t.csv", good.encode() + b"p.png,sun\n" * 500),
        "two labels": ("t.csv", good.encode() + b"p.png,sea\n"), "list bom": ("t.txt", b"\xef\xbb\xbfp.png\nb.png\n"), "list utf-16": ("t.txt", "p.png\nb.png\n".encode("utf-16")), "list cr": ("t.txt", b"p.png\rb.png\r"), "list blank": ("t.txt", b"\n\n\n"), "list empty": ("t.txt", b""), "list comment": ("t.txt", b"# photos\np.png\n"),
        "jsonl twice": ("t.jsonl", b'{"path": "p.png", "path": "b.png", "label": "sun"}\n'), "jsonl list": ("t.jsonl", b'["p.png", "sun"]\n'), "jsonl null": ("t.jsonl", b'{"path": null, "label": null}\n'), "jsonl number": ("t.jsonl", b'{"path": "p.png", "label": ' + b"9" * 5000 + b"}\n"), "jsonl nan": ("t.jsonl", b'{"path": "p.png", "label": NaN}\n'),
        "jsonl deep": ("t.jsonl", b'{"path": "p.png", "label": ' + b"[" * 5000 + b"]" * 5000 + b"}\n"), "jsonl object": ("t.jsonl", b'{"path": {"a": 1}, "label": true}\n'), "jsonl surrogate": ("t.jsonl", b'{"path": "\\ud800.png", "label": "sun"}\n'), "jsonl long": ("t.jsonl", b'{"path": "p.png", "label": "' + b"x" * (4 << 20) + b'"}\n'), "jsonl torn": ("t.jsonl", b'{"path": "p.png", "label": "sun"}\n{"path": "b.p'),
        "json array": ("t.json", b"[]"), "json number": ("t.json", b"7"), "coco empty": ("t.json", b'{"images": [], "annotations": [], "categories": []}'), "coco ids": ("t.json", b'{"images": [{"id": "x", "file_name": "p.png"}, {"id": "x", "file_name": "b.png"}], "annotations": [{"image_id": "x", "category_id": 1e400}], "categories": [{"id": 1, "name": "a"}]}'),
        "coco names": ("t.json", b'{"images": [{"id": 1, "file_name": "p.png"}], "annotations": [{"image_id": 1, "category_id": 1}], "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}'), "parquet text": ("t.parquet", good.encode()), "parquet magic": ("t.parquet", b"PAR1" + b"\xff" * 64 + b"PAR1"), "parquet lies": ("t.parquet", b"PAR1\xff\xff\xff\x7fPAR1"),
        "video text": ("t.mp4", good.encode()), "video list": ("t.mp4", b"ffconcat version 1.0\nfile p.png\n"), "video itself": ("t.mp4", b"ffconcat version 1.0\nfile t.mp4\n"), "video playlist": ("t.mp4", b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n"), "video sdp": ("t.mp4", b"v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n"),
        "video empty": ("t.mp4", b""), "video zeros": ("t.mp4", bytes(1 << 20)),
    }  # fmt: skip
    return found


def _columns() -> dict[str, Callable[[Path], None]]:
    """Parquet and Arrow files that say little and mean much, or hold what no table of photos has."""

    def parquet(content: Callable, **options) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            import pyarrow.parquet as pq

            pq.write_table(content(), folder / "t.parquet", **{"compression": "zstd", **options})

        return make

    def table(**columns) -> Callable:
        def content():
            import pyarrow as pa

            return pa.table({name: make(pa) for name, make in columns.items()})

        return content

    def cells(size: int, count: int) -> Callable:
        return table(image=lambda pa: pa.array([{"bytes": b"\x89PNG\r\n\x1a\n" + bytes(size), "path": None}] * count), label=lambda pa: pa.array(["sun", "sea"] * (count // 2)))  # fmt: skip

    def saved(folder: Path) -> None:
        import pyarrow as pa

        (folder / "t").mkdir()
        content = cells(4 << 20, 300)()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(folder / "t" / "data-00000-of-00001.arrow"), "wb") as sink, pa.ipc.new_stream(sink, content.schema, options=options) as writer:  # fmt: skip
            writer.write_table(content, max_chunksize=50)
        (folder / "t" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))  # fmt: skip
        (folder / "t" / "dataset_info.json").write_text(json.dumps({"features": {"image": {"_type": "Image"}, "label": {"dtype": "string", "_type": "Value"}}}))  # fmt: skip

    paths = table(path=lambda pa: ["p.png", "b.png"] * 8, label=lambda pa: ["sun", "sea"] * 8)
    return {
        "dictionary": parquet(table(path=lambda pa: ["p.png"] * 1024, label=lambda pa: pa.DictionaryArray.from_arrays(pa.array([0] * 1024, pa.int32()), pa.array(["x" * (20 << 20)])))),
        "labels": parquet(table(path=lambda pa: ["p.png"] * 1024, label=lambda pa: ["x" * (1 << 20)] * 1024), store_schema=False),
        "long paths": parquet(table(path=lambda pa: ["x" * (1 << 20)] * 1500, label=lambda pa: ["sun"] * 1500)),
        "image cells": parquet(cells(4 << 20, 400)), "small cells": parquet(cells(100, 40)), "saved": saved,
        "other column": parquet(table(path=lambda pa: ["p.png", "b.png"], label=lambda pa: ["sun", "sea"], notes=lambda pa: ["x" * (300 << 20)] * 2)),
        "times": parquet(table(path=lambda pa: ["p.png", "b.png"], label=lambda pa: ["sun", "sea"], at=lambda pa: pa.array([0, 2**62], pa.timestamp("us", "Mars/Phobos")))),
        "days": parquet(table(path=lambda pa: ["p.png", "b.png"], label=lambda pa: pa.array([0, 2**31 - 1], pa.date32()))),
        "decimals": parquet(table(path=lambda pa: ["p.png", "b.png"], label=lambda pa: pa.array(["1.5", "2.5"]).cast(pa.decimal128(20, 2)))),
        "numbers": parquet(table(path=lambda pa: ["p.png", "b.png"], label=lambda pa: [3.0, float("nan")])), "bytes": parquet(table(path=lambda pa: [b"p.png", b"\xff"], label=lambda pa: [b"sun", b"sea"])),
        "lists": parquet(table(path=lambda pa: [["p.png"], ["b.png"]], label=lambda pa: [{"a": 1}, {"a": 2}])), "nulls": parquet(table(path=lambda pa: pa.array([None, "p.png"]), label=lambda pa: pa.array(["sun", None]))),
        "no rows": parquet(table(path=lambda pa: pa.array([], pa.string()), label=lambda pa: pa.array([], pa.string()))), "many groups": parquet(paths, row_group_size=1), "plain": parquet(paths), "old": parquet(paths, version="1.0", compression="gzip", use_dictionary=False),
    }  # fmt: skip


def _made_apart(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make files that need gigabytes in a process of their own: the memory of this one is that of the cases, too."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}-{os.getpid()}")
        unfinished.mkdir(parents=True)
        worker = multiprocessing.get_context("fork").Process(target=make, args=(unfinished,))
        worker.start()
        worker.join()
        with contextlib.suppress(OSError):  # another worker of the campaign was first
            unfinished.rename(folder)
    return folder


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family."""
    rng = random.Random(f"{seed}-tables")
    found: list[Case] = []

    def add(label: str, name: str, make: Callable[[Path], None], commands: list[str], **more) -> None:
        for key in commands:

            def files(folder: Path) -> None:
                fixtures.model("small", folder / "m")
                _png(folder)
                make(folder)

            argv = [name if word == "@" else word for word in COMMANDS[key]]
            if name.endswith(".mp4"):
                argv = [word for word in argv if word != "--from"] + (["--every", "2"] if "predict" in argv and "--every" not in argv else [])  # fmt: skip
            found.append(Case("tables", f"{label}: {key}", argv, files, **more))

    every = list(COMMANDS)
    kinds = ["csv", "tsv", "jsonl", "json", "parquet", "txt"]
    for path in PATHS:
        for kind in rng.sample(kinds, 3):
            listening: list[socket.socket] = []

            def write(folder: Path, path: str = path, kind: str = kind, listening: list = listening) -> None:
                server = socket.socket()
                server.bind(("127.0.0.1", 0))
                server.listen()
                server.setblocking(False)
                listening[:] = [server]
                rows = _rows(random.Random(repr(path)), path.replace("@", str(server.getsockname()[1])), None)
                (folder / f"t.{kind}").write_bytes(_written(rows, kind))

            def met(folder: Path, code: int, out: str, listening: list = listening) -> str | None:
                with listening.pop() as server:
                    try:
                        server.accept()[0].close()
                    except BlockingIOError:
                        return None
                return "it connected to an address without --allow-urls"

            commands = ["predict", "rows", "parts"] if kind == "txt" else every
            looks = ["frames", *rng.sample(commands, 1)] if ".mp4" in path else rng.sample(commands, 2)
            add(f"path {path[:30]!r} {kind}", f"t.{kind}", write, looks, check=met)
    for name in LABELS:
        for kind in rng.sample(kinds[:5], 2):

            def label(folder: Path, name: str = name, kind: str = kind) -> None:
                (folder / f"t.{kind}").write_bytes(
                    _written(_rows(random.Random(repr(name)), None, name), kind)
                )

            add(f"label {name[:20]!r} {kind}", f"t.{kind}", label, rng.sample(["learn", "more", "skip", "eval", "check"], 2))  # fmt: skip
    for key, (name, content) in _shapes().items():

        def shape(folder: Path, name: str = name, content: bytes = content) -> None:
            (folder / name).write_bytes(content)

        add(f"shape {key}", name, shape, ["predict", "rows", "parts"] if name.endswith((".txt", ".mp4")) else every)  # fmt: skip
    for key, make in _columns().items():

        def columns(folder: Path, key: str = key, make: Callable[[Path], None] = make) -> None:
            shutil.copytree(_made_apart(fixtures.root / "tables" / key, make), folder, dirs_exist_ok=True)

        add(f"columns {key}", "t" if key == "saved" else "t.parquet", columns, every)
    for words in ("path,path", "label,path", "nothing,label", "path", ",", "path,label,label", "PATH,LABEL", "0,1", "path,=label"):  # fmt: skip

        def named(folder: Path) -> None:
            (folder / "t.csv").write_text("path,label\np.png,sun\nb.png,sea\n")

        found.append(Case("tables", f"columns {words!r}", [*LEARN[:1], "t.csv", *LEARN[2:], "--columns", words], lambda folder, named=named: (_png(folder), named(folder))))  # fmt: skip
    return found
