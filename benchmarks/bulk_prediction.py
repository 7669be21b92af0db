"""Predict many images to Parquet under a limit of memory, killed twice on the way: each image has one row.

    python -m benchmarks.bulk_prediction [--images 10000] [--address-space-mb 3000] [--out DIR]

Small images are drawn, a model is taught on digits, and `ease predict FOLDER --out rows.parquet` runs in a process
whose address space is limited. It is killed with SIGKILL at two random moments and run again. The figures are those of
all processes together: images per second while predicting, and the largest resident memory of any of them.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 32
"""Side length of the images and of the model's input."""
PER_FOLDER = 500


def draw_images(folder: Path, count: int) -> None:
    """Write small JPEGs of noise on a colour, in folders of `PER_FOLDER`."""
    chance = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"{number // PER_FOLDER:04d}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = chance.integers(0, 256, 3) // 2 + chance.integers(0, 128, (SIDE, SIDE, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:06d}.jpg")


def teach(model: Path) -> None:
    """A model of ten digits."""
    from ease import Classifier
    from ease.streams.datasets import load_dataset

    data = load_dataset("digits", None, 20)
    classes = {
        name: [data.train.of_classes([label]).image(i) for i in range(20)]
        for label, name in enumerate(data.class_names)
    }
    Classifier.create(model, input_size=SIDE).learn(classes)


def rows_done(out: Path) -> int:
    """Rows that are safe so far."""
    try:
        return int(json.loads((Path(f"{out}.parts") / "state.json").read_text())["rows"])
    except (OSError, ValueError):
        return 0


def main() -> None:
    """Run the benchmark and print its figures as JSON."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--images", type=int, default=10_000)
    options.add_argument("--address-space-mb", type=int, default=3000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, default=None, help="where the rows are kept; default: nowhere")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="ease-bulk-") as name:
        folder = Path(name)
        photos, model, out = folder / "photos", folder / "model", folder / "rows.parquet"
        draw_images(photos, given.images)
        teach(model)
        command = [sys.executable, "-m", "ease", "predict", photos, "--model", model, "--out", out]
        limit = given.address_space_mb * 2**20

        def bounded() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        chance, killed, seconds = random.Random(given.seed), [], 0.0
        moments = sorted(chance.sample(range(given.images // 20, given.images * 9 // 10), 2))
        for moment in [*moments, None]:
            started = time.perf_counter()
            running = subprocess.Popen(list(map(str, command)), preexec_fn=bounded)
            while running.poll() is None and (moment is None or rows_done(out) < moment):
                time.sleep(0.02)
            if moment is not None:
                time.sleep(chance.random())
                running.send_signal(signal.SIGKILL)
                killed.append(rows_done(out))
            code = running.wait()
            assert code == (0 if moment is None else -signal.SIGKILL), code
            seconds += time.perf_counter() - started
        import pyarrow.parquet

        files = pyarrow.parquet.read_table(out)["file"].to_pylist()
        expected = [str(path) for path in sorted(photos.rglob("*.jpg"))]
        figures = {
            "images": given.images,
            "rows": len(files),
            "each image once, in order": files == expected,
            "killed after rows": killed,
            "seconds, three starts included": round(seconds, 1),
            "images per second": round(given.images / seconds, 1),
            "address space MB": given.address_space_mb,
            "largest resident MB": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
            "parquet kB": round(out.stat().st_size / 1000),
        }
        print(json.dumps(figures, indent=1))
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            shutil.copy(out, given.out)
        assert files == expected


if __name__ == "__main__":
    main()
