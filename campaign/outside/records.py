# ruff: noqa: E501
"""Records and experiments: damaged record.json, run.json, predictions, golden files, studies and configurations."""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from campaign.outside.case import Case
from campaign.outside.commands import CONFIGS
from campaign.outside.fixtures import Fixtures
from campaign.outside.models import VALUES, changed, leaves

COMMANDS: dict[str, list[str]] = {
    "report": ["report", "r", "--out", "page"], "report-two": ["report", "r", "other", "--out", "page", "--json"], "compare": ["compare", "r", "other"], "compare-json": ["compare", "other", "r", "--json"],
    "compare-file": ["compare", "r/record.json", "other/record.json", "--json"], "info": ["info", "r"], "resume": ["run", "--resume", "r"], "resume-json": ["run", "--resume", "r", "--json"], "same": ["compare", "r", "r"],
    "eval": ["eval", "--model", "r", "--dataset", "digits", "--limit-per-class", "1", "--json"], "pack": ["pack", "r", "--out", "x.ease"], "compact": ["compact", "--model", "r", "--storage", "fp16"], "predict": ["predict", "r", "--model", "r/model"],
}  # fmt: skip
STUDY: dict = {
    "dataset": "digits", "protocol": "B0 Inc5", "methods": ["simplecil"], "seeds": [1], "limit_per_class": 1, "input_size": 16, "title": "x",
}  # fmt: skip


def npz(arrays: dict[str, np.ndarray], allow: bool = False) -> bytes:
    """The bytes of an .npz."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(head: str, data: bytes = b"\0" * 64, version: bytes = b"\1\0") -> bytes:
    """An .npy with any head."""
    text = head.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


def archives() -> dict[str, bytes]:
    """Golden files and predictions that are none."""
    found = {
        "empty": b"", "text": b"hello", "zip without arrays": b"PK\5\6" + b"\0" * 18, "noise": bytes(range(256)) * 20, "npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"),
        "one array": npz({"x": np.zeros(3)}), "empty arrays": npz({"logits": np.zeros((0, 0)), "labels": np.zeros(0)}), "object": npz({"x": np.array([{"a": 1}], dtype=object)}), "strings": npz({"config": np.array("{}")}),
        "json": npz({"config": np.array('{"method": "ease"}'), "meta": np.array("[" * 5000)}), "nan": npz({"logits": np.full((3, 3), np.nan), "labels": np.arange(3)}), "complex": npz({"logits": np.zeros(3, complex)}), "void": npz({"x": np.zeros(3, "V8")}),
    }  # fmt: skip
    for label, head in {
        "huge": "{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999,), }", "negative": "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "pickle": "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "code": "__import__('os').system('id')", "deep": "(" * 3000, "structured": "{'descr': [('a', '<f4', (99999, 99999))], 'fortran_order': False, 'shape': (1,), }", "date": "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,), }", "no": "{}",
    }.items():  # fmt: skip
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in ("logits", "labels", "config", "predictions", "tasks"):
                archive.writestr(f"{name}.npy", npy(head))
        found[f"head {label}"] = buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "logits.npy",
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000,), }", b"\0" * 400_000_000),
        )
    found["bomb"] = buffer.getvalue()
    return found


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family."""
    rng = random.Random(f"{seed}-records")
    found: list[Case] = []

    def add(
        label: str,
        harm: Callable[[Path], object],
        which: str | None = None,
        argv: list[str] | None = None,
        **more,
    ) -> None:
        which = which or rng.choice(list(COMMANDS))
        words = argv or COMMANDS[which]

        def files(folder: Path) -> None:
            fixtures.model("run", folder / "r")
            fixtures.model("other", folder / "other")
            harm(folder / "r")

        found.append(
            Case("records", f"{label}: {which if argv is None else ' '.join(words)}", words, files, **more)
        )

    readers = ("report", "report-two", "compare", "compare-json", "compare-file", "info", "same", "resume")
    for name in ("record.json", "run.json"):
        document = json.loads((fixtures.root / "run" / name).read_bytes())
        paths = list(leaves(document))
        for _ in range(330 if name == "record.json" else 90):
            path, value = rng.choice(paths), rng.choice(VALUES)
            how = rng.choices(("set", "remove", "repeat", "add"), (12, 2, 1, 1))[0]
            text = json.dumps(changed(document, path, value, how)).encode("utf-8", "surrogatepass")
            label = f"{name} {how} {'/'.join(map(str, path))} = {repr(value)[:24]}"
            add(
                label,
                lambda r, text=text, name=name: (r / name).write_bytes(text),
                rng.choice(readers)
                if name == "record.json"
                else rng.choice(("resume", "resume-json", "report", "eval")),
            )
        raw = (fixtures.root / "run" / name).read_bytes()
        for text in (b"", b"{", b"[]", b"null", b"{}", b"5", b'"x"', b"[" * 100000, b'{"a":' * 5000, b"\xff\xfe", raw.decode().encode("utf-16"), b"\xef\xbb\xbf" + raw, raw + raw, raw[:-3], raw.replace(b"90.0", b"NaN"), raw.replace(b"90.0", b"1e999"), raw.replace(b"90.0", b"-0"), b" " * 70_000_000, raw.replace(b'"digits"', b'"<script>alert(1)</script>"'), raw.replace(b'"digits"', b'"\\u001b[31m"'), raw.replace(b'"format": 2', b'"format": 3'), raw.replace(b'"format": 2', b'"format": 1')):  # fmt: skip
            for which in rng.sample((*readers, "resume-json", "eval"), 3):
                add(
                    f"{name} is {text[:12]!r} of {len(text)}",
                    lambda r, text=text, name=name: (r / name).write_bytes(text),
                    which,
                )
        for kind in ("gone", "folder", "fifo", "zero", "loop"):

            def swap(r: Path, name: str = name, kind: str = kind) -> None:
                (r / name).unlink()
                if kind == "folder":
                    (r / name).mkdir()
                elif kind == "fifo":
                    os.mkfifo(r / name)
                elif kind == "zero":
                    os.symlink("/dev/zero", r / name)
                elif kind == "loop":
                    os.symlink(name, r / name)

            for which in COMMANDS:
                add(f"{name} {kind}", swap, which)
    for label, content in archives().items():
        for which in ("compare", "compare-json", "report", "resume"):
            add(
                f"predictions {label}",
                lambda r, content=content: (r / "predictions.npz").write_bytes(content),
                which,
            )
        add(
            f"golden {label}",
            lambda r, content=content: (r / "x.npz").write_bytes(content),
            argv=["verify", "r/x.npz"],
        )
        add(
            f"golden {label}",
            lambda r, content=content: (r / "x.npz").write_bytes(content),
            argv=["verify", "r/x.npz", "--train", "--json"],
        )
        add(
            f"weights {label}",
            lambda r, content=content: (r / "x.npz").write_bytes(content),
            argv=["eval", "--model", "r", "--dataset", "digits", "--weights", "r/x.npz"],
        )
    raw = (fixtures.root / "run" / "predictions.npz").read_bytes()
    for _ in range(40):
        cut, spot = rng.randrange(len(raw)), rng.randrange(len(raw))
        add(
            f"predictions cut {cut}",
            lambda r, cut=cut: (r / "predictions.npz").write_bytes(raw[:cut]),
            rng.choice(("compare", "report", "resume")),
        )
        add(
            f"predictions flip {spot}",
            lambda r, spot=spot: (r / "predictions.npz").write_bytes(
                raw[:spot] + bytes([raw[spot] ^ 0x55]) + raw[spot + 1 :]
            ),
            rng.choice(("compare", "report", "resume")),
        )
    shared = Path(os.environ.get("EASE_SHARED", "/nonexistent")) / "golden"
    for golden in sorted(shared.glob("*.npz"))[:2]:
        whole = golden.read_bytes()
        for _ in range(12):
            cut, spot = rng.randrange(len(whole)), rng.randrange(len(whole))
            add(
                f"golden cut {cut}",
                lambda r, cut=cut, whole=whole: (r / "x.npz").write_bytes(whole[:cut]),
                argv=["verify", "r/x.npz"],
                expect="refused",
            )
            add(
                f"golden flip {spot}",
                lambda r, spot=spot, whole=whole: (r / "x.npz").write_bytes(
                    whole[:spot] + bytes([whole[spot] ^ 0x55]) + whole[spot + 1 :]
                ),
                argv=["verify", "r/x.npz", "--json"],
            )
    for key in ("safetensors", "npz", "pt", "bin", ""):
        for label, content in (("pickle", b"\x80\x04cos\nsystem\n."), ("zero", b"\0" * 1000), ("text", b"x"), ("huge head", b"\xff" * 8 + b"{}"), ("head", (2).to_bytes(8, "little") + b"{}"), ("list", (2).to_bytes(8, "little") + b"[]")):  # fmt: skip
            add(f"weights {label} as {key}", lambda r, content=content, key=key: (r / f"w.{key}").write_bytes(content), argv=["run", "--dataset", "digits", "--limit-per-class", "1", "--weights", f"r/w.{key}", "--out", "o", "--method", "simplecil"])  # fmt: skip
    for _ in range(120):
        path, value = rng.choice(list(leaves(STUDY))), rng.choice(VALUES)
        text = json.dumps(
            changed(STUDY, path, value, rng.choice(("set", "set", "set", "remove", "add")))
        ).encode("utf-8", "surrogatepass")
        add(
            f"study {'/'.join(map(str, path))} = {repr(value)[:24]}",
            lambda r, text=text: (r / "s.yaml").write_bytes(text),
            argv=["study", "r/s.yaml", "--out", "o"],
        )
    for key, content in CONFIGS.items():
        add(
            f"limits {key}",
            lambda r, content=content: (r / "record.json").write_bytes(content),
            rng.choice(readers),
        )
    return found
