"""The command that reproduces tables and figures of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.options import executor_of, names, path_text, seed_numbers, shard_numbers
from ease.cli.output import console, echo, listing, print_json


def paper(
    name: Annotated[str, typer.Argument(help="Name of a table or figure, 'all', or 'list'.")],
    scale: Annotated[
        str, typer.Option(metavar="full|small|tiny", help="Size, see 'ease paper list'.")
    ] = "tiny",
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and results; default: runs/paper-SCALE.")
    ] = None,
    methods: options.Methods = None,
    since: Annotated[
        bool,
        typer.Option("--since", help="Also methods published since the paper, in table1 and the curves."),
    ] = False,
    seeds: options.Seeds = None,
    shard: Annotated[str, typer.Option(help="Do the I-th of N parts of the work.", metavar="I/N")] = "1/1",
    jobs: options.Jobs = 1,
    ray: options.Ray = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Use only this dataset; scale small needs one.", rich_help_panel=options.DATA),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Split of that dataset, B<m> Inc<n>.", rich_help_panel=options.DATA)
    ] = None,
    data_root: options.DataRoot = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    input_size: options.InputSize = None,
    limit_per_class: options.LimitPerClass = None,
    preset: options.Preset = None,
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> None:
    """Reproduce a table or figure of the paper.

    Repeat the command to continue work that was interrupted.
    """
    from ease.experiments.plans.paper import check_scale, exhibits, plan_exhibits, scales
    from ease.experiments.reproduction import Reproduction
    from ease.progress import Bars

    size, part, numbers = check_scale(scale), shard_numbers(shard), seed_numbers(seeds)
    if name == "list":
        rows = [{"name": n, "paper": e.paper, "what": e.title} for n, e in exhibits().items()]
        listing(rows, as_json)
        if not as_json:
            echo("")
            listing([{"scale": scale, "what": about} for scale, about in scales().items()], False)
        return
    executor = executor_of(ray, jobs)
    given = {
        "dataset": dataset,
        "protocol": protocol,
        "data_root": path_text(data_root),
        "backbone": backbone,
        "weights": path_text(weights),
        "input_size": input_size,
        "limit_per_class": limit_per_class,
        "preset": preset,
    }
    own = options.sets_beside(sets, {**given, "seed": numbers or None})
    wanted = plan_exhibits(
        name, size, methods=names(methods), since=since, seeds=numbers, options=given, sets=own
    )
    work = Reproduction(wanted, out or Path("runs") / f"paper-{size}")
    records = {}
    for drawn in work.run(executor, part, Bars()):
        records[drawn.name] = [record.as_json() for record in drawn.records]
        if not as_json:
            echo(f"{drawn.exhibit.paper}: {drawn.exhibit.title}")
            console().print(drawn.table)
            echo(f"wrote {', '.join(str(path) for path in drawn.written)}")
    if as_json:
        print_json(records)
    if work.failure is not None:
        raise work.failure
