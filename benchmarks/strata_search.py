"""What helps `strata`? Ideas are compared on images held out of the training data; test images only in `--parts final`.

Five places: two built-in datasets, a folder of CIFAR-100, and a folder of photos with two backbones. Each has three
class orders; with each order another third of the training images is held out, so that every training image is held
out once. For glyphs a third is a family of fonts (sans, mono, serif), since the test images are of other families too;
elsewhere it is every third image of a class. All ideas see the same images in the same order.

Parts: `heads` (streams of tasks, and all classes at once from 1, 2, 3, 5 or 10 images each, on the same features of
the PTM), `adapters` (recipes for training the first subspace), `adapted` (other heads on it), `auto` (when to adapt),
`final` (test images). Features, trained adapters and results are kept in a folder, so a stopped search continues;
tables are written to OUT whenever it ends.

    python -m benchmarks.strata_search --cifar DIR --photos DIR --weights FILE --cache DIR --out TABLES.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.strata_heads import ALL, Features, Idea, Stage, stages
from ease.backbone import Layers, Tuning, load_backbone
from ease.heads import CosineHead
from ease.methods._tuned_head import TunedHead, train_tuning
from ease.methods.strata import StrataSettings
from ease.storage.contents import read_tensors, write_json, write_tensors
from ease.storage.files import make_folder, write_atomic
from ease.streams import Dataset, ImageSet, Task
from ease.streams.datasets import load_dataset
from ease.streams.protocol import class_order, task_sizes
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.randomness import generator, permutation, uniforms
from ease.training.trainings import Trainings
from ease.tuning import build_tuning

SEEDS = (1993, 1994, 1995)
"""Of the class orders; the position is also the third that is held out."""
PARTS = ("heads", "streams", "adapters", "adapted", "auto")
FEW = (1, 2, 3, 5, 10)
"""Images per class, all classes at once."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Where ideas are tried.

    Attributes:
        dataset: its name.
        folder: the option that says where it is; built in if left out.
        protocol: of the stream.
        backbone: its name.
        size: input size; the backbone's own if left out.
        limit: images per class, the first ones.
        turns: an image's place in its class, modulo this,
        thirds: is in one of these.
        first: sizes of the first task with which `auto` is tried.
    """

    dataset: str
    protocol: str
    backbone: str = "ease-vit"
    folder: str | None = None
    size: int | None = None
    limit: int | None = None
    turns: int = 3
    thirds: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))
    first: tuple[int, ...] = ()


DEIT = "deit_tiny_patch16_224"
PLACES = {
    "glyphs": Place("glyphs", "B0 Inc6", turns=9, thirds=((0, 1, 2), (3, 4, 5), (6, 7, 8)), first=(6, 20)),
    "digits": Place("digits", "B0 Inc2", first=(2, 4)),
    "photos": Place("folder", "B0 Inc6", folder="photos", first=(6, 18)),
    "CIFAR": Place("cifar100", "B0 Inc10", DEIT, folder="cifar", size=128, limit=15, first=(10, 20)),
    "photos, DeiT": Place("folder", "B0 Inc6", DEIT, folder="photos", size=224, first=(6,)),
}

BASE = Idea()
CHOSEN = Idea(tokens="both", target="layers", nested="between", factor=1.5)
"""The best head: the first subspace is searched with it."""
TAKEN = Idea(tokens="both", target="layers", nested="share", factor=1.5)
"""What became the default: the same figures, with one share in place of two."""
PLAIN = Idea(layers=1, whitened=False, centre="none")
HEADS: dict[str, Idea] = {
    "baseline: 4 layers, OAS, centred cosine": BASE,
    "plain cosine of the last class token": PLAIN,
    **{f"{k} layer{'s' * (k > 1)}": Idea(layers=k) for k in (1, 2, 3, 6)},
    "all layers": Idea(layers=ALL),
    **{f"class and mean patch tokens, {k} layers": Idea(layers=k, tokens="both") for k in (1, 2, 3, 4, 6)},
    "mean patch tokens alone": Idea(tokens="patches"),
    "every token scaled to length 1": Idea(unit=True),
    "target: a multiple of the identity for each layer": Idea(target="layers"),
    "target: the diagonal": Idea(target="diagonal"),
    "6 layers, a multiple for each layer": Idea(layers=6, target="layers"),
    "all layers, a multiple for each layer": Idea(layers=ALL, target="layers"),
    "all layers, target: the diagonal": Idea(layers=ALL, target="diagonal"),
    "a covariance for each layer, zero between layers": Idea(parts="blocks"),
    "a head for each layer, cosines added": Idea(parts="added"),
    "mirror images in the statistics": Idea(views="learn"),
    "features averaged with the mirror image's at prediction": Idea(views="predict"),
    "both": Idea(views="both"),
    "Ledoit-Wolf": Idea(shrinkage="ledoit-wolf"),
    **{f"fixed share {share:g}": Idea(shrinkage=share) for share in (0.003, 0.01, 0.03, 0.1, 0.2, 0.5)},
    "OAS told the number of images": Idea(counted="images"),
    **{f"OAS share times {factor:g}": Idea(factor=factor) for factor in (0.5, 1.5, 2.0, 3.0, 4.0)},
    "square root of the OAS share": Idea(power=0.5),
    "plain cosine mixed in by the OAS share": Idea(mixed="share"),
    **{f"plain cosine mixed in by {weight:g}": Idea(mixed=weight) for weight in (0.1, 0.25, 0.5)},
    "centre: the mean of all images": Idea(centre="images"),
    "no centre": Idea(centre="none"),
    "distance in place of the cosine": Idea(score="distance"),
    "not whitened": Idea(whitened=False),
    # What helped, combined.
    "nested: towards the layers' own covariances by the OAS share": Idea(target="layers", nested="share"),
    "nested: by the share between layers": Idea(target="layers", nested="between"),
    **{
        f"nested, shares times {factor:g}": Idea(target="layers", nested="between", factor=factor)
        for factor in (1.5, 2.0, 3.0)
    },
    "nested, 3 layers": Idea(layers=3, target="layers", nested="between"),
    "nested, 6 layers": Idea(layers=6, target="layers", nested="between"),
    "nested, all layers": Idea(layers=ALL, target="layers", nested="between"),
    **{
        f"nested, class and mean patch tokens, {k} layers": Idea(
            layers=k, tokens="both", target="layers", nested="between"
        )
        for k in (2, 3, 4, 6)
    },
    **{
        f"nested, class and mean patch tokens, 4 layers, shares times {factor:g}": Idea(
            tokens="both", target="layers", nested="between", factor=factor
        )
        for factor in (1.5, 2.0)
    },
    "by the OAS share, class and mean patch tokens, 4 layers, shares times 1.5": TAKEN,
    "nested, class and mean patch tokens, 4 layers, mirror images in the statistics": Idea(
        views="learn", tokens="both", target="layers", nested="between", factor=1.5
    ),
    **{
        f"class and mean patch tokens, 4 layers, a multiple for each, share times {factor:g}": Idea(
            tokens="both", target="layers", factor=factor
        )
        for factor in (1.5, 2.0, 2.5)
    },
    **{
        f"as nested, 4 layers, class and mean patch tokens, without the identity, shares times {factor:g}": Idea(
            tokens="both", target="layers", nested="alone", factor=factor
        )
        for factor in (1.5, 2.0)
    },
    "nested, mirror images in the statistics": Idea(views="learn", target="layers", nested="between"),
    "nested, mirror images in both": Idea(views="both", target="layers", nested="between"),
    "nested, plain cosine mixed in by the OAS share": Idea(target="layers", nested="between", mixed="share"),
    "a multiple for each layer, share times 1.5": Idea(target="layers", factor=1.5),
    "a multiple for each layer, share times 2": Idea(target="layers", factor=2.0),
}


@dataclass(frozen=True)
class Recipe:
    """How the first subspace is trained.

    Attributes:
        settings: what differs from the defaults of `strata`.
        means: whether the throw-away head starts at the class means.
        margin: taken off the right class's cosine while training.
    """

    settings: tuple[tuple[str, Any], ...] = ()
    means: bool = False
    margin: float = 0.0


def _recipe(means: bool = False, margin: float = 0.0, **settings: Any) -> Recipe:
    return Recipe(tuple(settings.items()), means, margin)


RECIPES = {
    "as it is: 4 epochs, rate 0.2": _recipe(),
    "2 epochs": _recipe(epochs=2),
    "8 epochs": _recipe(epochs=8),
    "16 epochs": _recipe(epochs=16),
    "at least 60 steps": _recipe(min_steps=60),
    "at least 80 steps": _recipe(min_steps=80),
    "rate 0.1": _recipe(lr=0.1),
    "rate 0.4": _recipe(lr=0.4),
    "head starts at the class means": _recipe(means=True),
    "gradients clipped at 1": _recipe(clip=1.0),
    "cosine margin 0.1": _recipe(margin=0.1),
    "cosine margin 0.3": _recipe(margin=0.3),
}
AS_IS = RECIPES["as it is: 4 epochs, rate 0.2"]
SLOW = {
    128: ("16 epochs", "cosine margin 0.3"),
    224: tuple(
        name for name in RECIPES if name not in ("as it is: 4 epochs, rate 0.2", "8 epochs", "rate 0.1")
    ),
}
"""Left out where training takes long: with DeiT at these input sizes."""


@torch.no_grad()
def start_as(head: CosineHead, means: Tensor) -> None:
    """Let the rows of a head start as the centred class means [classes, d], each as long as it was drawn."""
    rows = F.normalize(means, dim=-1)
    if len(rows) > 1:
        rows = F.normalize(rows - rows.mean(dim=0), dim=-1)
    head.weight.copy_(rows.to(head.weight) * head.weight.norm(dim=-1, keepdim=True))


class World:
    """A place with its images, its backbone and what has been computed for it."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.place, self.options = name, PLACES[name], options
        self.folder = options.cache / name.replace(", ", "-").lower()
        make_folder(self.folder)

    @cached_property
    def data(self) -> Dataset:
        root = getattr(self.options, self.place.folder) if self.place.folder else None
        return _dataset(self.place.dataset, root, self.place.limit)

    @cached_property
    def engine(self) -> Engine:
        weights = self.options.weights if self.place.backbone != "ease-vit" else None
        backbone = load_backbone(self.place.backbone, weights=weights, input_size=self.place.size)
        transforms = Transforms(backbone.pixels, self.data.augmentation)
        return Engine(backbone, transforms, trainings=Trainings(self.options.cache / "trainings"))

    @property
    def classes(self) -> int:
        return len(self.data.class_names)

    def sizes(self, first: int | None = None) -> list[int]:
        """Of the tasks; the first one may have another size."""
        protocol = self.place.protocol if first is None else self.place.protocol.replace("B0", f"B{first}")
        return task_sizes(protocol, self.classes)

    def labels(self, seed: int) -> Ints:
        """[N] positions in the class order."""
        return np.argsort(class_order(self.classes, seed))[self.data.train.labels]

    def parts(self, seed: int) -> tuple[Ints, Ints]:
        """(to learn from, held out): positions in the training data."""
        own, rank = self.data.train.labels, np.empty(len(self.data.train), dtype=np.int64)
        for c in range(self.classes):
            rank[own == c] = np.arange(np.sum(own == c))
        held = np.isin(rank % self.place.turns, self.place.thirds[SEEDS.index(seed)])
        return np.flatnonzero(~held), np.flatnonzero(held)

    @cached_property
    def features(self) -> Features:
        """Of the PTM, for all training images."""
        plain = self.kept("ptm", partial(self.read, self.data.train))
        if not self.data.augmentation.flip:
            return Features(plain)
        mirrored = replace(self.data.train, source=Mirrored(self.data.train.source))
        return Features(plain, self.kept("ptm-mirrored", partial(self.read, mirrored)))

    def read(self, images: ImageSet, tuning: Tuning | None = None) -> Tensor:
        """[N, blocks, 2, d]"""
        depth = self.engine.backbone.shape.depth
        found = self.engine.features(images, [tuning], reading=Layers(depth, patches=True))[0]
        return found.unflatten(1, (2, depth, -1)).transpose(1, 2).contiguous()

    def kept(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Features that are computed once."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            start = time.perf_counter()
            write_tensors(path, {"features": make()}, {})
            print(f"{self.name}: features {name}, {time.perf_counter() - start:.0f} s", flush=True)
        return read_tensors(path)["features"]

    def adapted(self, key: str, tuning: Callable[[], Tuning]) -> Features:
        """Of the PTM with a tuning, for all training images."""
        return Features(self.kept(key, lambda: self.read(self.data.train, tuning())))

    def trained(self, seed: int, rows: Ints, labels: Ints, recipe: Recipe) -> Tuning:
        """An adapter trained on these images; labels [len(rows)] are made to count from 0."""
        names, local = np.unique(labels, return_inverse=True)
        images = ImageSet(self.data.train.source, self.data.train.indices[rows], local)
        return self._trained(seed, images, len(names), recipe, lambda: self.features.plain[rows][:, -1, 0])

    def _trained(
        self, seed: int, images: ImageSet, classes: int, recipe: Recipe, tokens: Callable[[], Tensor]
    ) -> Tuning:
        task = Task(0, range(classes), ("",) * classes, images, images)
        settings = StrataSettings(**{"min_steps": 0, **dict(recipe.settings)}).for_images(len(images))
        engine, backbone = self.engine, self.engine.backbone
        engine.seed = seed

        def new() -> TunedHead:
            draw = generator(seed, "init", 0)
            shaped = {"rank": settings.rank, "scale": settings.scale, "dropout": settings.dropout}
            tuning = build_tuning("adapter", backbone.shape, shaped, draw, backbone.vit)
            head = CosineHead(backbone.dim, classes, settings.sigma, draw)
            if recipe.means:
                features, labels = tokens(), torch.from_numpy(images.labels)
                start_as(head, torch.stack([features[labels == c].mean(dim=0) for c in range(classes)]))
            return TunedHead(backbone, tuning, head)

        if not recipe.margin:
            return train_tuning(engine, new, task, settings).freeze()
        module = new()

        def with_margin(logits: Tensor, labels: Tensor) -> Tensor:
            wanted = F.one_hot(labels, classes).to(logits)
            scale = module.head.sigma.detach()
            assert isinstance(scale, Tensor)
            return F.cross_entropy(logits - recipe.margin * scale * wanted, labels)

        known = module.known_by(f"cross-entropy, margin {recipe.margin}")
        engine.fit(module, with_margin, images, settings, task=0, known_by=known)
        return module.tuning.freeze()

    def done(self, part: str, seed: int, spec: Any, make: Callable[[], Any]) -> Any:
        """A result that is computed once: JSON in the place's folder."""
        path = self.folder / part / f"{seed}.json"
        make_folder(path.parent)
        known = _read(path)
        if _key(spec) not in known:
            known[_key(spec)] = make()
            write_json(path, known)
        return known[_key(spec)]

    def found(self, part: str, spec: Any) -> list[dict[str, Any]]:
        """The results of all orders, if they are there."""
        files = [_read(self.folder / part / f"{seed}.json") for seed in SEEDS]
        return [known[_key(spec)] for known in files if _key(spec) in known]


class Mirrored:
    """The images of another source, left and right exchanged."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def load(self, index: int) -> Tensor:
        return self._source.load(index).flip(-1)

    def digest(self, index: int) -> str:
        return f"mirrored {self._source.digest(index)}"


@cache
def _dataset(name: str, root: Path | None, limit: int | None) -> Dataset:
    return load_dataset(name, root, limit)


def _key(spec: Any) -> str:
    """Names a result by what differs from the defaults, so that a field added later changes no name."""
    return json.dumps(spec, sort_keys=True, default=_differences)


def _differences(spec: Any) -> dict[str, Any]:
    return {f.name: getattr(spec, f.name) for f in fields(spec) if getattr(spec, f.name) != f.default}


_known: dict[Path, dict[str, Any]] = {}


def _read(path: Path) -> dict[str, Any]:
    if path not in _known:
        _known[path] = json.loads(path.read_text()) if path.exists() else {}
    return _known[path]


def measure(found: list[Stage], labels: Ints, held: Ints, total: int) -> dict[str, Any]:
    """Average and last accuracy in percent, and what every image contributes to both."""
    average, last = np.zeros(total), np.zeros(total)
    for stage in found:
        rows = held[stage.rows.numpy()]
        last[:] = 0
        last[rows] = 100 * (stage.scores.argmax(dim=1).numpy() == labels[rows]) / len(rows)
        average += last / len(found)
    used = np.flatnonzero(np.isin(np.arange(total), held))
    return {
        "share": found[-1].share,
        "average": [round(float(v), 7) for v in average[used]],
        "last": [round(float(v), 7) for v in last[used]],
    }


def try_heads(world: World, ideas: dict[str, Idea]) -> None:
    """Streams, and few images of all classes at once."""
    for name, idea in ideas.items():
        start = time.perf_counter()
        for seed in SEEDS:
            head_result(world, seed, idea)
            for count in FEW:
                few_result(world, seed, idea, count)
        spent = time.perf_counter() - start
        if spent > 0.5:
            print(f"{world.name}: {name}, {spent:.0f} s", flush=True)


def head_result(world: World, seed: int, idea: Idea) -> dict[str, Any]:
    """Of the PTM."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    return world.done(
        "heads",
        seed,
        idea,
        lambda: measure(
            stages(idea, world.features, labels, learn, held, world.sizes()), labels, held, len(labels)
        ),
    )


def few_result(world: World, seed: int, idea: Idea, count: int) -> dict[str, Any]:
    """All classes at once, from so many images each."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    shuffled = learn[permutation(len(learn), seed, "few")]
    some = np.concatenate([shuffled[labels[shuffled] == c][:count] for c in range(world.classes)])
    return world.done(
        f"few-{count}",
        seed,
        idea,
        lambda: measure(
            stages(idea, world.features, labels, some, held, [world.classes]), labels, held, len(labels)
        ),
    )


def unbalanced_result(world: World, seed: int, idea: Idea) -> dict[str, Any]:
    """The stream, with classes of very different numbers of images: from two up to all, evenly on a log scale."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    some = []
    for c, draw in enumerate(uniforms(world.classes, 1, seed, "unbalanced")[:, 0]):
        own = learn[labels[learn] == c]
        some.append(own[: round(2 * (len(own) / 2) ** draw)])
    return world.done(
        "unbalanced",
        seed,
        idea,
        lambda: measure(
            stages(idea, world.features, labels, np.concatenate(some), held, world.sizes()),
            labels,
            held,
            len(labels),
        ),
    )


def single_result(world: World, seed: int, idea: Idea) -> dict[str, Any]:
    """One class at a time from the start."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    return world.done(
        "single",
        seed,
        idea,
        lambda: measure(
            stages(idea, world.features, labels, learn, held, [1] * world.classes), labels, held, len(labels)
        ),
    )


UNBALANCED = (
    "baseline: 4 layers, OAS, centred cosine",
    "plain cosine of the last class token",
    "6 layers",
    "centre: the mean of all images",
    "no centre",
    "distance in place of the cosine",
    "OAS share times 2",
    "nested, class and mean patch tokens, 4 layers, shares times 1.5",
)
SINGLE = (*UNBALANCED[:2], UNBALANCED[-1])


def try_streams(world: World) -> None:
    """Classes of different sizes, and one class at a time."""
    for seed in SEEDS:
        for name in UNBALANCED:
            unbalanced_result(world, seed, HEADS[name])
        for name in SINGLE:
            single_result(world, seed, HEADS[name])


def adapter_result(
    world: World, seed: int, recipe: Recipe, idea: Idea = CHOSEN, first: int | None = None
) -> dict[str, Any]:
    """Of the first subspace, trained on the first task."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    sizes = world.sizes(first)
    rows = learn[labels[learn] < sizes[0]]
    key = f"{seed}-{sizes[0]}-{_slug(recipe)}"

    def features() -> Features:
        return world.adapted(key, lambda: world.trained(seed, rows, labels[rows], recipe))

    return world.done(
        "adapters",
        seed,
        [sizes[0], recipe, idea],
        lambda: measure(stages(idea, features(), labels, learn, held, sizes), labels, held, len(labels)),
    )


def _slug(recipe: Recipe) -> str:
    words = [f"{key}{value}" for key, value in recipe.settings]
    return "-".join(
        ["adapter", *words, *(["means"] * recipe.means), *([f"margin{recipe.margin}"] * bool(recipe.margin))]
    )


def try_adapters(world: World, names: Sequence[str] | None = None) -> None:
    """Recipes with the chosen head: these, or all but the slow ones."""
    slow = SLOW.get(world.place.size or 0, ())
    for name in names or [name for name in RECIPES if name not in slow]:
        start = time.perf_counter()
        for seed in SEEDS:
            adapter_result(world, seed, RECIPES[name])
        print(f"{world.name}: {name}, {time.perf_counter() - start:.0f} s", flush=True)


def try_adapted(world: World) -> None:
    """Other heads on the adapter as it is, and an adapter of fewer images."""
    for seed in SEEDS:
        partial_result(world, seed)
    for name in ON_ADAPTED:
        for seed in SEEDS:
            adapter_result(world, seed, AS_IS, HEADS[name])


ON_ADAPTED = (
    "baseline: 4 layers, OAS, centred cosine",
    "plain cosine of the last class token",
    "6 layers",
    "target: a multiple of the identity for each layer",
    "nested: by the share between layers",
    "nested, shares times 1.5",
    "nested, class and mean patch tokens, 2 layers",
    "nested, class and mean patch tokens, 4 layers",
    "nested, class and mean patch tokens, 4 layers, shares times 2",
    "nested, class and mean patch tokens, 6 layers",
)
"""Heads that are tried on the first subspace too."""


def chosen_layers(world: World, seed: int) -> int:
    """How many layers a quarter of the first task's images would choose; of equals the fewest."""
    labels, (learn, _) = world.labels(seed), world.parts(seed)
    size = world.sizes()[0]
    rest, held = quarter(learn[labels[learn] < size], labels, seed)

    def right(k: int) -> float:
        (stage,) = stages(Idea(layers=k), world.features, labels, rest, held, [size])
        return float((stage.scores.argmax(dim=1).numpy() == labels[held]).mean())

    return int(world.done("layers", seed, "chosen", lambda: max((1, 2, 3, 4, 6, ALL), key=right)))


def quarter(rows: Ints, labels: Ints, seed: int) -> tuple[Ints, Ints]:
    """(three quarters, the fourth) of the images of each class."""
    shuffled = rows[permutation(len(rows), seed, "quarter")]
    held = []
    for c in np.unique(labels[rows]):
        own = shuffled[labels[shuffled] == c]
        held.append(own[: max(1, round(len(own) / 4))])
    out = np.sort(np.concatenate(held))
    return np.setdiff1d(rows, out), out


# When to adapt: what a criterion sees of the first task, for the PTM and for the adapter.


def judged(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, mean margin, and mean log-likelihood at the best temperature of a grid."""
    right = scores.gather(1, labels[:, None])[:, 0]
    others = scores.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    nll = min(float(F.cross_entropy(scores * t, labels)) for t in (1, 2, 4, 8, 16, 32, 64))
    return {
        "accuracy": 100 * float((scores.argmax(dim=1) == labels).double().mean()),
        "margin": float((right - others).mean()),
        "likelihood": -nll,
        "images": float(len(labels)),
    }


def seen_case(world: World, seed: int, first: int) -> dict[str, Any]:
    """An adapter of three quarters of the first task's images, judged on the fourth."""
    labels, (learn, _) = world.labels(seed), world.parts(seed)
    rows = learn[labels[learn] < first]
    rest, held = quarter(rows, labels, seed)

    def make() -> dict[str, Any]:
        tuning = world.trained(seed, rest, labels[rest], AS_IS)
        return _both(world, _adapted(world, tuning, rows), labels, [(rest, held)])

    return world.done("seen", seed, first, make)


def halves_case(world: World, seed: int, first: int) -> dict[str, Any]:
    """An adapter of each half of the first task's images, judged on the other half: every image is judged."""
    labels, (learn, _) = world.labels(seed), world.parts(seed)
    rows = learn[labels[learn] < first]
    shuffled = rows[permutation(len(rows), seed, "halves")]
    one = np.concatenate([own[::2] for own in (shuffled[labels[shuffled] == c] for c in range(first))])
    halves = (np.sort(one), np.setdiff1d(rows, one))

    def make() -> dict[str, Any]:
        found = []
        for learned, held in (halves, halves[::-1]):
            tuning = world.trained(seed, learned, labels[learned], AS_IS)
            found.append(_both(world, _adapted(world, tuning, rows), labels, [(learned, held)]))
        weights = [case["never"]["images"] for case in found]
        return {
            model: {
                key: sum(weights)
                if key == "images"
                else float(np.average([case[model][key] for case in found], weights=weights))
                for key in found[0][model]
            }
            for model in ("never", "first")
        }

    return world.done("halves", seed, first, make)


def partial_result(world: World, seed: int) -> dict[str, Any]:
    """The stream with an adapter of three quarters of the first task's images."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    sizes = world.sizes()
    rest, _ = quarter(learn[labels[learn] < sizes[0]], labels, seed)

    def make() -> dict[str, Any]:
        features = world.adapted(
            f"{seed}-{sizes[0]}-quarters", lambda: world.trained(seed, rest, labels[rest], AS_IS)
        )
        return measure(stages(CHOSEN, features, labels, learn, held, sizes), labels, held, len(labels))

    return world.done("adapters", seed, [sizes[0], "three quarters", CHOSEN], make)


def unseen_case(world: World, seed: int, first: int) -> dict[str, Any]:
    """An adapter of half of the first task's classes, judged on the other half's images, in four folds.

    `alone`: among the classes of that half. `among`: among all classes of the task.
    """
    labels, (learn, _) = world.labels(seed), world.parts(seed)
    half = (first + 1) // 2
    if first - half < 2:
        return {}

    def make() -> dict[str, Any]:
        rows, others = learn[labels[learn] < half], learn[(labels[learn] >= half) & (labels[learn] < first)]
        features = _adapted(
            world, world.trained(seed, rows, labels[rows], AS_IS), np.concatenate([rows, others])
        )
        others = np.concatenate([others[labels[others] == c] for c in range(half, first)])
        rank = np.concatenate([np.arange(np.sum(labels[others] == c)) for c in range(half, first)])
        folds = [(others[rank % 4 != turn], others[rank % 4 == turn]) for turn in range(4)]
        with_rest = [(np.concatenate([rows, learned]), held) for learned, held in folds]
        return {
            "alone": _both(world, features, labels - half, folds),
            "among": _both(world, features, labels, with_rest),
        }

    return world.done("unseen", seed, first, make)


def _adapted(world: World, tuning: Tuning, rows: Ints) -> Features:
    """Only these images are read again; the rest stays as the PTM sees it and must not be used."""
    adapted = world.features.plain.clone()
    adapted[torch.from_numpy(rows)] = world.read(world.data.train.take(rows), tuning)
    return Features(adapted)


def _both(world: World, adapted: Features, labels: Ints, folds: list[tuple[Ints, Ints]]) -> dict[str, Any]:
    """Judge the PTM and the adapter on the held-out images of all folds."""
    size = int(max(labels[learn].max() for learn, _ in folds)) + 1
    found = {}
    for name, features in (("never", world.features), ("first", adapted)):
        scores, wanted = [], []
        for learn, held in folds:
            (stage,) = stages(CHOSEN, features, labels, learn, held, [size])
            scores.append(stage.scores)
            wanted.append(torch.from_numpy(labels[held]))
        found[name] = judged(torch.cat(scores), torch.cat(wanted))
    return found


def try_auto(world: World) -> None:
    """Everything that the criteria are judged by."""
    for first in world.place.first:
        start = time.perf_counter()
        for seed in SEEDS:
            adapter_result(world, seed, AS_IS, first=first)
            never_result(world, seed, first)
            seen_case(world, seed, first)
            unseen_case(world, seed, first)
            halves_case(world, seed, first)
        print(f"{world.name}: first task of {first}, {time.perf_counter() - start:.0f} s", flush=True)


def better(case: dict[str, Any], by: str, least: float = 0.0) -> bool:
    """Whether the adapter is ahead by more than `least`."""
    return bool(case) and case["first"][by] - case["never"][by] > least


def ahead(case: dict[str, Any]) -> float:
    """Images that the adapter gets right and the PTM does not, less the reverse."""
    return (case["first"]["accuracy"] - case["never"]["accuracy"]) * case["first"]["images"] if case else 0.0


CRITERIA: dict[str, Callable[[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]], bool]] = {
    "never": lambda seen, alone, among, halves: False,
    "always": lambda seen, alone, among, halves: True,
    "held-out images: accuracy": lambda seen, alone, among, halves: better(seen, "accuracy"),
    "held-out images: accuracy, not worse": lambda seen, alone, among, halves: better(
        seen, "accuracy", -1e-9
    ),
    "held-out images: accuracy, by more than 2": lambda seen, alone, among, halves: better(
        seen, "accuracy", 2
    ),
    "held-out images: likelihood": lambda seen, alone, among, halves: better(seen, "likelihood"),
    "held-out images: margin": lambda seen, alone, among, halves: better(seen, "margin"),
    "held-out classes: accuracy": lambda seen, alone, among, halves: better(alone, "accuracy"),
    "held-out classes: accuracy, not worse": lambda seen, alone, among, halves: better(
        alone, "accuracy", -1e-9
    ),
    "held-out classes: likelihood": lambda seen, alone, among, halves: better(alone, "likelihood"),
    "held-out classes: margin": lambda seen, alone, among, halves: better(alone, "margin"),
    "held-out classes among all: accuracy": lambda seen, alone, among, halves: better(among, "accuracy"),
    "held-out classes among all: accuracy, by more than 1": lambda seen, alone, among, halves: better(
        among, "accuracy", 1
    ),
    "held-out classes among all: likelihood": lambda seen, alone, among, halves: better(among, "likelihood"),
    "held-out classes among all: margin": lambda seen, alone, among, halves: better(among, "margin"),
    "images and classes: accuracy": lambda seen, alone, among, halves: (
        better(seen, "accuracy") and better(alone, "accuracy")
    ),
    "images and classes among all: accuracy": lambda seen, alone, among, halves: (
        better(seen, "accuracy", -1e-9) and better(among, "accuracy")
    ),
    "images and classes among all: likelihood": lambda seen, alone, among, halves: (
        better(seen, "likelihood") and better(among, "likelihood")
    ),
    "two halves of the images: accuracy": lambda seen, alone, among, halves: better(halves, "accuracy"),
    "two halves of the images: accuracy, not worse": lambda seen, alone, among, halves: better(
        halves, "accuracy", -1e-9
    ),
    "two halves of the images: likelihood": lambda seen, alone, among, halves: better(halves, "likelihood"),
    "two halves of the images: margin": lambda seen, alone, among, halves: better(halves, "margin"),
    "right images of both added": lambda seen, alone, among, halves: ahead(seen) + ahead(alone) > 0,
}
"""From what is known of held-out images, and of held-out classes alone and among all (empty with too few): adapt?"""


def auto_tables(worlds: Sequence[World]) -> Iterator[str]:
    """What adapting is worth, what each criterion would have seen, and what it would have chosen."""
    cases = []
    titles = (
        "never",
        "gain of adapting, by order",
        "held-out images",
        "two halves",
        "held-out classes",
        "among all",
    )
    yield f"| place, classes of the first task | {' | '.join(titles)} |"
    yield "|---|---|---|---|---|---|---|"
    for world in worlds:
        for first in world.place.first:
            never = world.found("never", [first, CHOSEN])
            adapted = world.found("adapters", [first, AS_IS, CHOSEN])
            seen, unseen, halves = (world.found(part, first) for part in ("seen", "unseen", "halves"))
            if len(never) < len(SEEDS) or len(adapted) < len(SEEDS) or len(seen) < len(SEEDS):
                continue
            halves = halves if len(halves) == len(SEEDS) else [{}] * len(SEEDS)
            unseen = unseen or [{"alone": {}, "among": {}}] * len(SEEDS)
            alone, among = ([case[key] for case in unseen] for key in ("alone", "among"))
            here = [(sum(n["average"]), sum(a["average"])) for n, a in zip(never, adapted, strict=True)]
            cases += [
                (world.name, plain, tuned, known)
                for (plain, tuned), *known in zip(here, seen, alone, among, halves, strict=True)
            ]
            gains = ", ".join(f"{tuned - plain:+.1f}" for plain, tuned in here)
            told = [
                ", ".join(
                    f"{c['first']['accuracy'] - c['never']['accuracy']:+.1f}"
                    f" ({c['first']['likelihood'] - c['never']['likelihood']:+.2f})"
                    for c in each
                    if c
                )
                for each in (seen, halves, alone, among)
            ]
            yield f"| {world.name}, {first} | {np.mean([p for p, _ in here]):.1f} | {gains} | {' | '.join(told)} |"
    yield ""
    if not cases:
        return
    names = list(dict.fromkeys(case[0] for case in cases))
    yield (
        "| criterion | picks the better one | mean lost to the better one | most lost | "
        + " | ".join(names)
        + " |"
    )
    yield "|---|---|---|---|" + "---|" * len(names)
    for name, criterion in CRITERIA.items():
        taken = [tuned if criterion(*known) else plain for _, plain, tuned, known in cases]
        lost = np.array(
            [max(plain, tuned) - got for (_, plain, tuned, _), got in zip(cases, taken, strict=True)]
        )
        by = [
            np.mean([x for x, case in zip(lost, cases, strict=True) if case[0] == place]) for place in names
        ]
        yield (
            f"| {name} | {np.sum(lost < 1e-6)} of {len(lost)} | {lost.mean():.2f} | {lost.max():.1f} | "
            + " | ".join(f"{value:.2f}" for value in by)
            + " |"
        )
    yield ""


def never_result(world: World, seed: int, first: int) -> dict[str, Any]:
    """The PTM on the same stream."""
    labels, (learn, held) = world.labels(seed), world.parts(seed)
    return world.done(
        "never",
        seed,
        [first, CHOSEN],
        lambda: measure(
            stages(CHOSEN, world.features, labels, learn, held, world.sizes(first)), labels, held, len(labels)
        ),
    )


# Test images, looked at once.

FINAL: dict[str, tuple[bool, Idea]] = {
    "never, baseline": (False, BASE),
    "never, as taken": (False, TAKEN),
    "first, baseline": (True, BASE),
    "first, as taken": (True, TAKEN),
}
"""Whether the first task trains an adapter, and the head."""
TESTED = 10
"""Test images per class, where training images are limited."""


def final_result(world: World, seed: int, name: str) -> dict[str, Any]:
    """Learn all training images and score the test images."""
    adapts, idea = FINAL[name]
    train = world.data.train
    test = world.data.test if world.place.limit is None else world.data.test.limit(TESTED)
    learn, held = np.arange(len(train)), len(train) + np.arange(len(test))
    labels = np.argsort(class_order(world.classes, seed))[np.concatenate([train.labels, test.labels])]
    rows = learn[labels[learn] < world.sizes()[0]]

    def adapted() -> Tensor:
        tuning = world.trained(seed, rows, labels[rows], AS_IS)
        return torch.cat([world.read(train, tuning), world.read(test, tuning)])

    def make() -> dict[str, Any]:
        if adapts:
            found = world.kept(f"final-{seed}", adapted)
        else:
            found = torch.cat([world.features.plain, world.kept("test", partial(world.read, test))])
        learned = stages(idea, Features(found), labels, learn, held, world.sizes())
        return measure(learned, labels, held, len(labels))

    return world.done("final", seed, name, make)


def final_table(worlds: Sequence[World]) -> Iterator[str]:
    """Average and last accuracy on test images."""
    yield "| | " + " | ".join(world.name for world in worlds) + " |"
    yield "|---|" + "---|" * len(worlds)
    for name in FINAL:
        found = [world.found("final", name) for world in worlds]
        yield (
            f"| {name} | "
            + " | ".join("{:.1f} / {:.1f}".format(*figures(r)) if r else "" for r in found)
            + " |"
        )
    yield ""


# The tables.


def figures(results: list[dict[str, Any]]) -> tuple[float, float]:
    """(average, last) accuracy, means over the orders."""
    return tuple(float(np.mean([sum(r[key]) for r in results])) for key in ("average", "last"))  # type: ignore[return-value]


def error(results: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """The standard error of the difference of two averages, image by image."""
    variances = []
    for one, other in zip(results, others, strict=True):
        apart = np.subtract(one["average"], other["average"])
        variances.append(len(apart) * apart.var())
    return float(np.sqrt(np.sum(variances)) / len(variances))


def cell(results: list[dict[str, Any]], base: list[dict[str, Any]]) -> str:
    """Differences from the baseline; bold beyond two standard errors."""
    if len(results) < len(SEEDS) or len(base) < len(SEEDS):
        return ""
    average, last = np.subtract(figures(results), figures(base))
    if not any(np.any(np.subtract(a["average"], b["average"])) for a, b in zip(results, base, strict=True)):
        return "="
    clear = abs(average) > 2 * error(results, base)
    return f"**{average:+.1f} / {last:+.1f}**" if clear else f"{average:+.1f} / {last:+.1f}"


def table(
    worlds: Sequence[World],
    title: str,
    rows: dict[str, Any],
    find: Callable[[World, Any], list[dict[str, Any]]],
) -> Iterator[str]:
    """The first row is the baseline: absolute figures. The others are differences from it."""
    yield f"| {title} | " + " | ".join(world.name for world in worlds) + " |"
    yield "|---|" + "---|" * len(worlds)
    first = next(iter(rows.values()))
    for name, spec in rows.items():
        cells = []
        for world in worlds:
            results, base = find(world, spec), find(world, first)
            if spec is first and len(base) == len(SEEDS):
                cells.append("{:.1f} / {:.1f}".format(*figures(base)))
            else:
                cells.append(cell(results, base))
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def stream_results(world: World, idea: Idea | str) -> list[dict[str, Any]]:
    """Of an idea, or of the number of layers that each order chose."""
    if isinstance(idea, Idea):
        return world.found("heads", idea)
    layers = world.found("layers", idea)
    if len(layers) < len(SEEDS):
        return []
    each = [world.found("heads", Idea(layers=int(k))) for k in layers]  # type: ignore[call-overload]
    return [results[s] for s, results in enumerate(each)]


def few_mean(world: World, idea: Idea, counts: Sequence[int]) -> list[dict[str, Any]]:
    """The results of several counts as one, for the same images."""
    each = [world.found(f"few-{count}", idea) for count in counts]
    if any(len(results) < len(SEEDS) for results in each):
        return []
    keys = ("average", "last")
    return [
        {key: np.mean([results[s][key] for results in each], axis=0) for key in keys}
        for s in range(len(SEEDS))
    ]


def few_table(worlds: Sequence[World], ideas: dict[str, Idea]) -> Iterator[str]:
    """Accuracy at each number of images per class."""
    yield f"| images per class: {', '.join(map(str, FEW))} | " + " | ".join(w.name for w in worlds) + " |"
    yield "|---|" + "---|" * len(worlds)
    for name, idea in ideas.items():
        cells = []
        for world in worlds:
            found = [world.found(f"few-{count}", idea) for count in FEW]
            cells.append(", ".join(f"{figures(results)[0]:.1f}" if results else "" for results in found))
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def tables(worlds: Sequence[World]) -> str:
    """All that has been found, as Markdown."""
    lines = ["## Heads on the PTM, streams of tasks", ""]
    rows: dict[str, Any] = {**HEADS, "layers chosen on a quarter of the first task": "chosen"}
    lines += table(worlds, "idea", rows, stream_results)
    lines += ["## Few images of all classes at once: mean of 2, 3 and 5 images per class", ""]
    lines += table(worlds, "idea", HEADS, lambda world, idea: few_mean(world, idea, (2, 3, 5)))
    lines += ["## The same at 3 images per class", ""]
    lines += table(worlds, "idea", HEADS, lambda world, idea: few_mean(world, idea, (3,)))
    lines += few_table(worlds, HEADS)
    lines += ["## Classes of different sizes", ""]
    unbalanced = {name: HEADS[name] for name in UNBALANCED}
    lines += table(worlds, "idea", unbalanced, lambda world, idea: world.found("unbalanced", idea))
    lines += ["## One class at a time", ""]
    single = {name: HEADS[name] for name in SINGLE}
    lines += table(worlds, "idea", single, lambda world, idea: world.found("single", idea))
    lines += ["## The first subspace", ""]
    first = worlds_first(worlds)
    recipes: dict[str, Any] = {name: [recipe, CHOSEN] for name, recipe in RECIPES.items()}
    recipes["of three quarters of the images"] = ["three quarters", CHOSEN]
    recipes |= {f"as it is; head: {name}": [AS_IS, HEADS[name]] for name in ON_ADAPTED}
    lines += table(
        worlds, "idea", recipes, lambda world, spec: world.found("adapters", [first[world.name], *spec])
    )
    lines += ["## Whether to adapt", "", *auto_tables(worlds)]
    lines += ["## Test images", "", *final_table(worlds)]
    return "\n".join(lines) + "\n"


def worlds_first(worlds: Sequence[World]) -> dict[str, int]:
    """Classes of the first task of each place's own protocol."""
    return {world.name: int(world.place.protocol.split("Inc")[1]) for world in worlds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cifar", type=Path, help="folder with train/CLASS and test/CLASS of CIFAR-100")
    parser.add_argument("--photos", type=Path, help="folder with train/CLASS and test/CLASS of photos")
    parser.add_argument("--weights", type=Path, help="weights of DeiT-tiny")
    parser.add_argument(
        "--cache", type=Path, required=True, help="features, adapters and results are kept here"
    )
    parser.add_argument("--out", type=Path, required=True, help="where the tables go")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--only", default="", help="of the heads, those whose name has this in it")
    parser.add_argument(
        "--recipes", nargs="+", choices=RECIPES, help="for the first subspace; all but slow ones by default"
    )
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=(*PARTS, "final", "none"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.places:
        world = World(name, args)
        if "heads" in args.parts:
            try_heads(world, {name: idea for name, idea in HEADS.items() if args.only in name})
            for seed in SEEDS:
                chosen_layers(world, seed)
        if "streams" in args.parts:
            try_streams(world)
        if "adapters" in args.parts:
            try_adapters(world, args.recipes)
        if "adapted" in args.parts:
            try_adapted(world)
        if "auto" in args.parts:
            try_auto(world)
        if "final" in args.parts:
            for seed, row in itertools.product(SEEDS, FINAL):
                final_result(world, seed, row)
    text = tables([World(name, args) for name in args.places])
    write_atomic(args.out, text.encode())
    print(text)


if __name__ == "__main__":
    main()
