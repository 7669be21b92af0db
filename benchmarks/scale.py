"""What 10^5 classes, 10^3 tasks and 10^9 images would take: a calculator that is fed by constants measured here.

    python -m benchmarks.scale constants --out runs/scale.json        # measure this machine, one thread
    python -m benchmarks.scale table --constants runs/scale.json      # bytes, passes, machine hours, cost
    python -m benchmarks.scale index --classes 100000                 # an index for class means; needs faiss-cpu

The table multiplies; it measures nothing. Machines are counted as cores like the one that was measured, all of them
busy. A price per core hour can be given; the default is a round figure, not a quotation.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.storage.files import make_folder, write_atomic
from ease.tuning import build_tuning

BATCH = 16
LAYERS = 4
"""Layers that strata reads, of each the class token and the mean of the patches."""
HOUR = 3600.0


@dataclass(frozen=True)
class Constants:
    """What was measured of one backbone on one core, and what follows from its shape."""

    backbone: str
    dim: int
    depth: int
    parameters: int
    pass_seconds: float
    step_seconds: float
    decode_seconds: float
    multiply_adds: float
    """Multiply-adds per second of a matrix product in fp32."""


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """The shortest of several durations: others on the machine only make it longer."""
    work()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def backbones() -> dict[str, Callable[[], Backbone]]:
    """The embedded ViT; ViTs of usual sizes have random weights, which take as long as trained ones."""
    return {
        "ease-vit": lambda: load_backbone("ease-vit"),
        "deit_tiny_patch16_224": lambda: random_vit("deit_tiny_patch16_224"),
        "vit_base_patch16_224": lambda: random_vit("vit_base_patch16_224"),
    }


def random_vit(name: str) -> Backbone:
    """A ViT of timm with random weights."""
    import timm

    from ease.backbone import Pixels

    vit = timm.create_model(name, pretrained=False, num_classes=0)
    return Backbone(vit, name, "random", Pixels(224, (0.5,) * 3, (0.5,) * 3))


def measure(name: str) -> Constants:
    """All constants of a backbone."""
    backbone = backbones()[name]()
    side = backbone.pixels.size
    pixels = torch.rand(BATCH, 3, side, side)
    adapter = build_tuning("adapter", backbone.shape, {"rank": 64}).train()

    def step() -> None:
        backbone.forward(pixels, adapter).square().mean().backward()

    photo = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (375 // 5, 500 // 5, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((500, 375)).save(photo, "JPEG", quality=90)

    def decode() -> None:
        with Image.open(io.BytesIO(photo.getvalue())) as image:
            image.draft("RGB", (side, side))
            image.convert("RGB").resize((side, side))

    square = torch.rand(1024, 1024)
    return Constants(
        backbone=name,
        dim=backbone.dim,
        depth=backbone.shape.depth,
        parameters=backbone.parameter_count(),
        pass_seconds=best_of(lambda: backbone.features(pixels, [None])) / BATCH,
        step_seconds=best_of(step) / BATCH,
        decode_seconds=best_of(decode),
        multiply_adds=1024**3 / best_of(lambda: square @ square),
    )


@dataclass(frozen=True)
class Plan:
    """How large the problem is."""

    classes: float
    tasks: float
    images: float
    epochs: float = 20


@dataclass(frozen=True)
class Bill:
    """What a method needs for a plan."""

    method: str
    stored_bytes: float
    passes: float
    trained: float
    core_hours: float
    prediction_seconds: float
    solve_seconds: float


def bills(plan: Plan, constants: Constants, cap: int, rank: int = 64) -> list[Bill]:
    """EASE, EASE with a cap on subspaces, and strata."""
    d, tasks, classes, images = constants.dim, plan.tasks, plan.classes, plan.images
    adapter = constants.depth * (2 * d * rank + rank + d)
    width = 2 * min(LAYERS, constants.depth) * d
    speed, found = constants.multiply_adds, []
    for name, spaces in (("ease", tasks), (f"ease, at most {cap} subspaces", min(cap, tasks))):
        # A task's images pass through all subspaces there are; the sum over tasks, without and with a cap.
        seen = images / tasks * (spaces * (spaces + 1) / 2 + (tasks - spaces) * spaces)
        trained = plan.epochs * images * spaces / tasks
        seconds = (
            trained * constants.step_seconds
            + seen * constants.pass_seconds
            + images * constants.decode_seconds
        )
        head = spaces * classes * d / speed
        stored = 4 * (spaces * adapter + spaces * classes * d)
        found.append(
            Bill(name, stored, seen, trained, seconds / HOUR, spaces * constants.pass_seconds + head, 0.0)
        )
    # One pass per image, its outer product into the scatter, and one factorisation per task.
    outer = images * width**2 / 2 / speed
    solve = (width**3 / 3 + classes * width**2) / speed
    seconds = images * (constants.pass_seconds + constants.decode_seconds) + outer + tasks * solve
    stored = 4 * (width * (width + 1) / 2 + classes * width)
    predicting = constants.pass_seconds + (width**2 + classes * width) / speed
    found.append(Bill("strata", stored, images, 0, seconds / HOUR, predicting, solve))
    return found


def size_text(number: float) -> str:
    """Bytes as people write them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError


def table(plan: Plan, all_constants: list[Constants], price: float, days: float, cap: int) -> str:
    """The bills as Markdown."""
    lines = [
        f"{plan.classes:,.0f} classes, {plan.tasks:,.0f} tasks, {plan.images:,.0f} images, {plan.epochs:g} epochs",
        "",
        "| backbone | method | stored | passes | trained images | core hours | cores for "
        f"{days:g} days | cost | one prediction | one solution |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for constants in all_constants:
        for bill in bills(plan, constants, cap):
            solve = f"{bill.solve_seconds:,.1f} s" if bill.solve_seconds else "-"
            lines.append(
                f"| {constants.backbone} | {bill.method} | {size_text(bill.stored_bytes)} | {bill.passes:.2g} | "
                f"{bill.trained:.2g} | {bill.core_hours:,.0f} | {bill.core_hours / 24 / days:,.0f} | "
                f"{bill.core_hours * price:,.0f} | {1000 * bill.prediction_seconds:,.0f} ms | {solve} |"
            )
    return "\n".join(lines)


def measure_index(classes: int, width: int, queries: int, spread: float) -> str:
    """An index of class means against the exact product: recall of the best class, seconds, bytes."""
    try:
        import faiss
    except ImportError:
        raise SystemExit("this measurement needs faiss: pip install faiss-cpu") from None
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    random = np.random.default_rng(0)
    # Class means of real features are not spread evenly: they lie around some hundred themes.
    themes = random.standard_normal((300, width), dtype=np.float32)
    means = themes[random.integers(0, 300, classes)] + random.standard_normal(
        (classes, width), dtype=np.float32
    )
    asked = random.integers(0, classes, queries)
    images = means[asked] + spread * random.standard_normal((queries, width), dtype=np.float32)
    for rows in (means, images):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    tensors = torch.from_numpy(means), torch.from_numpy(images)
    exact = (tensors[1] @ tensors[0].mT).argmax(dim=1).numpy()
    seconds = best_of(lambda: (tensors[1] @ tensors[0].mT).argmax(dim=1)) / queries
    one = best_of(lambda: (tensors[0] @ tensors[1][0]).argmax())
    lines = [
        f"{classes:,} classes, {width} numbers each, {queries} queries, one thread; exact answers are right for "
        f"{100 * np.mean(exact == asked):.1f} % of them",
        "",
        "| index | bytes | built in | per query, in a batch | alone | same answer as exact |",
        "|---|---:|---:|---:|---:|---:|",
        f"| exact product | {size_text(means.nbytes)} | - | {1e3 * seconds:.2f} ms | {1e3 * one:.2f} ms | 100 % |",
    ]
    kinds = {
        "IVF1024, 16 lists": ("IVF1024,Flat", {"nprobe": 16}),
        "IVF1024, 64 lists": ("IVF1024,Flat", {"nprobe": 64}),
        "HNSW32": ("HNSW32,Flat", {}),
        "PQ96": ("PQ96", {}),
        "IVF1024, PQ96, 64 lists, 100 exact": ("IVF1024,PQ96,RFlat", {"nprobe": 64}),
    }
    for name, (factory, options) in kinds.items():
        index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        start = time.perf_counter()
        index.train(means)
        index.add(means)
        built = time.perf_counter() - start
        for option, value in options.items():
            faiss.extract_index_ivf(index).__setattr__(option, value)
        if factory.endswith("RFlat"):
            index.k_factor = 100
        found = index.search(images, 1)[1][:, 0]
        batch = best_of(lambda index=index: index.search(images, 1)) / queries  # type: ignore[misc]
        alone = best_of(lambda index=index: index.search(images[:1], 1))  # type: ignore[misc]
        size = faiss.serialize_index(index).nbytes
        lines.append(
            f"| {name} | {size_text(size)} | {built:.1f} s | {1e3 * batch:.2f} ms | {1e3 * alone:.2f} ms | "
            f"{100 * np.mean(found == exact):.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    measuring = parts.add_parser("constants")
    measuring.add_argument("--backbones", default=",".join(backbones()))
    measuring.add_argument("--out", type=Path)
    counting = parts.add_parser("table")
    counting.add_argument("--constants", type=Path, required=True)
    counting.add_argument("--classes", type=float, default=1e5)
    counting.add_argument("--tasks", type=float, default=1e3)
    counting.add_argument("--images", type=float, default=1e9)
    counting.add_argument("--price", type=float, default=0.04, help="of a core hour")
    counting.add_argument("--days", type=float, default=7)
    counting.add_argument("--cap", type=int, default=10, help="most subspaces of EASE with a cap")
    indexing = parts.add_parser("index")
    indexing.add_argument("--classes", type=int, default=100_000)
    indexing.add_argument("--width", type=int, default=768)
    indexing.add_argument("--queries", type=int, default=1000)
    indexing.add_argument("--spread", type=float, default=1.5, help="of images around their class mean")
    asked = parser.parse_args()
    if asked.part == "constants":
        torch.set_num_threads(1)
        found = [asdict(measure(name)) for name in asked.backbones.split(",")]
        text = json.dumps(found, indent=1)
        print(text)
        if asked.out is not None:
            make_folder(asked.out.parent)
            write_atomic(asked.out, text.encode())
    elif asked.part == "table":
        constants = [Constants(**one) for one in json.loads(asked.constants.read_text())]
        plan = Plan(asked.classes, asked.tasks, asked.images)
        print(table(plan, constants, asked.price, asked.days, asked.cap))
    else:
        print(measure_index(asked.classes, asked.width, asked.queries, asked.spread))


if __name__ == "__main__":
    main()
