# ruff: noqa: E501
"""Command lines: wrong types, strange names and paths, damaged configurations, a broken environment."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

from campaign.outside.case import Case
from campaign.outside.fixtures import Fixtures, picture

NUMBERS = [
    "0", "-1", "1e3", "1.5", "nan", "inf", "-inf", "99999999999999999999", str(2**63), str(-(2**63)), "1" * 5000, "",
    " 1 ", "٣", "1_000", "0x10", "NaN", "1e308", "true", "None", "½", "+5", "--", "2147483648", "4294967296",
]  # fmt: skip
NAMES = [
    "", " ", "a\nb", "a\tb", "a\x00b", "\x1b[2J", "\u202egnp", "\u200b", "\ufeff", "e\u0301", "é", "👩‍👩‍👧", "a" * 300, "a" * 5000,
    "../x", "/", ".", "..", "a/b", "a\\b", "CON", "%s%n", "{0}", "[red]x[/red]", "[/]", "$(id)", "`id`", "'; drop", "<script>",
    "\ud800", "\udcff", "red", "RED", " red", "red ", "ｒｅｄ", "-x", "--help", "=", "\u2028", "\u0085", "a\rb", "\x7f", "null", "🏳️‍🌈" * 50,
]  # fmt: skip
VALUES = [
    "x", "=", "a=", "=b", "a=b=c", "epochs", "epochs=", "epochs=-1", "epochs=0", "epochs=nan", "epochs=1e999", "epochs=[]",
    "epochs={}", "epochs=null", "epochs=!!python/object:os.system", "epochs=&a [*a]", "lr=nan", "lr=inf", "lr=-1", "lr='x'",
    "lr=1e400", "lr=.inf", "rank=0", "rank=99999999999", "rank=1.5", "batch_size=0", "batch_size=-5", "batch_size=1e18",
    "optimizer=rm", "schedule=[1]", "sigma=0", "sigma=-1", "sigma=.nan", "dropout=2", "dropout=-1", "layers=0", "layers=999",
    "momentum=7", "clip=-1", "clip=0", "seed=1", "classes=3", "__class__=1", "é=1", "a\nb=1", "\x1b=1", "rank: 3", "rank=\ud800",
    "rank=" + "9" * 400, "rank=" + "[" * 500, "rank=2024-01-01", "rank=0o17", "rank=yes", "adapt=maybe", "patches=2", "scale=1e39",
    "weight_decay=-1", "weight_decay=1e300", "method=ease", "min_steps=-3", "min_steps=1e12", "tuning=/etc/passwd",
]  # fmt: skip
CONFIGS: dict[str, bytes] = {
    "empty": b"", "spaces": b"   \n\n", "null": b"null", "number": b"5", "list": b"- a\n- b\n", "string": b"hello",
    "binary": bytes(range(256)), "utf16": "dataset: digits\n".encode("utf-16"), "bom": b"\xef\xbb\xbfdataset: digits\nlimit_per_class: x\n",
    "tabs": b"\tdataset: digits", "python": b"!!python/object/apply:os.system ['id']\n", "alias": b"a: &a [*a]\n",
    "laughs": b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)) + b"dataset: *j\n",
    "deep": b"dataset: " + b"[" * 5000 + b"]" * 5000, "deepmap": b"".join(b" " * i + b"a:\n" for i in range(300)),
    "duplicate": b"dataset: digits\ndataset: glyphs\n", "unknown": b"datast: digits\n", "keys": b"1: 2\nnull: 3\n? [a]\n: b\n",
    "types": b"dataset: [digits]\n", "types2": b"dataset: digits\nseed: {}\n", "float": b"dataset: digits\nseed: .nan\n",
    "huge": b"dataset: digits\nseed: " + b"9" * 5000, "inf": b"dataset: digits\nlimit_per_class: .inf\n", "out": b"out: [1]\ndataset: digits\n",
    "config": b"config: config.yaml\ndataset: digits\n", "resume": b"resume: nowhere\n", "date": b"dataset: 2020-01-01\n",
    "bool": b"dataset: yes\n", "neg": b"dataset: digits\nlimit_per_class: -3\n", "protocol": b"dataset: digits\nprotocol: 5\n",
    "multi": b"---\ndataset: digits\n---\ndataset: glyphs\n", "directive": b"%YAML 9.9\n---\ndataset: digits\n",
    "merge": b"<<: {dataset: digits}\nlimit_per_class: no\n", "merge2": b"<<: 5\n", "nul": b"dataset: digits\x00\n", "big": b"# " + b"x" * 6_000_000,
    "set": b"dataset: digits\nsettings: 5\n", "set2": b"dataset: digits\nset: [a]\n", "json": b'{"dataset": "digits", "limit_per_class": "many"}',
    "timestamp": b"seed: 99999-99-99\ndataset: digits\n", "anchors": b"*nothing\n", "octal": b"seed: 0o9\ndataset: digits\n", "base60": b"seed: 1:2:3\ndataset: digits\n",
    "binarytag": b"dataset: !!binary aGVsbG8=\n", "settag": b"dataset: !!set {a, b}\n", "esc": b"dataset: \"\\e[31m\"\n", "surrogate": b'dataset: "\\ud800"\n', "emptykey": b"'': 1\n",
    "path": b"dataset: folder\ndata_root: /dev/zero\n", "path2": b"dataset: folder\ndata_root: 5\n", "path3": b"dataset: folder\ndata_root: \"a\\0b\"\n",
}  # fmt: skip


def _bad_paths() -> dict[str, tuple[str | bytes, Callable[[Path], None] | None]]:
    """Paths that are something else than they should be."""

    def link(to: str) -> Callable[[Path], None]:
        return lambda folder: os.symlink(to, folder / "bad")

    def sock(folder: Path) -> None:
        here = os.getcwd()
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("bad")
        os.chdir(here)

    def closed(folder: Path) -> None:
        (folder / "bad").mkdir(mode=0)

    def bits(folder: Path) -> None:
        (folder / "bad").write_bytes(os.urandom(0) + b"\x89PNG\r\n\x1a\n" + b"x" * 100)

    return {
        "missing": ("nowhere", None), "empty": ("", None), "folder": ("bad", lambda f: (f / "bad").mkdir()), "null": ("/dev/null", None),
        "zero": ("/dev/zero", None), "random": ("/dev/urandom", None), "full": ("/dev/full", None), "tty": ("/dev/tty", None), "stdin": ("/dev/stdin", None),
        "fd": ("/dev/fd/0", None), "proc": ("/proc/self/mem", None), "proc2": ("/proc/self/environ", None), "kmsg": ("/proc/kmsg", None),
        "fifo": ("bad", lambda f: os.mkfifo(f / "bad")), "socket": ("bad", sock), "dangling": ("bad", link("nothing")), "loop": ("bad", link("bad")),
        "parent": ("bad", link("..")), "long": ("x" * 300, None), "longer": ("x/" * 3000, None), "bytes": (b"\xff\xfe\x80", None), "surrogate": ("a\udc80b", None),
        "newline": ("a\nb", None), "escape": ("\x1b[31mx", None), "root": ("/", None), "file": ("bad", lambda f: (f / "bad").write_text("x")),
        "under-file": ("bad/x", lambda f: (f / "bad").write_text("x")), "noise": ("bad", bits), "tilde": ("~", None), "tilde2": ("~nobody/x", None), "var": ("$HOME", None),
        "url": ("http://127.0.0.1:1/x", None), "s3": ("s3://x/y", None), "dash": ("-", None), "dot": (".", None), "dotdot": ("..", None), "noread": ("bad", closed),
    }  # fmt: skip


TEMPLATES: list[list[str]] = [
    ["learn", "@", "--model", "new"], ["learn", "photos", "--model", "@"], ["learn", "photos", "--model", "new", "--weights", "@"],
    ["predict", "@", "--model", "m"], ["predict", "p.png", "--model", "@"], ["predict", "p.png", "--model", "m", "--weights", "@"],
    ["rename", "red", "rot", "--model", "@"], ["forget", "red", "--model", "@"], ["rollback", "1", "--model", "@"], ["rollback", "--model", "@"],
    ["info", "@"], ["info", "@", "--json"], ["eval", "@", "--model", "m"], ["eval", "photos", "--model", "@"], ["eval", "photos", "--model", "m", "--out", "@"],
    ["compact", "--model", "@", "--storage", "fp16"], ["compact", "--model", "m", "--storage", "fp16", "--check", "@"], ["export", "@", "--onnx", "o.onnx"],
    ["pack", "@", "--out", "x.ease"], ["pack", "m", "--out", "@"], ["unpack", "@", "new"], ["report", "@", "--out", "rep"], ["report", "run", "--out", "@"],
    ["compare", "@", "run"], ["compare", "run", "@"], ["verify", "@"], ["run", "--config", "@"], ["run", "--resume", "@"],
    ["run", "--dataset", "folder", "--data-root", "@", "--out", "o"], ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--class-order", "@", "--out", "o"],
    ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--weights", "@", "--out", "o"],
    ["study", "@", "--out", "o"], ["datasets", "check", "folder", "--data-root", "@"], ["datasets", "check", "cifar100", "--data-root", "@"],
    ["datasets", "check", "cifar10", "--archive", "@"], ["serve", "--model", "@", "--port", "0"], ["serve", "--model", "m", "--limits", "@", "--port", "99999"],
]  # fmt: skip


def _harmless(words: list[str], key: str) -> bool:
    """Leave out what would do its work on the machine's own folders, or for ever."""
    at = words.index("@")
    option = words[at - 1] if at else ""
    if key in ("root", "parent", "dotdot", "tilde", "dot") and (
        words[0] in ("learn", "predict", "eval", "run", "datasets", "report", "compare", "verify")
    ):
        return key in ("dot", "tilde") and words[0] != "learn"
    return not (option == "--out" and key in ("fd", "stdin", "proc", "proc2", "kmsg", "root", "tty"))


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family."""
    rng = random.Random(f"{seed}-commands")
    found: list[Case] = []

    def add(label: str, argv: list, make=None, **more) -> None:
        def files(folder: Path) -> None:
            words = " ".join(a if isinstance(a, str) else "" for a in argv).split()
            if "m" in words:
                fixtures.model("small", folder / "m")
            if "p.png" in words:
                picture("red", 99).save(folder / "p.png")
            if "photos" in words:
                fixtures.model("photos", folder / "photos")
            if "run" in words[1:]:
                fixtures.model("run", folder / "run")
            if make:
                make(folder)

        found.append(Case("commands", label, argv, files, **more))

    for key, (path, make) in _bad_paths().items():
        for words in TEMPLATES:
            if not _harmless(words, key):
                continue
            argv = [path if word == "@" else word for word in words]
            more = {"nobody": key == "noread"}
            if more["nobody"] and words[0] in ("eval", "compact", "pack") and "m" in words:
                more["nobody"] = False
            add(f"path {key}: {' '.join(words)}", argv, make, **more)
    options = [
        ["predict", "p.png", "--model", "m", "--top", "@"], ["predict", "p.png", "--model", "m", "--budget", "@"], ["rollback", "@", "--model", "m"],
        ["rollback", "--model", "m", "--", "@"], ["learn", "photos", "--model", "new", "--method", "simplecil", "--input-size", "@"],
        ["learn", "photos", "--model", "new", "--method", "simplecil", "--input-size", "16", "--seed", "@"],
        ["run", "--dataset", "digits", "--limit-per-class", "@", "--input-size", "16", "--method", "simplecil", "--protocol", "B0 Inc5", "--out", "o"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--out", "o", "--protocol", "B0 Inc5", "--seed", "@"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "@", "--method", "simplecil", "--out", "o", "--protocol", "B0 Inc5"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--out", "o", "--protocol", "@"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--out", "o", "--protocol", "B0 Inc@"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--out", "o", "--protocol", "B@ Inc2"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--protocol", "B0 Inc5", "--out", "o", "--feature-memory", "@"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--protocol", "B0 Inc5", "--out", "o", "--image-memory", "@"],
        ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--protocol", "B0 Inc5", "--out", "o", "--devices", "@"],
        ["compact", "--model", "m", "--energy", "@"], ["compact", "--model", "m", "--max-subspaces", "@"], ["compact", "--model", "m", "--storage", "@"],
        ["serve", "--model", "m", "--port", "@", "--host", "256.1.1.1"], ["study", "demo", "--out", "o", "--seeds", "@"], ["study", "demo", "--out", "o", "--jobs", "@", "--methods", "x"],
        ["paper", "@"], ["paper", "list", "--shard", "@"], ["paper", "table1", "--shard", "@/@", "--methods", "x"], ["eval", "photos", "--model", "m", "--budget", "@"],
        ["eval", "--model", "m", "--dataset", "digits", "--limit-per-class", "@"],
    ]  # fmt: skip
    for words in options:
        for number in rng.sample(NUMBERS, 9):
            if number == "1_000" and words[words.index("@") - 1 if "@" in words else 0] == "--input-size":
                continue  # a thousand pixels, and minutes of rightful work
            add(f"number {number[:20]!r}: {' '.join(words)}", [w.replace("@", number) for w in words])
    texts = [
        ["rename", "red", "@", "--model", "m"], ["rename", "@", "rot", "--model", "m"], ["forget", "@", "--model", "m"], ["@"], ["info", "m", "@"], ["list", "@"],
        ["learn", "photos", "--model", "new", "--method", "@"], ["learn", "photos", "--model", "new", "--backbone", "@"], ["learn", "photos", "--model", "new", "--augment", "@"],
        ["run", "--dataset", "@", "--out", "o"], ["run", "--dataset", "digits", "--preset", "@", "--out", "o"], ["list", "presets", "@"], ["study", "@", "--out", "o"],
        ["compare", "run", "run", "--method", "@"], ["serve", "--model", "m", "--host", "@"], ["serve", "--model", "m", "--port", "99999", "--token", "@"],
        ["datasets", "check", "@"], ["--@"], ["predict", "p.png", "--model", "m", "--@"], ["paper", "table1", "--methods", "@"], ["eval", "--model", "m", "--dataset", "@"],
    ]  # fmt: skip
    for words in texts:
        for name in rng.sample(NAMES, 11):
            if "\x00" in name:
                continue
            if words[0] == "serve" and "--host" in words and name in ("", " ", "red"):
                continue
            argv = [
                os.fsencode(w.replace("@", name)) if "\udcff" in name else w.replace("@", name) for w in words
            ]
            if any("\ud800" in a for a in argv if isinstance(a, str)):
                argv = [a.replace("\ud800", "\udced\udca0\udc80") if isinstance(a, str) else a for a in argv]
            add(f"name {name[:20]!r}: {' '.join(words)}", argv)
    for value in VALUES:
        value = value.replace("\ud800", "\udced\udca0\udc80")
        add(
            f"set {value[:30]!r} learn",
            ["learn", "photos", "--model", "new", "--input-size", "16", "--method", "strata", "--set", value],
        )
        add(f"set {value[:30]!r} run", ["run", "--dataset", "digits", "--protocol", "B0 Inc5", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--out", "o", "--set", value])  # fmt: skip
    for key, content in CONFIGS.items():

        def config(folder: Path, content: bytes = content) -> None:
            (folder / "config.yaml").write_bytes(content)

        for label, argv in (
            ("run", ["run", "--config", "config.yaml", "--out", "o", "--method", "simplecil", "--protocol", "B0 Inc5", "--input-size", "16"]),
            ("study", ["study", "config.yaml", "--out", "o"]),
            ("limits", ["serve", "--model", "m", "--limits", "config.yaml", "--port", "0", "--host", "256.0.0.1"]),
            ("order", ["run", "--class-order", "config.yaml", "--out", "o", "--dataset", "digits", "--method", "simplecil", "--limit-per-class", "1", "--protocol", "B0 Inc5", "--input-size", "16"]),
        ):  # fmt: skip
            add(f"config {key}: {label}", argv, config)
    _combinations(add)
    _environment(add)
    return found


def _combinations(add: Callable) -> None:
    for words in (
        "predict p.png --model m --json --csv", "predict p.png --model m --model m", "predict p.png --model m --top 1 --top 2", "learn photos --model m --method ease",
        "learn photos --model m --input-size 32", "learn photos --model m --seed 9 --extend", "learn photos --model m --backbone vit_tiny_patch16_224 --extend",
        "learn photos --model m --tune --extend", "learn photos --model new --tune --method simplecil --input-size 16", "run --resume run --out o", "run --resume run --dataset glyphs",
        "run --dataset digits --out run", "run", "run --dataset digits --out o --accelerator cuda", "run --dataset digits --out o --accelerator mps",
        "run --dataset digits --out o --devices 64 --limit-per-class 1 --input-size 16 --method simplecil", "run --dataset digits --out o --precision 16",
        "run --dataset digits --out o --preset nothing/none", "run --dataset cifar10 --out o --download --data-root photos", "run --dataset digits --data-root photos --out o --method simplecil --limit-per-class 1 --input-size 16",
        "eval --model m", "eval photos --model m --dataset digits", "compact --model m", "compact --model m --storage fp16 --storage int8", "compact --model m --storage fp16 --dry-run --forget-history",
        "compare run run", "compare run m", "compare m m", "report m --out o", "report run run run --out o", "report run --out run", "report photos --out o", "verify photos", "verify run/record.json",
        "pack m --out m", "pack m --out m/x.ease", "pack m --out photos/x", "pack run --out x.ease --with-images", "unpack m o", "unpack p.png m", "export m --onnx m", "export m --onnx nowhere/deep/x.onnx",
        "export run --onnx x", "rename red red --model m", "rename red green --model m", "rename red RED --model m", "forget nothing --model m", "rollback 2 --model m", "rollback 0 --model m", "rollback 3 --model m",
        "rollback 1 1 --model m", "info m m", "info run", "info photos", "predict photos --model run", "predict m --model photos", "predict run --model m", "predict photos photos photos p.png --model m --json",
        "learn photos/red --model m", "learn m --model m", "learn m --model new", "learn photos --model photos", "learn photos --model photos/red", "learn photos --model run", "serve --model nowhere --port 0", "serve",
        "serve --model m --create --method nothing --port 99999", "serve --model m --host 0.0.0.0 --port 0", "serve --model m --work p.png --port 0", "serve --model m --work /dev/null --port 0",
        "serve --model m --work m --port 0 --host 300.0.0.1", "list", "list methods extra", "list presets released extra", "datasets", "datasets check", "paper nothing", "paper all --scale big", "paper table1 --scale full --out o",
        "study demo", "study nothing --out o", "--debug", "--version --help", "--debug predict nothing --model m", "-h -h", "predict -- --model m", "learn photos --model new --unreadable maybe", "--install-completion", "--show-completion",
    ):  # fmt: skip
        if "completion" in words:
            continue
        add(f"combination: {words}", words.split())


def _environment(add: Callable) -> None:
    cheap = (["list", "methods"], ["info", "m"], ["info", "m", "--json"], ["predict", "p.png", "--model", "m"], ["rename", "red", "rot", "--model", "m"], ["--help"], ["nothing"])  # fmt: skip
    for words in cheap:
        for out, err in (("closed", "file"), ("file", "closed"), ("closed", "closed"), ("pipe", "file"), ("pipe", "pipe"), ("full", "file"), ("file", "full")):  # fmt: skip
            add(f"streams {out}/{err}: {' '.join(words)}", words, real=True, stdout=out, stderr=err)
        for encoding in ("ascii", "latin-1", "cp1252", "utf-16"):
            add(
                f"encoding {encoding}: {' '.join(words)}",
                words,
                env={"PYTHONIOENCODING": encoding},
                encoding=encoding,
            )
    surroundings: dict[str, dict] = {
        "no home": {"HOME": None}, "home file": {"HOME": "/dev/null"}, "home missing": {"HOME": "/nonexistent/x"}, "home relative": {"HOME": "x"}, "home empty": {"HOME": ""},
        "tmp missing": {"TMPDIR": "/nonexistent"}, "tmp file": {"TMPDIR": "/dev/null"}, "tmp long": {"TMPDIR": "/" + "x" * 4000}, "C": {"LANG": "C", "LC_ALL": "C"}, "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        "locale": {"LC_ALL": "tlh_KL.KOI8", "LANG": "\x01"}, "columns": {"COLUMNS": "0"}, "columns-": {"COLUMNS": "-5"}, "columnsx": {"COLUMNS": "wide"}, "columns1": {"COLUMNS": "1"}, "columnsbig": {"COLUMNS": "999999999"},
        "term": {"TERM": "\x1b", "LINES": "x"}, "colour": {"FORCE_COLOR": "1", "NO_COLOR": "1"}, "omp": {"OMP_NUM_THREADS": "lots"}, "omp0": {"OMP_NUM_THREADS": "0"}, "omp-": {"OMP_NUM_THREADS": "-3"}, "omp9": {"OMP_NUM_THREADS": "99999"},
        "data": {"EASE_DATA": "/dev/null"}, "data2": {"EASE_DATA": ""}, "data3": {"EASE_DATA": "\n"}, "token": {"EASE_TOKEN": ""}, "token2": {"EASE_TOKEN": "\n \x01"}, "shared": {"EASE_SHARED": "/nonexistent"}, "cuda": {"CUDA_VISIBLE_DEVICES": "x,-7"},
        "date": {"TZ": "Mars/Phobos"}, "epoch": {"SOURCE_DATE_EPOCH": "never"}, "hash": {"PYTHONHASHSEED": "5"}, "warn": {"PYTHONWARNINGS": "error"}, "dev": {"PYTHONDEVMODE": "1"}, "opt": {"PYTHONOPTIMIZE": "2"}, "path": {"PATH": ""}, "user": {"USER": None, "LOGNAME": None},
    }  # fmt: skip
    for key, env in surroundings.items():
        for words in (
            ["predict", "p.png", "--model", "m"], ["learn", "photos", "--model", "new", "--method", "simplecil", "--input-size", "16"],
            ["run", "--dataset", "digits", "--limit-per-class", "1", "--input-size", "16", "--method", "simplecil", "--protocol", "B0 Inc5", "--out", "o"], ["datasets", "check", "cifar10"],
        ):  # fmt: skip
            real = key in (
                "C",
                "POSIX",
                "locale",
                "columns",
                "omp",
                "omp0",
                "warn",
                "opt",
                "no home",
                "tmp missing",
            ) and words[0] in ("predict", "learn")
            add(f"environment {key}: {words[0]}", words, env=env, real=real)
