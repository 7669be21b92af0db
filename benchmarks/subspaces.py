"""What one call for all subspaces saves over one pass per subspace.

Each row is a ratio measured in this run: separate passes (the same frozen adapters, one `forward` each) against
`Backbone.features`, taken in turns, medians of seven.

    make bench
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.tuning import Adapter

REPEATS = 7


def adapters(backbone: Backbone, count: int, rank: int) -> list[Adapter]:
    """Adapters that do something: an untrained one is zero."""
    draw = torch.Generator().manual_seed(0)
    made = [Adapter(backbone.shape, rank=rank, generator=draw) for _ in range(count)]
    for adapter in made:
        for weights in adapter.parameters():
            torch.nn.init.normal_(weights, std=0.02, generator=draw)
        adapter.freeze()
    return made


def alternating(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of each, taken in turns so that both meet the same machine."""
    seconds: tuple[list[float], list[float]] = ([], [])
    first(), second()
    for _ in range(REPEATS):
        for work, times in zip((first, second), seconds, strict=True):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


@torch.no_grad()
def main() -> None:
    backbone = load_backbone("ease-vit")
    table = Table(
        "S",
        "rank",
        "batch",
        "separate ms",
        "together ms",
        "ratio",
        title=f"ease-vit, {torch.get_num_threads()} threads",
    )
    for count in (1, 5, 10, 20):
        for rank in (16, 64):
            tunings = adapters(backbone, count, rank)
            for batch in (1, 8, 32):
                images = torch.randn(batch, 3, backbone.pixels.size, backbone.pixels.size)

                def separate(tunings: list[Adapter] = tunings, images: torch.Tensor = images) -> torch.Tensor:
                    return torch.stack([backbone.forward(images, t) for t in tunings])

                def together(tunings: list[Adapter] = tunings, images: torch.Tensor = images) -> torch.Tensor:
                    return backbone.features(images, tunings)

                slow, fast = alternating(separate, together)
                figures = f"{1e3 * slow:.1f}", f"{1e3 * fast:.1f}", f"{slow / fast:.2f}x"
                table.add_row(str(count), str(rank), str(batch), *figures)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
