"""Commands that list names: methods, datasets, backbones, presets, studies. `ease datasets check` is here too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.output import echo, listing, print_json
from ease.errors import showable


def methods(as_json: options.Json = False) -> None:
    """List the methods, including those of other installed packages."""
    from ease.methods import faults
    from ease.methods import methods as known
    from ease.tuning import faults as tuning_faults

    rows = [
        {"name": name, "kind": learner.kind, "tuning": learner.tuning, "idea": learner.idea}
        for name, learner in known().items()
    ]
    listing(rows, as_json)
    for line in (*faults().values(), *tuning_faults().values()):
        echo(f"note: {line}", err=True)


def datasets(as_json: options.Json = False) -> None:
    """List the datasets."""
    from ease.streams.datasets import dataset_faults, dataset_list

    listing([{"name": name, "about": about} for name, about in dataset_list().items()], as_json)
    for line in dataset_faults().values():
        echo(f"note: {line}", err=True)


def backbones(as_json: options.Json = False) -> None:
    """List some backbones. Any plain timm ViT can be used by its name."""
    from ease.backbone.zoo import backbone_list

    listing([{"name": name, "about": about} for name, about in backbone_list().items()], as_json)


def presets(
    name: Annotated[str | None, typer.Argument(help="Preset whose rows are listed.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the presets, or the rows of one preset.

    A row names the dataset, protocol and backbone as well: 'ease run --preset released/ROW' needs no other option.
    """
    from ease.presets import ALIASES, preset_list, preset_rows

    name = ALIASES.get(name or "", name)
    about = preset_list()
    rows = {key: preset_rows(key) for key in (about if name is None else [name])}
    named = [{"name": row, **place} for own in rows.values() for row, place in own.items()]
    if name is not None and named:
        listing(named, as_json)
    elif name is not None:
        listing([{"name": name, "about": about[name]}], as_json)
        echo(f"note: preset '{name}' has no rows: it can be used with every dataset", err=True)
    elif as_json:
        print_json([{"name": key, "about": line} for key, line in about.items()] + named)
    else:
        listed = {
            key: f"{line} ({len(rows[key])} rows)" if rows[key] else line for key, line in about.items()
        }
        listing([{"name": key, "about": line} for key, line in listed.items()], as_json)
        echo("list the rows of a preset with: ease list presets NAME", err=True)


def studies(as_json: options.Json = False) -> None:
    """List the studies."""
    from ease.experiments.plans.study import study_list

    listing([{"name": name, "about": about} for name, about in study_list().items()], as_json)


LISTS: dict[str, Callable[..., None]] = {
    "methods": methods,
    "datasets": datasets,
    "backbones": backbones,
    "presets": presets,
    "studies": studies,
}
list_app = typer.Typer(no_args_is_help=True, help="List methods, datasets, backbones, presets or studies.")
for list_name, command in LISTS.items():
    list_app.command(list_name)(command)

datasets_app = typer.Typer(invoke_without_command=True, help="Check the images of a dataset.")


@datasets_app.callback()
def _datasets(context: typer.Context, as_json: options.Json = False) -> None:
    if context.invoked_subcommand is None:  # the older name of 'ease list datasets'
        datasets(as_json)


@datasets_app.command()
def check(
    name: Annotated[str, typer.Argument(help="Dataset, see 'ease list datasets'.")],
    data_root: Annotated[Path | None, typer.Option(help="Folder of the dataset.")] = None,
    archive: Annotated[
        Path | None,
        typer.Option(help="Compare this archive with its published MD5; without --data-root, only that."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Look for damaged, duplicate and missing images. The exit code is 1 if the data is damaged."""
    from ease.progress import Bars
    from ease.streams.datasets.check import check_dataset

    found = check_dataset(name, data_root, archive, Bars())
    if as_json:
        print_json(found.as_json())
    else:
        for line in found.lines():
            echo(showable(line))
    if not found.good:
        raise typer.Exit(1)
