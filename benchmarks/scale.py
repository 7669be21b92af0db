"""What 10^5 classes, 10^3 tasks and 10^9 images would take: a calculator that is fed by constants measured here.

    python -m benchmarks.scale constants --out runs/scale.json        # measure this machine, one thread
    python -m benchmarks.scale table --constants runs/scale.json      # bytes, passes, core hours, machines, cost
    python -m benchmarks.scale limits --constants runs/scale.json     # what each design limit takes
    python -m benchmarks.scale check --constants runs/scale.json      # two of the formulas against what is measured
    python -m benchmarks.scale index --classes 100000                 # an index for class means; needs faiss-cpu

The tables multiply; they measure nothing. Machines are counted in cores like the one that was measured, all of them
busy. The price of a core hour, the cores of a machine and the bytes of a photo are assumptions that can be given.
Seconds are those of the processor, with one thread: others on the machine do not count.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.heads.left_out import left_out_scores
from ease.heads.whitened import WhitenedHead
from ease.storage.files import make_folder, write_atomic
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
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
    pass_seconds: dict[str, float]
    """Of one image in a batch, without gradients, by precision."""
    step_seconds: dict[str, float]
    """Of one image in a batch, forwards and backwards with an adapter, by precision."""
    decode_seconds: float
    """To decode a JPEG of 500 x 375 pixels and scale it to the size of the backbone's input."""
    multiply_adds: float
    """Multiply-adds per second of a matrix product in fp32."""
    multiply_adds_fp64: float
    """The same in fp64, in which sums and solutions are computed."""

    @property
    def width(self) -> int:
        """Numbers of a feature of strata: class token and mean patch token of the last blocks."""
        return 2 * min(LAYERS, self.depth) * self.dim


PRECISIONS = ("32-true", "bf16-mixed")


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """The shortest of several durations in processor seconds: others on the machine only make it longer."""
    work()
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
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
    passes, steps = {}, {}
    for precision in PRECISIONS:
        engine = Engine(backbone, Transforms.raw(backbone.pixels), precision=precision)  # type: ignore[arg-type]

        def step(engine: Engine = engine) -> None:
            with engine.fabric.autocast():
                loss = backbone.forward(pixels, adapter).float().square().mean()
            loss.backward()

        def one_pass(engine: Engine = engine) -> None:
            engine.features_of_pixels(pixels, [None])

        passes[precision] = best_of(one_pass) / BATCH
        steps[precision] = best_of(step) / BATCH

    photo = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (375 // 5, 500 // 5, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((500, 375)).save(photo, "JPEG", quality=90)

    def decode() -> None:
        with Image.open(io.BytesIO(photo.getvalue())) as image:
            image.draft("RGB", (side, side))
            image.convert("RGB").resize((side, side))

    single = torch.rand(1024, 1024)
    double = single.double()
    return Constants(
        backbone=name,
        dim=backbone.dim,
        depth=backbone.shape.depth,
        parameters=backbone.parameter_count(),
        pass_seconds=passes,
        step_seconds=steps,
        decode_seconds=best_of(lambda: [decode() for _ in range(10)]) / 10,
        multiply_adds=10 * 1024**3 / best_of(lambda: [single @ single for _ in range(10)]),
        multiply_adds_fp64=10 * 1024**3 / best_of(lambda: [double @ double for _ in range(10)]),
    )


@dataclass(frozen=True)
class Plan:
    """How large the problem is, and how it is computed."""

    classes: float
    tasks: float
    images: float
    epochs: float = 20
    precision: str = "bf16-mixed"


@dataclass(frozen=True)
class Bill:
    """What a method needs for a plan."""

    method: str
    stored_bytes: float
    memory_bytes: float
    """Of the classifier of a process that predicts."""
    passes: float
    trained: float
    hours: dict[str, float]
    """Core hours by what they are spent on."""
    prediction_seconds: float
    head_seconds: float
    """Of it, without the passes."""
    solve_seconds: float
    """To compute the classifier once, after the last task."""

    @property
    def core_hours(self) -> float:
        """All of them."""
        return sum(self.hours.values())


def bills(plan: Plan, constants: Constants, cap: int, sample: float = 1000, rank: int = 64) -> list[Bill]:
    """EASE, EASE with a cap on subspaces, strata, and strata that scores only a sample of a task's images.

    Args:
        plan: The problem.
        constants: What was measured.
        cap: Most subspaces of EASE with a cap.
        sample: Images per task of which the last row computes leave-one-out scores.
        rank: Of EASE's adapters.
    """
    return [
        ease_bill("ease", plan, constants, plan.tasks, rank),
        ease_bill(f"ease, at most {cap} subspaces", plan, constants, min(cap, plan.tasks), rank),
        strata_bill("strata", plan, constants, plan.images),
        strata_bill(
            f"strata, {sample:,.0f} left-out scores per task",
            plan,
            constants,
            min(plan.images, sample * plan.tasks),
        ),
    ]


def ease_bill(name: str, plan: Plan, constants: Constants, spaces: float, rank: int) -> Bill:
    """EASE with so many subspaces, trained on the first tasks."""
    d, tasks, classes, images = constants.dim, plan.tasks, plan.classes, plan.images
    adapter = constants.depth * (2 * d * rank + rank + d)
    # A task's images pass through all subspaces there are, and its classes get a prototype in each: a triangle over the
    # first tasks, a rectangle over the others.
    both = spaces * (spaces + 1) / 2 + (tasks - spaces) * spaces
    seen, cells = images / tasks * both, classes / tasks * both
    trained = plan.epochs * images * spaces / tasks
    # Each missing prototype is a mixture of all real ones in its subspace: similarities and mixture, n^2 d each.
    pairs = sum((space - 1) * (tasks - space + 1) for space in range(1, int(spaces) + 1))
    complement = 2 * d * (classes / tasks) ** 2 * pairs / constants.multiply_adds
    head = spaces * classes * d / constants.multiply_adds
    seconds = {
        "training": trained * constants.step_seconds[plan.precision],
        "passes": seen * constants.pass_seconds[plan.precision],
        "decoding": (trained + images) * constants.decode_seconds,
        "statistics": complement,  # once; not after each task
    }
    return Bill(
        name,
        stored_bytes=4 * (spaces * adapter + cells * d),
        memory_bytes=4 * (spaces * adapter + spaces * classes * d),
        passes=seen,
        trained=trained,
        hours={what: each / HOUR for what, each in seconds.items()},
        prediction_seconds=spaces * constants.pass_seconds[plan.precision] + head,
        head_seconds=head,
        solve_seconds=complement,
    )


def strata_bill(name: str, plan: Plan, constants: Constants, scored: float) -> Bill:
    """One pass per image, its outer product into the scatter, one solution per task, leave-one-out scores of some."""
    width, classes, tasks = constants.width, plan.classes, plan.tasks
    head = (width**2 + classes * width) / constants.multiply_adds
    seconds = {
        "training": 0.0,
        "passes": plan.images * constants.pass_seconds[plan.precision],
        "decoding": plan.images * constants.decode_seconds,
        # The product of a matrix with itself is computed whole, in fp64; on average half of the classes are known.
        "statistics": (
            plan.images * width**2
            + tasks * solution(width, classes / 2)
            + scored * left_out(width, classes / 2)
        )
        / constants.multiply_adds_fp64,
    }
    return Bill(
        name,
        stored_bytes=4 * (width * (width + 1) / 2 + classes * width),
        # Sums in fp64, what predicts in fp32.
        memory_bytes=(8 + 4) * (width**2 + classes * width),
        passes=plan.images,
        trained=0,
        hours={what: each / HOUR for what, each in seconds.items()},
        prediction_seconds=constants.pass_seconds[plan.precision] + head,
        head_seconds=head,
        solve_seconds=solution(width, classes) / constants.multiply_adds_fp64,
    )


def solution(width: float, classes: float) -> float:
    """Multiply-adds of a whitening: Cholesky, the inverse of its factor, and all class means whitened by it."""
    return width**3 / 6 + width**3 / 2 + classes * width**2


def left_out(width: float, classes: float) -> float:
    """Multiply-adds of the leave-one-out scores of an image: it, and each term the covariance loses, against all means.

    There are 1 + 2 * LAYERS such terms; two more products are with the image itself.
    """
    return (3 + 2 * LAYERS) * classes * width + 2 * width**2


def size_text(number: float) -> str:
    """Bytes as people write them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError


@dataclass(frozen=True)
class Assumed:
    """What is not measured."""

    price: float
    """Of a core hour."""
    days: float
    cores: float
    """Of a machine."""


def table(plan: Plan, all_constants: list[Constants], assumed: Assumed, cap: int) -> str:
    """The bills as Markdown: what a model takes, and what learning takes."""
    both = [(constants, bill) for constants in all_constants for bill in bills(plan, constants, cap)]
    lines = [
        f"{plan.classes:,.0f} classes, {plan.tasks:,.0f} tasks, {plan.images:,.0f} images, {plan.epochs:g} epochs, "
        f"{plan.precision}",
        "",
        "| backbone | method | on disk | in memory | one prediction | of it the head | one solution |",
        "|---|---|" + "---:|" * 5,
    ]
    for constants, bill in both:
        times = (bill.prediction_seconds, bill.head_seconds, bill.solve_seconds)
        cells = [*map(size_text, (bill.stored_bytes, bill.memory_bytes)), *map(time_text, times)]
        lines.append(f"| {constants.backbone} | {bill.method} | {' | '.join(cells)} |")
    lines += [
        "",
        "| backbone | method | passes | trained images | core hours: training | passes | decoding | statistics | all | "
        f"machines of {assumed.cores:g} cores for {assumed.days:g} days | cost |",
        "|---|---|" + "---:|" * 9,
    ]
    for constants, bill in both:
        machines = bill.core_hours / 24 / assumed.days / assumed.cores
        cells = [
            *(f"{each:.2g}" for each in (bill.passes, bill.trained)),
            *(rounded(each) for each in bill.hours.values()),
            rounded(bill.core_hours),
            rounded(math.ceil(machines)),
            rounded(bill.core_hours * assumed.price),
        ]
        lines.append(f"| {constants.backbone} | {bill.method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def constants_table(all_constants: list[Constants]) -> str:
    """What was measured, as Markdown."""
    rows: dict[str, Callable[[Constants], str]] = {
        "parameters": lambda c: rounded(c.parameters),
        "pass, fp32": lambda c: time_text(c.pass_seconds["32-true"]),
        "pass, bf16": lambda c: time_text(c.pass_seconds["bf16-mixed"]),
        "step, fp32": lambda c: time_text(c.step_seconds["32-true"]),
        "step, bf16": lambda c: time_text(c.step_seconds["bf16-mixed"]),
        "decoding a JPEG": lambda c: time_text(c.decode_seconds),
        "multiply-adds per second, fp32": lambda c: f"{c.multiply_adds:.2g}",
        "multiply-adds per second, fp64": lambda c: f"{c.multiply_adds_fp64:.2g}",
    }
    return by_backbone(all_constants, rows)


def by_backbone(all_constants: list[Constants], rows: dict[str, Callable[[Constants], str]]) -> str:
    """One row per quantity, one column per backbone."""
    lines = [f"| | {' | '.join(each.backbone for each in all_constants)} |"]
    lines.append("|---|" + "---:|" * len(all_constants))
    lines += [f"| {name} | {' | '.join(map(text, all_constants))} |" for name, text in rows.items()]
    return "\n".join(lines)


def limits(plan: Plan, all_constants: list[Constants], assumed: Assumed, photo: float, answers: float) -> str:
    """Where a part of the design takes more than a machine has, as Markdown."""
    a_task, rate = plan.images / plan.tasks, plan.images / assumed.days / 24 / HOUR
    rows: dict[str, Callable[[Constants], str]] = {
        "K": lambda c: f"{c.width:,}",
        "scatter on disk, K (K + 1) / 2 in fp32": lambda c: size_text(2 * c.width * (c.width + 1)),
        "scatter in memory, K^2 in fp64": lambda c: size_text(8 * c.width**2),
        "the same with the tokens of all blocks": lambda c: size_text(8 * (2 * c.depth * c.dim) ** 2),
        "class means on disk, C K in fp32": lambda c: size_text(4 * plan.classes * c.width),
        "one image against all class means, fp32": lambda c: time_text(
            plan.classes * c.width / c.multiply_adds
        ),
        "for comparison, its pass": lambda c: time_text(c.pass_seconds[plan.precision]),
        "its left-out scores, if it is learned": lambda c: time_text(
            left_out(c.width, plan.classes) / c.multiply_adds_fp64
        ),
        "features of one task, in memory": lambda c: size_text(4 * a_task * c.width),
        "left-out scores of one task, in memory": lambda c: size_text(4 * a_task * plan.classes),
        "cores that only decode": lambda c: f"{rate * c.decode_seconds:.1f}",
    }
    lines = [
        by_backbone(all_constants, rows),
        "",
        f"Ingress for {assumed.days:g} days: {rate:,.0f} images per second; at {size_text(photo)} each "
        f"{size_text(rate * photo)}/s, {size_text(plan.images * photo)} in all; {math.ceil(rate / answers):,} "
        f"processes of `ease serve` at {answers:g} answers/s, if every image came as a request.",
    ]
    return "\n".join(lines)


def rounded(number: float) -> str:
    """Three digits are more than such a table can know."""
    digits = max(0, len(f"{number:.0f}") - 3)
    return f"{round(number, -digits):,.0f}"


def time_text(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    for unit, size in (("days", 86400.0), ("h", HOUR), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size or unit == "ms":
            return (
                f"{seconds / size:,.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:,.0f} {unit}"
            )
    raise AssertionError


def check(constants: Constants, classes: int, images: int = 32) -> str:
    """A solution and left-out scores of strata with random statistics: measured, and by the formulas."""
    torch.set_num_threads(1)
    width = constants.width
    head = WhitenedHead(width, parts=2 * LAYERS)
    head.means = torch.randn(classes, width, dtype=torch.float64)
    head.counts = torch.full((classes,), 5)
    head.freedom = 4 * classes
    rows = torch.randn(2 * width, width, dtype=torch.float64)
    head.scatter = rows.mT @ rows
    start = time.process_time()
    head.whitening()
    solved = time.process_time() - start
    features, labels = torch.randn(images, width), torch.arange(images) % classes
    scored = best_of(lambda: left_out_scores(head, features, labels), times=1) / images
    speed = constants.multiply_adds_fp64
    return "\n".join(
        [
            f"| {classes:,} classes, K = {width:,} | measured | formula |",
            "|---|---:|---:|",
            f"| one solution | {time_text(solved)} | {time_text(solution(width, classes) / speed)} |",
            f"| left-out scores of an image | {time_text(scored)} | {time_text(left_out(width, classes) / speed)} |",
        ]
    )


def measure_index(classes: int, width: int, queries: int, spreads: list[float]) -> str:
    """An index of class means against the exact product: seconds, bytes, and how often both give the same class.

    Args:
        classes: Number of class means.
        width: Numbers of each.
        queries: Images asked for, at each spread.
        spreads: Of images around their class mean. With a small one every index is right: the exact product has to be
            wrong now and then for the comparison to say anything.
    """
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
    noise = random.standard_normal((queries, width), dtype=np.float32)
    sets = [means[asked] + spread * noise for spread in spreads]
    for rows in (means, *sets):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    known, images = torch.from_numpy(means), torch.from_numpy(sets[0])
    exact = [(torch.from_numpy(rows) @ known.mT).argmax(dim=1).numpy() for rows in sets]
    seconds = best_of(lambda: (images @ known.mT).argmax(dim=1)) / queries
    one = best_of(lambda: (known @ images[0]).argmax())
    right = [f"{100 * np.mean(found == asked):.1f} %" for found in exact]
    same = " | ".join(f"same answer, spread {spread:g}" for spread in spreads)
    lines = [
        f"{classes:,} classes, {width} numbers each, {queries} queries, one thread; the exact product is right for "
        f"{', '.join(right)} at spreads {', '.join(f'{spread:g}' for spread in spreads)}",
        "",
        f"| index | bytes | built in | per query, in a batch | alone | {same} |",
        "|---|" + "---:|" * (4 + len(spreads)),
        f"| exact product | {size_text(means.nbytes)} | - | {1e3 * seconds:.2f} ms | {1e3 * one:.2f} ms | "
        + " | ".join(["100 %"] * len(spreads))
        + " |",
    ]
    kinds = {
        "IVF1024, 16 lists": ("IVF1024,Flat", {"nprobe": 16}),
        "IVF1024, 64 lists": ("IVF1024,Flat", {"nprobe": 64}),
        "HNSW32, 16 candidates": ("HNSW32,Flat", {"efSearch": 16}),  # the library's default
        "HNSW32, 256 candidates": ("HNSW32,Flat", {"efSearch": 256}),
        "PQ96": ("PQ96", {}),
        "IVF1024, PQ96, 64 lists, 100 exact": ("IVF1024,PQ96,RFlat", {"nprobe": 64}),
    }
    print("\n".join(lines), flush=True)
    for name, (factory, options) in kinds.items():
        index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        start = time.process_time()
        index.train(means)
        index.add(means)
        built = time.process_time() - start
        for option, value in options.items():
            searched = index.hnsw if factory.startswith("HNSW") else faiss.extract_index_ivf(index)
            setattr(searched, option, value)
        if factory.endswith("RFlat"):
            index.k_factor = 100
        batch = best_of(lambda index=index: index.search(sets[0], 1)) / queries  # type: ignore[misc]
        alone = best_of(lambda index=index: index.search(sets[0][:1], 1))  # type: ignore[misc]
        found = [
            np.mean(index.search(rows, 1)[1][:, 0] == best) for rows, best in zip(sets, exact, strict=True)
        ]
        size = faiss.serialize_index(index).nbytes
        agreement = " | ".join(f"{100 * each:.1f} %" for each in found)
        lines.append(
            f"| {name} | {size_text(size)} | {built:.1f} s | {1e3 * batch:.2f} ms | {1e3 * alone:.2f} ms | "
            f"{agreement} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    measuring = parts.add_parser("constants")
    measuring.add_argument("--backbones", default=",".join(backbones()))
    measuring.add_argument("--out", type=Path)
    for name in ("table", "limits"):
        counting = parts.add_parser(name)
        counting.add_argument("--constants", type=Path, required=True)
        counting.add_argument("--classes", type=float, default=1e5)
        counting.add_argument("--tasks", type=float, default=1e3)
        counting.add_argument("--images", type=float, default=1e9)
        counting.add_argument("--precision", choices=PRECISIONS, default="bf16-mixed")
        counting.add_argument("--price", type=float, default=0.04, help="of a core hour")
        counting.add_argument("--days", type=float, default=7)
        counting.add_argument("--cores", type=float, default=64, help="of a machine")
        counting.add_argument("--cap", type=int, default=10, help="most subspaces of EASE with a cap")
        counting.add_argument("--photo", type=float, default=1e5, help="bytes of a photo")
        counting.add_argument("--answers", type=float, default=66.6, help="per second of a server process")
    checking = parts.add_parser("check")
    checking.add_argument("--constants", type=Path, required=True)
    checking.add_argument("--classes", type=int, default=20_000)
    indexing = parts.add_parser("index")
    indexing.add_argument("--classes", type=int, default=100_000)
    indexing.add_argument("--width", type=int, default=768)
    indexing.add_argument("--queries", type=int, default=1000)
    indexing.add_argument("--spreads", default="1.5,6,9", help="of images around their class mean")
    asked = parser.parse_args()
    if asked.part == "constants":
        torch.set_num_threads(1)
        found = [asdict(measure(name)) for name in asked.backbones.split(",")]
        text = json.dumps(found, indent=1)
        print(constants_table([Constants(**one) for one in found]))
        if asked.out is not None:
            make_folder(asked.out.parent)
            write_atomic(asked.out, text.encode())
    elif asked.part in ("table", "limits"):
        constants = [Constants(**one) for one in json.loads(asked.constants.read_text())]
        plan = Plan(asked.classes, asked.tasks, asked.images, precision=asked.precision)
        assumed = Assumed(asked.price, asked.days, asked.cores)
        if asked.part == "table":
            print(table(plan, constants, assumed, asked.cap))
        else:
            print(limits(plan, constants, assumed, asked.photo, asked.answers))
    elif asked.part == "check":
        print(check(Constants(**json.loads(asked.constants.read_text())[0]), asked.classes))
    else:
        spreads = [float(each) for each in asked.spreads.split(",")]
        measure_index(asked.classes, asked.width, asked.queries, spreads)


if __name__ == "__main__":
    main()
