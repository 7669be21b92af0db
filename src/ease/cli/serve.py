"""Serve a model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.errors import EaseError


def serve(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="EASE_TOKEN", help="What changes of the model need; better not on the command line."
        ),
    ] = None,
    weights: options.Weights = None,
    budget: options.Budget = None,
    create: Annotated[bool, typer.Option("--create", help="Start a new model if there is none.")] = False,
    method: options.Method = None,
    backbone: Annotated[str | None, typer.Option(help="Of a new model; see 'ease backbones'.")] = None,
    augment: Annotated[
        str | None, typer.Option(help="Of a new model: photos, or gentle for what must not be mirrored.")
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder for uploads while they are needed; a temporary one if left out."),
    ] = None,
    predict_mb: Annotated[int, typer.Option(min=1, help="Largest request for predictions.")] = 20,
    predict_files: Annotated[int, typer.Option(min=1, help="Most images in it.")] = 64,
    learn_mb: Annotated[int, typer.Option(min=1, help="Largest request to learn.")] = 500,
    learn_files: Annotated[int, typer.Option(min=1, help="Most images in it.")] = 10_000,
    unpacked_mb: Annotated[int, typer.Option(min=1, help="Largest archive, unpacked.")] = 2000,
    megapixels: Annotated[int, typer.Option(min=1, max=89, help="Largest image.")] = 50,
    job_seconds: Annotated[int, typer.Option(min=1, help="Longest job.")] = 3600,
    waiting: Annotated[int, typer.Option(min=1, help="Most predictions at a time.")] = 64,
) -> None:
    """Answer over HTTP and learn new classes meanwhile. The page is at the address it prints, the API at /docs."""
    from ease.app.server import require_packages

    require_packages()
    from ease.app.server.guard import MB, Limits, check_token
    from ease.app.server.run import serve as run

    check_token(host, token)
    _prepare(model, create, {"method": method, "backbone": backbone, "augment": augment}, weights)
    limits = Limits(
        predict_bytes=predict_mb * MB,
        predict_files=predict_files,
        learn_bytes=learn_mb * MB,
        learn_files=learn_files,
        unpacked_bytes=unpacked_mb * MB,
        pixels=megapixels * 1_000_000,
        job_seconds=job_seconds,
        waiting=waiting,
    )
    run(
        model,
        host=host,
        port=port,
        token=token,
        weights=weights,
        budget=budget,
        work=work,
        limits=limits,
        announce=typer.echo,
    )


def _prepare(model: Path, create: bool, wanted: dict[str, str | None], weights: Path | None) -> None:
    """A new model where one is wanted and none is. A server that is started again finds its own."""
    from ease.storage.model_directory import ModelDirectory

    given = {key: value for key, value in wanted.items() if value is not None}
    if not create:
        if given:
            options_given = " and ".join(f"--{key}" for key in given)
            raise EaseError(f"{options_given} is for a new model: add --create, or leave it out")
        ModelDirectory(model).manifest()  # a wrong path is told before the server is made
        return
    directory = ModelDirectory(model)
    if directory.exists:
        found = directory.manifest()
        kept = {
            "method": found.method,
            "backbone": found.backbone.name,
            "augment": found.augmentation or "photos",
        }
        for key, value in given.items():
            if value != kept[key]:
                raise EaseError(
                    f"{model} already holds a model with {key} {kept[key]}: choose another folder"
                )
        return
    from ease.app.classifier import Classifier

    Classifier.create(model, weights=weights, **given)  # type: ignore[arg-type]
