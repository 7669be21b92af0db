"""Whether `torch.compile` pays: a step of training as it is and compiled, in turns, and what compiling costs.

Compiling needs a C++ compiler. Every new process compiles anew unless torch finds its cache.

    python -m benchmarks.compiled --backbone ease-vit
"""

from __future__ import annotations

from benchmarks.cases import asked_for, parser_for_one_case
from benchmarks.clock import alternating, timed


def main() -> None:
    parser = parser_for_one_case(__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 48])
    options = parser.parse_args()
    world = asked_for(options)
    for batch in options.batch:
        plain, compiled = world.training_step(batch), world.training_step(batch, compiled=True)
        _, first = timed(compiled)
        pair = alternating(plain, compiled)
        saved = pair.naive - pair.ours
        pays = f"pays after {first / saved:,.0f} steps" if saved > 0 else "never pays"
        print(
            f"{options.backbone}, batch {batch}: a step {1e3 * pair.naive:.1f} ms, compiled {1e3 * pair.ours:.1f} ms "
            f"({pair.ratio:.2f}x); compiling took {first:.0f} s: {pays}"
        )


if __name__ == "__main__":
    main()
