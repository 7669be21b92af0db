"""What is measured: a backbone, a stream of 20 tasks and how it is learned; the same for both implementations."""

from __future__ import annotations

import argparse
import copy
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from benchmarks.naive import NaiveEase, Recipe, Subspace
from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.errors import EaseError
from ease.methods.ease import Ease, EaseSettings
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.datasets import load_dataset
from ease.streams.protocol import make_stream
from ease.streams.transforms import DRAWS, Transforms
from ease.training.engine import Engine
from ease.training.hardware import Precision
from ease.training.randomness import counter, permutation, uniforms
from ease.tuning import Adapter

SEED = 1993
BATCH = 64
"""Images per batch where nothing is trained."""

_FIXED: dict[str, Any] = {"sigma": 10.0, "batch_size": 16, "adapt": "always"}


@dataclass(frozen=True)
class Case:
    """One backbone and what it learns.

    Attributes:
        backbone: its name.
        dataset: `glyphs`, or `cifar100-200`, the subset in `$EASE_SHARED`.
        protocol: how classes are cut into tasks.
        train: training images per class.
        test: test images per class.
        settings: of EASE.
        input_size: side length; the model's own when None.
        classes: only the first ones; all when None.
    """

    backbone: str
    dataset: str
    protocol: str
    train: int
    test: int
    settings: dict[str, Any]
    input_size: int | None = None
    classes: int | None = None

    @property
    def weights(self) -> Path | None:
        """Its weights file; None if they come with the package."""
        return None if self.backbone == "ease-vit" else shared() / "weights" / f"{self.backbone}.safetensors"

    def lacks(self) -> str | None:
        """Why it cannot be measured here, in one line."""
        wanted = [] if self.weights is None else [self.weights]
        if self.dataset != "glyphs":
            wanted.append(_tar(self.dataset))
        if wanted and "EASE_SHARED" not in os.environ:
            return f"{self.backbone} is left out: set EASE_SHARED to a folder with weights/ and data/"
        gone = [path.name for path in wanted if not path.is_file()]
        return f"{self.backbone} is left out: EASE_SHARED has no {gone[0]}" if gone else None


CASES = {
    case.backbone: case
    for case in (
        Case("ease-vit", "glyphs", "B0 Inc3", 10, 4, {**_FIXED, "epochs": 5, "lr": 0.2}),
        Case(
            "deit_tiny_patch16_224", "cifar100-200", "B0 Inc5", 4, 2, {**_FIXED, "epochs": 5, "lr": 0.1}, 128
        ),
    )
}
"""Train and test images in the proportions of the data: 45 to 18 of each class in glyphs, 200 to 100 in the subset."""


def quick(case: Case) -> Case:
    """The same in seconds: three tasks of small pictures."""
    return replace(
        case,
        input_size=2 * (8 if case.backbone == "ease-vit" else 16),
        protocol="B0 Inc2",
        classes=6,
        train=5,
        test=2,
        settings={**case.settings, "epochs": 2},
    )


def brief(case: Case) -> Case:
    """For the memory of a run: hardly any training."""
    case = replace(case, settings={**case.settings, "epochs": 1})
    return case if case.classes is not None else replace(case, train=2, test=2)


def crowded(case: Case) -> Case:
    """The same with more than 16 MB of test features; as a quick one with no more than it has."""
    case = brief(case)
    if case.classes is not None:
        return case
    if case.dataset == "glyphs":  # 18 test images of 60 classes in 20 subspaces are a little less than that
        return replace(case, protocol="B0 Inc2", test=13)
    return replace(case, test=12)


def parser_for_one_case(about: str | None) -> argparse.ArgumentParser:
    """The options of a script that looks at one backbone; see `asked_for`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=list(CASES), default="ease-vit")
    parser.add_argument("--quick", action="store_true", help="seconds, for a test of the benchmark itself")
    return parser


def asked_for(options: argparse.Namespace) -> World:
    """What it is to look at; ends the program in one line where that is not here."""
    case = CASES[options.backbone]
    lacks = case.lacks()
    if lacks is not None:
        raise SystemExit(lacks)
    return World(quick(case) if options.quick else case)


def shared() -> Path:
    """Where real weights and photos are."""
    return Path(os.environ.get("EASE_SHARED", "nowhere"))


def _tar(dataset: str) -> Path:
    return shared() / "data" / f"{dataset}.tar"


class World:
    """A case with its backbone and its decoded images in memory."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.backbone: Backbone = load_backbone(
            case.backbone, weights=case.weights, input_size=case.input_size
        )
        if case.dataset == "glyphs":
            data = load_dataset("glyphs")
        else:
            data = read_tar(_tar(case.dataset), case.dataset, case.train, case.test)
        if case.classes is not None:
            data = data.first_classes(case.classes)
        data = replace(data, train=data.train.limit(case.train), test=data.test.limit(case.test))
        self.stream: Stream = make_stream(data, case.protocol, SEED)
        self.transforms = Transforms(self.backbone.pixels, self.stream.augmentation)
        self.settings = EaseSettings(**case.settings)

    def engine(self, checkpoints: Path | None = None, precision: Precision = "32-true") -> Engine:
        """What our code learns with."""
        return Engine(
            self.backbone,
            self.transforms,
            seed=SEED,
            batch_size=BATCH,
            checkpoints=checkpoints,
            precision=precision,
        )

    def naive(self, stream: Stream | None = None, alone: bool = False) -> NaiveEase:
        """The naive learner on the same stream, or on another one.

        Args:
            stream: another one.
            alone: nothing of ours runs in this process, so that the ViT need not be copied.
        """
        wanted, loader = self.settings, StreamLoader(self, stream or self.stream)
        recipe = Recipe(
            **{name: getattr(wanted, name) for name in Recipe.__dataclass_fields__}  # the same names
        )
        vit = self.backbone.vit if alone else copy.deepcopy(self.backbone.vit)
        return NaiveEase(vit, loader, recipe)

    def pixels(self, batch: int) -> Tensor:
        """Random ones, always the same."""
        side = self.backbone.pixels.size
        return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(batch))

    def labels(self, batch: int) -> Tensor:
        """Of the first task's classes, in turns."""
        return torch.arange(batch) % len(self.stream.tasks[0].classes)

    def training_step(
        self, batch: int, compiled: bool = False, precision: Precision = "32-true"
    ) -> Callable[[], float]:
        """One step of our training on random pixels: forwards, backwards, update; it gives the loss."""
        pixels, labels = self.pixels(batch), self.labels(batch)
        engine = self.engine(precision=precision)
        module = Ease(engine, self.settings).new_subspace(self.stream.tasks[0]).train()
        optimizer = self.settings.make_optimizer(module)
        forward = torch.compile(module) if compiled else module

        def step() -> float:
            with engine.fabric.autocast():
                logits = forward(pixels)
            loss = F.cross_entropy(logits.float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.detach())

        return step

    def adapters(self, count: int, rank: int) -> list[Adapter]:
        """Adapters that do something: an untrained one is zero."""
        draw = torch.Generator().manual_seed(0)
        made = [Adapter(self.backbone.shape, rank=rank, generator=draw) for _ in range(count)]
        for adapter in made:
            for weights in adapter.parameters():
                torch.nn.init.normal_(weights, std=0.02, generator=draw)
            adapter.freeze()
        return made


class StreamLoader:
    """The naive implementation's data: the images and the numbers that our engine uses, one image at a time."""

    def __init__(self, world: World, stream: Stream) -> None:
        self.transforms, self.tasks = world.transforms, stream.tasks
        self.batch_size = world.settings.batch_size
        self._starts = Ease(world.engine(), world.settings)

    def start(self, task: int) -> tuple[list[Tensor], Tensor]:
        """As our learner begins."""
        new = self._starts.new_subspace(self.tasks[task])
        assert isinstance(new.tuning, Adapter)
        return [down.weight.detach() for down in new.tuning.down], new.head.weight.detach()  # type: ignore

    def training(self, task: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Our engine's order, draws and dropout seeds."""
        images, first = self.tasks[task].train, self.tasks[task].classes.start
        order = permutation(len(images), SEED, "order", task, "train", epoch)
        draws = uniforms(len(images), DRAWS, SEED, "augmentation", task, "train", epoch)
        for step, start in enumerate(range(0, len(order), self.batch_size)):
            batch = order[start : start + self.batch_size]
            pixels = self.transforms.train([images.image(int(i)) for i in batch], draws[batch])
            labels = torch.from_numpy(images.labels[batch]) - first
            yield pixels, labels, counter(SEED, "dropout", task, "train", epoch, step, 0)

    def images(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """In file order."""
        images, first = self.tasks[task].train, self.tasks[task].classes.start
        for start in range(0, len(images), BATCH):
            batch = range(start, min(start + BATCH, len(images)))
            pixels = torch.stack([self.transforms.test(images.image(i)) for i in batch])
            yield pixels, torch.from_numpy(images.labels[batch.start : batch.stop]) - first

    def tests(self, tasks: int) -> Iterator[Tensor]:
        """One task after the other, in full batches."""
        places = [(task.test, i) for task in self.tasks[:tasks] for i in range(len(task.test))]
        for start in range(0, len(places), BATCH):
            yield torch.stack(
                [self.transforms.test(images.image(i)) for images, i in places[start : start + BATCH]]
            )


def as_naive(adapter: Adapter, learner: NaiveEase) -> Subspace:
    """The same weights in the naive implementation."""
    recipe = replace(learner.recipe, rank=adapter.rank, scale=adapter.scale, dropout=adapter.dropout)
    with torch.random.fork_rng(devices=[]):
        subspace = Subspace(learner.dim, learner.depth, recipe)
    subspace.load_state_dict({_swapped(name): value for name, value in adapter.state_dict().items()})
    return subspace.eval().requires_grad_(False)


def as_ours(subspace: Subspace, world: World) -> Adapter:
    """The same weights in our implementation."""
    settings = world.settings
    adapter = Adapter(world.backbone.shape, settings.rank, settings.scale, settings.dropout)
    adapter.load_state_dict({_swapped(name): value for name, value in subspace.state_dict().items()})
    adapter.freeze()
    return adapter


def _swapped(name: str) -> str:
    """`down.3.weight` for `3.down.weight`, and back."""
    first, second, kind = name.split(".")
    return f"{second}.{first}.{kind}"


def read_tar(path: Path, name: str, train: int, test: int) -> Dataset:
    """The first images of each class, by name, of an archive with `train/CLASS/` and `test/CLASS/`."""
    limits = {"train": train, "test": test}
    try:
        with tarfile.open(path) as archive:
            found: dict[tuple[str, str], list[tarfile.TarInfo]] = {}
            for member in archive:
                parts = member.name.removeprefix("./").split("/")
                if member.isfile() and len(parts) == 3 and parts[0] in limits:
                    found.setdefault((parts[0], parts[1]), []).append(member)
            names = sorted({c for part, c in found if part == "train"})
            sets = {
                part: _decoded(archive, [found.get((part, c), []) for c in names], limit)
                for part, limit in limits.items()
            }
    except (OSError, tarfile.TarError) as error:
        raise EaseError(
            f"cannot read {path} ({error}): give an archive with train/CLASS/ and test/CLASS/"
        ) from error
    return Dataset(name, tuple(names), sets["train"], sets["test"])


def _decoded(archive: tarfile.TarFile, classes: list[list[tarfile.TarInfo]], limit: int) -> ImageSet:
    pixels, labels = [], []
    for label, members in enumerate(classes):
        for member in sorted(members, key=lambda m: m.name)[:limit]:
            file = archive.extractfile(member)
            assert file is not None
            with Image.open(io.BytesIO(file.read())) as image:
                pixels.append(np.asarray(image.convert("RGB")))
            labels.append(label)
    return ImageSet.of_arrays(np.stack(pixels), labels)
