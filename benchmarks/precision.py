"""The frozen linear layers in int8 against bf16 and fp32, and a ViT-B/16: what `make bench` does not measure.

Random pixels, random weights for the ViT-B/16 (speed does not depend on them), one call of `Backbone.features` for
each side of a ratio, in turns, in seconds of the processor. `int8` is torch's dynamic quantisation with its default
engine: weights in int8, inputs quantised in every call, everything else in fp32.

    EASE_SHARED=DIR python -m benchmarks.precision
    EASE_SHARED=DIR python -m benchmarks.precision --backbones ease-vit --batches 1,32
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import CASES
from benchmarks.clock import alternating, cpu_timed
from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.hardware import computes_bf16
from ease.tuning import Adapter

BASE = "vit_base_patch16_224"
BACKBONES = (*CASES, BASE)


def backbone_of(name: str) -> Backbone:
    """With its own weights where they are at hand."""
    if name == BASE:
        return load_backbone(name, pretrained=False)
    return load_backbone(name, weights=CASES[name].weights)


def quantised(backbone: Backbone) -> Backbone:
    """The same with its linear layers in int8."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vit = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(backbone.vit), {nn.Linear}, dtype=torch.qint8
        )
    found = copy.copy(backbone)
    found.vit, found._cast = vit, {}
    return found


def features(backbone: Backbone, precision: str, pixels: Tensor) -> Callable[[], Tensor]:
    """One call."""
    engine = Engine(backbone, Transforms(backbone.pixels), precision=precision)  # type: ignore[arg-type]
    return lambda: engine.features_of_pixels(pixels, [None], "tokens")[:, :, 0]


def training_step(backbone: Backbone, precision: str, pixels: Tensor) -> Callable[[], None]:
    """One step of an adapter with a head of ten classes: forwards, backwards, update."""
    engine = Engine(backbone, Transforms(backbone.pixels), precision=precision)  # type: ignore[arg-type]
    tuning, head = Adapter(backbone.shape).train(), nn.Linear(backbone.dim, 10)
    optimizer = torch.optim.SGD([*tuning.parameters(), *head.parameters()], 0.01, momentum=0.9)
    labels = torch.arange(len(pixels)) % 10

    def step() -> None:
        with engine.fabric.autocast():
            logits = head(backbone.forward(pixels, tuning))
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def rows(name: str, batches: list[int]) -> list[str]:
    """A line of the table for each batch size."""
    backbone = backbone_of(name)
    small = quantised(backbone)
    lines = []
    for batch in batches:
        side = backbone.pixels.size
        pixels = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
        fp32, bf16, int8 = (
            features(b, p, pixels)
            for b, p in ((backbone, "32-true"), (backbone, "bf16-mixed"), (small, "32-true"))
        )
        pairs = ((fp32, bf16), (fp32, int8), (int8, bf16))
        against = [alternating(*pair, watch=cpu_timed) for pair in pairs]
        steps = (training_step(backbone, precision, pixels) for precision in ("32-true", "bf16-mixed"))
        against.append(alternating(*steps, watch=cpu_timed))
        exact = fp32()[0]
        cosines = [float(F.cosine_similarity(one()[0], exact).min()) for one in (bf16, int8)]
        lines.append(
            f"| {name} | {batch} | {1e3 * against[0].naive:,.1f} ms | "
            + " | ".join([*(f"{pair.ratio:.2f}x" for pair in against), *(f"{one:.4f}" for one in cosines)])
            + " |"
        )
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbones", default=",".join(BACKBONES))
    parser.add_argument("--batches", default="1,16")
    options = parser.parse_args()
    if not computes_bf16(torch.device("cpu")):
        print("this machine emulates bf16: nothing is measured")
        return 0
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {torch.backends.quantized.engine}")
    heads = ["fp32", "bf16", "int8", "bf16 over int8", "training step, bf16", "cosine of bf16", "of int8"]
    print(f"| backbone | batch | {' | '.join(heads)} |\n|---|---:|{'---:|' * len(heads)}")
    for name in options.backbones.split(","):
        for line in rows(name, [int(batch) for batch in options.batches.split(",")]):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
