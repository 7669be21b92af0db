"""Do the patches that an explanation names matter? The deletion test, for several ways of making the map.

Patches are covered with the image's mean colour (`--cover blur`: with a strongly blurred copy), the warmest first, and
the score of the answer is read: it must fall faster than with patches at random, and stay when the coldest are covered.

    covers          what `Classifier.explain` does: covers of random patches and a ridge regression
    occlusion       each patch is covered alone; `occlusion 2x2`: four patches together
    gradient x token  at the input of the block named, summed over channels
    integrated      gradients along the line from the mean colour to the image, eight steps (Sundararajan et al., 2017)
    attention       attention weighted by its gradient, multiplied over the blocks (Chefer et al., 2021)

`top` is the mean score after covering the warmest 10, 20 and 30 %, `coldest` the same for the coldest, `area` the mean
over 10 to 90 % of the warmest (smaller is better). Methods were chosen on training photos that the model has not
learned from; `--on test` looks at test photos.

    python -m benchmarks.explanations
    python -m benchmarks.explanations --on test
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.class_folders import BACKBONES, DEIT, SETS
from ease.app.explain import explain_pixels
from ease.backbone import Tuning

SHARES = tuple(at / 10 for at in range(1, 10))
PHOTOS = {"glyphs": 30, "photos-42": 30}
PHOTOS_DEIT = 8
STEPS = 8
"""Steps of the integrated gradients."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=["glyphs", "photos-42"], choices=PHOTOS)
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--on", choices=("train", "test"), default="train")
    parser.add_argument("--cover", choices=("mean", "blur"), default="mean")
    parser.add_argument("--photos", type=int, help="how many are explained; default: 30, with DeiT-tiny 8")
    parser.add_argument("--classes", type=int, help="only the first classes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.sets:
        for backbone in asked.backbones:
            if name == "glyphs" and backbone == DEIT:
                continue
            if (why := SETS[name].lacks(backbone)) is not None:
                print(why)
                continue
            with tempfile.TemporaryDirectory() as folder:
                count = asked.photos or (PHOTOS_DEIT if backbone == DEIT else PHOTOS[name])
                judged = Judged(Path(folder), name, backbone, asked, count)
                print(f"\n{name}, {backbone}, {len(judged.pixels)} {asked.on} photos, cover: {asked.cover}")
                print(f"score of the answer, nothing covered: {judged.plain():.3f}")
                print(f"{'':26s}{'top 10 %':>9s}{'20 %':>7s}{'30 %':>7s}{'area':>8s}", end="")
                print(f"{'coldest':>10s}{'20 %':>7s}{'30 %':>7s}{'seconds':>9s}")
                for title, way in WAYS.items():
                    print(f"{title:26s}{judged.row(way)}", flush=True)


class Judged:
    """A model, photos that it has not learned, and the deletion test on them.

    Attributes:
        classifier: The model.
        pixels: The photos as the backbone reads them, [N, 3, s, s].
        answers: Position of the answer for each, [N].
    """

    def __init__(self, folder: Path, name: str, backbone: str, asked: argparse.Namespace, count: int) -> None:
        written = SETS[name].write(folder, steps=1, classes=asked.classes)
        photos = {one.name: sorted(one.iterdir()) for one in sorted(written.steps[0].iterdir())}
        learned = photos if asked.on == "test" else {key: own[::2] for key, own in photos.items()}
        self.classifier = SETS[name].model(backbone).new_classifier(folder / "model")
        self.classifier.learn(learned)
        others = [path for own in photos.values() for path in own[1::2]]
        if asked.on == "test":
            others = sorted(path for path in written.test.rglob("*") if path.is_file())
        chosen = np.random.default_rng(0).choice(len(others), min(count, len(others)), replace=False)
        self.pixels = self.classifier.pixels([others[at] for at in sorted(chosen)])
        self.answers = self._logits(self.pixels).argmax(dim=1)
        self._blurred = asked.cover == "blur"

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the backbone's patches."""
        rows, columns = self.classifier.learner.backbone.vit.patch_embed.grid_size
        return int(rows), int(columns)

    def _logits(self, pixels: Tensor) -> Tensor:
        return self.classifier.predictor.logits(pixels)

    def plain(self) -> float:
        """The mean score of the answers."""
        return float(self._logits(self.pixels).gather(1, self.answers[:, None]).mean())

    def covered(self, at: int, masks: Tensor, blurred: bool = False) -> Tensor:
        """Scores [M] of the answer for photo `at` with patches [M, P] covered."""
        image = self.pixels[at]
        fill = image.mean(dim=(1, 2), keepdim=True).expand_as(image)
        if blurred:
            side = image.shape[-1] // 4
            padded = F.pad(image[None], (side,) * 4, mode="reflect")
            fill = F.avg_pool2d(padded, 2 * side + 1, stride=1)[0]
        rows, columns = self.grid
        cells = masks.view(-1, 1, rows, columns).float()
        hidden = F.interpolate(cells, size=tuple(image.shape[-2:]), mode="nearest") > 0.5
        return self._logits(torch.where(hidden, fill, image))[:, self.answers[at]]

    def row(self, way: Callable[[Judged, int], Tensor]) -> str:
        """One line of the table."""
        started = time.perf_counter()
        maps = [way(self, at).flatten() for at in range(len(self.pixels))]
        seconds = (time.perf_counter() - started) / len(maps)
        top = torch.stack([self._deleted(at, heat) for at, heat in enumerate(maps)]).mean(dim=0)
        cold = torch.stack([self._deleted(at, -heat, 3) for at, heat in enumerate(maps)]).mean(dim=0)
        warm = f"{top[0]:9.3f}{top[1]:7.3f}{top[2]:7.3f}{top.mean():8.3f}"
        return f"{warm}{cold[0]:10.3f}{cold[1]:7.3f}{cold[2]:7.3f}{seconds:9.2f}"

    def _deleted(self, at: int, heat: Tensor, first: int = len(SHARES)) -> Tensor:
        order, masks = heat.argsort(descending=True), torch.zeros(first, len(heat))
        for row, share in enumerate(SHARES[:first]):
            masks[row, order[: round(share * len(heat))]] = 1
        return self.covered(at, masks, self._blurred)


def by_covers(judged: Judged, at: int) -> Tensor:
    """The map of `Classifier.explain`; a cell of several patches gives all of them its value."""
    name = judged.classifier.classes[int(judged.answers[at])]
    found = explain_pixels(judged.classifier, judged.pixels[at : at + 1], top_k=0, name=name)
    heat = torch.tensor(found.heat)[None, None]
    return F.interpolate(heat, size=judged.grid, mode="nearest")


def by_occlusion(judged: Judged, at: int, side: int = 1) -> Tensor:
    """The fall of the score when a patch, or a square of patches, is covered alone."""
    rows, columns = judged.grid
    cells = [(r, c) for r in range(0, rows, side) for c in range(0, columns, side)]
    masks = torch.zeros(len(cells), rows, columns)
    for mask, (row, column) in zip(masks, cells, strict=True):
        mask[row : row + side, column : column + side] = 1
    fall = -judged.covered(at, masks.flatten(1))
    return (masks.flatten(1) * fall[:, None]).sum(dim=0)


class Recorder(Tuning):
    """Plugs nothing into the backbone, and keeps what passes through its ports, with gradients."""

    kind = "recorder"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, int], Tensor] = {}

    def modulate(self, site: str, layer: int, value: Tensor) -> Tensor:
        """See `Tuning`."""
        if site == "embed":
            value = value.detach().requires_grad_()
        value.retain_grad()
        self.seen[site, layer] = value
        return value


def _recorded(judged: Judged, at: int) -> dict[tuple[str, int], Tensor]:
    """What passed through the ports for one photo, with the gradient of the answer's score."""
    learner: Any = judged.classifier.learner
    recorder = Recorder()
    feature = learner.backbone.forward(judged.pixels[at : at + 1], recorder, learner.reading)
    learner.sums.scores(feature)[0, judged.answers[at]].backward()
    return recorder.seen


def by_gradient(judged: Judged, at: int, layer: int) -> Tensor:
    """Gradient times activation of the patch tokens that enter a block; 0 is the patch embedding."""
    token = _recorded(judged, at)[("norm1", layer) if layer else ("embed", -1)]
    assert token.grad is not None
    rows, columns = judged.grid
    return (token * token.grad)[0].sum(dim=-1).detach()[-rows * columns :]


def by_attention(judged: Judged, at: int) -> Tensor:
    """Attention times its positive gradient, mean over heads, multiplied over the blocks; the class token's row."""
    seen, vit = _recorded(judged, at), judged.classifier.learner.backbone.vit
    rolled: Tensor | None = None
    for layer, block in enumerate(vit.blocks):
        attn = block.attn
        q, k, v = (
            part.unflatten(-1, (attn.num_heads, attn.head_dim)).transpose(0, 1)
            for part in seen["qkv", layer][0].detach().chunk(3, dim=-1)
        )
        weights = (q @ k.mT * attn.scale).softmax(dim=-1)
        back = seen["proj", layer].grad
        assert back is not None
        out = (back[0] @ attn.proj.weight).unflatten(-1, (attn.num_heads, attn.head_dim)).transpose(0, 1)
        step = (weights * (out @ v.mT)).clamp(min=0).mean(dim=0)
        unit = torch.eye(len(step)) if rolled is None else rolled
        rolled = unit + step @ unit
    assert rolled is not None
    rows, columns = judged.grid
    return rolled[0, -rows * columns :]


def by_integrated_gradients(judged: Judged, at: int) -> Tensor:
    """Mean gradient on the way from the mean colour to the photo, times the difference, per patch."""
    learner: Any = judged.classifier.learner
    image = judged.pixels[at]
    start = image.mean(dim=(1, 2), keepdim=True).expand_as(image)
    way = torch.stack([start + (image - start) * (step + 0.5) / STEPS for step in range(STEPS)])
    way.requires_grad_()
    scores = learner.sums.scores(learner.backbone.forward(way, None, learner.reading))
    (gradient,) = torch.autograd.grad(scores[:, judged.answers[at]].sum(), way)
    share = (gradient.mean(dim=0) * (image - start)).sum(dim=0)
    rows, columns = judged.grid
    return F.avg_pool2d(share[None, None], share.shape[0] // rows).view(rows, columns)


def at_random(judged: Judged, at: int) -> Tensor:
    """Patches in random order."""
    rows, columns = judged.grid
    return torch.rand(rows * columns, generator=torch.Generator().manual_seed(at))


WAYS: dict[str, Callable[[Judged, int], Tensor]] = {
    "covers (explain)": by_covers,
    "occlusion": by_occlusion,
    "occlusion 2x2": lambda judged, at: by_occlusion(judged, at, 2),
    "integrated gradients": by_integrated_gradients,
    "attention x gradient": by_attention,
    "gradient x token, block 1": lambda judged, at: by_gradient(judged, at, 0),
    "gradient x token, block 4": lambda judged, at: by_gradient(judged, at, 3),
    "gradient x token, last": lambda judged, at: by_gradient(
        judged, at, judged.classifier.learner.backbone.shape.depth - 1
    ),
    "random": at_random,
}


if __name__ == "__main__":
    main()
