"""What all families start from: small photos, models of several methods, a run and a packed model."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

MODELS = ("small", "strata", "trained", "compacted", "ridge")
COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 200), "yellow": (220, 210, 30)}


def picture(name: str, at: int, size: tuple[int, int] = (24, 24)) -> Image.Image:
    """A coloured picture with some noise; equal arguments give equal pictures."""
    rng = random.Random(f"{name}-{at}")
    image = Image.new("RGB", size, COLOURS.get(name) or tuple(rng.randrange(256) for _ in range(3)))
    for _ in range(60):
        spot = rng.randrange(size[0]), rng.randrange(size[1])
        image.putpixel(spot, tuple(rng.randrange(256) for _ in range(3)))
    return image


def photos(folder: Path, names: tuple[str, ...] = ("red", "green", "blue"), count: int = 4) -> Path:
    """Write a folder of pictures for each class."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(count):
            picture(name, at).save(folder / name / f"{at}.png")
    return folder


def sealed(manifest: dict) -> bytes:
    """Encode a manifest with its checksum, as docs/format.md says."""

    def encode(value: dict) -> bytes:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n"
        try:
            return text.encode()
        except UnicodeEncodeError:
            return (json.dumps(value, indent=1, ensure_ascii=True, allow_nan=True) + "\n").encode()

    bare = {key: value for key, value in manifest.items() if key != "checksum"}
    return encode({**bare, "checksum": hashlib.sha256(encode(bare)).hexdigest()})


@dataclass
class Fixtures:
    """Paths of what was made once for the whole campaign."""

    root: Path

    def model(self, name: str, to: Path) -> Path:
        """Copy a model, so that a case may harm it."""
        shutil.copytree(self.root / name, to, symlinks=True)
        return to

    @property
    def packed(self) -> Path:
        return self.root / "small.ease"


def ease(source: Path, cwd: Path, *argv: str) -> str:
    """Run a command that must succeed, in a new process."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    code = "import sys; from ease.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"ease {' '.join(argv)}: {done.stderr}")
    return done.stdout


def build(root: Path, source: Path) -> Fixtures:
    """Make all fixtures below `root`; takes about a minute."""
    root.mkdir(parents=True, exist_ok=True)
    photos(root / "photos")
    photos(root / "more", ("yellow",), 3)
    size = ("--input-size", "16", "--seed", "3")
    for name, options in (
        ("small", ["--method", "simplecil"]),
        ("strata", ["--thumbnails"]),
        ("trained", ["--method", "ease", "--set", "epochs=1", "--set", "adapt=always"]),
        ("ridge", ["--method", "ranpac", "--set", "epochs=1", "--set", "projection=32"]),
    ):
        try:
            ease(source, root, "learn", "photos", "--model", name, *size, *options)
        except RuntimeError:
            if name != "ridge":
                raise
            ease(source, root, "learn", "photos", "--model", name, *size, "--method", "fecam")
        ease(source, root, "learn", "more", "--model", name)
    shutil.copytree(root / "trained", root / "compacted")
    ease(
        source,
        root,
        "compact",
        "--model",
        "compacted",
        "--storage",
        "int8",
        "--energy",
        "0.9",
        "--forget-history",
        "--yes",
    )
    ease(source, root, "pack", "small", "--out", "small.ease")
    run = (
        "run",
        "--dataset",
        "digits",
        "--limit-per-class",
        "2",
        "--input-size",
        "16",
        "--protocol",
        "B0 Inc5",
    )
    for name, method in (("run", "simplecil"), ("other", "fecam")):
        ease(source, root, *run, "--method", method, "--out", name)
    picture("red", 99).save(root / "p.png")
    answers = {}
    for name in MODELS:
        told = json.loads(ease(source, root, "predict", "p.png", "--model", name, "--json"))
        answers[name] = [entry["name"] for entry in told["predictions"][0]["classes"]]
    (root / "answers.json").write_text(json.dumps(answers))
    return Fixtures(root)
