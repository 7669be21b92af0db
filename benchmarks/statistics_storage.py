"""In how few digits the statistics of `strata` can be kept: what each form changes, on images held out of the training.

A quarter of the training images is held out, class means and scatter are made of the rest, and both are rounded in each
form; test images are not looked at. `scatter` and `correlation` round the matrix itself, `factor` its triangular factor
(`ease.heads.stored_scatter`; `plain` without the square roots). The last rows learn one class at a time and round
after each. Columns: the largest and the root mean square change of a score, which is a cosine; the accuracy; and how
many of the held-out images get another class.

    python benchmarks/statistics_storage.py
    python benchmarks/statistics_storage.py --dataset cifar100 --data-root DATA --limit-per-class 15
        --backbone deit_tiny_patch16_224 --weights FILE --input-size 128
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from ease.backbone import Layers, load_backbone
from ease.heads.stored_scatter import scatter_of, scatter_tensors
from ease.heads.whitened import WhitenedHead, factored_scatter
from ease.progress import Bars
from ease.storage.precision import Packed
from ease.streams.datasets import load_dataset
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.randomness import permutation

Form = Callable[[Tensor], Tensor]
SEED = 1993


def rounded(values: Tensor, storage: str) -> Tensor:
    """A matrix as `ease compact` stores matrices: fp16, or int8 with a scale per row."""
    return Packed({"values": values.float()}).repacked(storage).unpacked()["values"].double()


def matrix(storage: str) -> Form:
    """The scatter itself, rounded; one triangle of it."""

    def form(scatter: Tensor) -> Tensor:
        lower = rounded(scatter.tril(), storage)
        return lower + lower.tril(-1).mT

    return form


def correlation(storage: str) -> Form:
    """The correlations, rounded, and the deviations in fp32."""

    def form(scatter: Tensor) -> Tensor:
        scale = scatter.diagonal().sqrt().float().double()
        scale = scale.where(scale > 0, 1)
        lower = rounded((scatter / (scale[:, None] * scale)).tril(-1), storage)
        whole = lower + lower.mT + torch.eye(len(scatter), dtype=torch.float64)
        return whole * (scale[:, None] * scale)

    return form


def plain_factor(scatter: Tensor) -> Tensor:
    """The factor in int8 without the square roots."""
    deviations, factor = factored_scatter(scatter)
    rows = deviations[:, None] * rounded(factor, "int8")
    return rows @ rows.mT


def stored(storage: str) -> Form:
    """What `ease compact` does."""
    return lambda scatter: scatter_of(scatter_tensors(scatter, storage), storage, len(scatter))


SCATTERS: dict[str, Form] = {
    "scatter, fp16": matrix("fp16"),
    "correlation, fp16": correlation("fp16"),
    "correlation, int8": correlation("int8"),
    "factor, fp16": stored("fp16"),
    "factor, int8, plain": plain_factor,
    "factor, int8": stored("int8"),
}
MEANS: dict[str, Form] = {
    f"class means, {storage}": lambda means, storage=storage: rounded(means, storage)
    for storage in ("fp16", "int8")
}


class Trial:
    """Features of a training set, in two parts."""

    def __init__(self, features: Tensor, labels: Tensor, parts: int) -> None:
        order = torch.from_numpy(permutation(len(labels), SEED, "held out", 0))
        held, rest = order[: len(order) // 4], order[len(order) // 4 :]
        self.held, self.held_labels = features[held], labels[held]
        self.rest, self.rest_labels = features[rest], labels[rest]
        self.head = WhitenedHead(features.shape[1], parts)
        self.head.grow(int(labels.max()) + 1)
        self.head.add(self.rest, self.rest_labels)
        self.scores = self.head.scores(self.held)

    def with_scatter(self, form: Form) -> WhitenedHead:
        """A head whose scatter was rounded once."""
        head = deepcopy(self.head)
        return _with(head, head.means, form(head.scatter))

    def with_means(self, form: Form) -> WhitenedHead:
        """A head whose class means were rounded once."""
        head = deepcopy(self.head)
        return _with(head, form(head.means), head.scatter)

    def one_by_one(self, form: Form) -> WhitenedHead:
        """A head that learned one class after the other, its scatter rounded after each."""
        head = WhitenedHead(self.head.width, self.head.parts)
        for label in range(self.head.classes):
            head.grow(1)
            mine = self.rest_labels == label
            head.add(self.rest[mine], self.rest_labels[mine])
            head = _with(head, head.means, form(head.scatter))
        return head

    def row(self, title: str, head: WhitenedHead) -> str:
        """A line of the table."""
        scores = head.scores(self.held)
        apart, guess = scores - self.scores, scores.argmax(dim=1)
        accuracy = 100 * float((guess == self.held_labels).double().mean())
        moved = int((guess != self.scores.argmax(dim=1)).sum())
        figures = f"{float(apart.abs().max()):.4f} | {float(apart.square().mean().sqrt()):.4f}"
        return f"| {title} | {figures} | {accuracy:.2f} | {moved} |"


def _with(head: WhitenedHead, means: Tensor, scatter: Tensor) -> WhitenedHead:
    """The same counts with other sums."""
    new = WhitenedHead(head.width, head.parts)
    new.grow(head.classes)
    new.means, new.counts, new.scatter, new.freedom = means, head.counts, scatter, head.freedom
    return new


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="glyphs", help="whose training images; see 'ease datasets'")
    parser.add_argument("--data-root", type=Path, help="folder of the dataset, where it needs one")
    parser.add_argument("--limit-per-class", type=int, help="images per class, where fewer are wanted")
    parser.add_argument("--backbone", default="ease-vit", help="see 'ease backbones'")
    parser.add_argument("--weights", type=Path, help="the backbone's file")
    parser.add_argument("--input-size", type=int, help="side length of the input")
    parser.add_argument("--layers", type=int, default=4, help="blocks whose class tokens are read")
    parser.add_argument(
        "--patches", action=argparse.BooleanOptionalAction, default=True, help="mean patch tokens too"
    )
    asked = parser.parse_args()
    backbone = load_backbone(asked.backbone, weights=asked.weights, input_size=asked.input_size)
    engine = Engine(backbone, Transforms(backbone.pixels))
    engine.progress = Bars()
    images = load_dataset(asked.dataset, asked.data_root, asked.limit_per_class).train
    features = engine.features(images, [None], reading=Layers(asked.layers, asked.patches))[0]
    trial = Trial(features, torch.from_numpy(images.labels), features.shape[1] // backbone.dim)
    print("| | largest change | rms | accuracy, % | other class |\n|---|---:|---:|---:|---:|")
    print(trial.row(f"fp64, {len(trial.held)} images", trial.head))
    for title, form in SCATTERS.items():
        print(trial.row(title, trial.with_scatter(form)), flush=True)
    for title, form in MEANS.items():
        print(trial.row(title, trial.with_means(form)), flush=True)
    for storage in ("fp16", "int8"):
        title = f"factor, {storage}, {trial.head.classes} times"
        print(trial.row(title, trial.one_by_one(stored(storage))), flush=True)


if __name__ == "__main__":
    main()
