"""What can be named: methods, datasets, backbones, studies, presets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.output import listing, print_json

datasets_app = typer.Typer(invoke_without_command=True)


def methods(as_json: options.Json = False) -> None:
    """List the methods, those of other packages too."""
    from ease.methods import faults
    from ease.methods import methods as known
    from ease.tuning import faults as tuning_faults

    rows = [
        {"name": name, "kind": learner.kind, "tuning": learner.tuning, "idea": learner.idea}
        for name, learner in known().items()
    ]
    listing(rows, as_json)
    for line in (*faults().values(), *tuning_faults().values()):
        typer.echo(f"note: {line}", err=True)


@datasets_app.callback()
def datasets(context: typer.Context, as_json: options.Json = False) -> None:
    """List the datasets, or check one."""
    if context.invoked_subcommand is not None:
        return
    from ease.streams.datasets import dataset_faults, dataset_list

    listing([{"name": name, "about": about} for name, about in dataset_list().items()], as_json)
    for line in dataset_faults().values():
        typer.echo(f"note: {line}", err=True)


@datasets_app.command()
def check(
    name: Annotated[str, typer.Argument(help="See 'ease datasets'.")],
    data_root: options.DataRoot = None,
    archive: Annotated[
        Path | None, typer.Option(help="Compare this file with the published MD5; alone, only that.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Look for damage, duplicates and missing images; exits with 1 if the data is damaged."""
    from ease.progress import Bars
    from ease.streams.datasets.check import check_dataset

    found = check_dataset(name, data_root, archive, Bars())
    if as_json:
        print_json(found.as_json())
    else:
        for line in found.lines():
            typer.echo(line)
    if not found.good:
        raise typer.Exit(1)


def backbones(as_json: options.Json = False) -> None:
    """List backbones worth knowing; any plain timm ViT works by its name."""
    from ease.backbone.zoo import backbone_list

    listing([{"name": name, "about": about} for name, about in backbone_list().items()], as_json)


def studies(as_json: options.Json = False) -> None:
    """List the studies."""
    from ease.experiments.plans.study import study_list

    listing([{"name": name, "about": about} for name, about in study_list().items()], as_json)


def presets(
    name: Annotated[str | None, typer.Argument(help="List the named rows of this preset.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the presets; with a name, its rows: 'ease run --preset released/ROW' needs no other setting."""
    from ease.presets import ALIASES, preset_list, preset_rows

    name = ALIASES.get(name or "", name)
    about = preset_list()
    rows = {key: preset_rows(key) for key in (about if name is None else [name])}
    named = [{"name": row, **place} for own in rows.values() for row, place in own.items()]
    if name is not None and named:
        listing(named, as_json)
    elif name is not None:
        listing([{"name": name, "about": about[name]}], as_json)
        typer.echo(f"note: preset '{name}' has no named rows: it serves every dataset", err=True)
    elif as_json:
        print_json([{"name": key, "about": line} for key, line in about.items()] + named)
    else:
        listed = {
            key: f"{line} ({len(rows[key])} rows)" if rows[key] else line for key, line in about.items()
        }
        listing([{"name": key, "about": line} for key, line in listed.items()], as_json)
        typer.echo("rows of a preset: ease presets NAME", err=True)
