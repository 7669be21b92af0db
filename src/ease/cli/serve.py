"""The command that serves a model over HTTP."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ease.cli import options
from ease.cli.output import echo
from ease.errors import EaseError


def serve(
    model: Annotated[Path | None, typer.Option(help="Model directory.")] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of model directories: each is served at /m/NAME/, instead of --model."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own requires a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="EASE_TOKEN",
            help="Token that is required to change the model. Setting EASE_TOKEN is safer than this option.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="EASE_TOKENS",
            metavar="FILE",
            help="YAML or JSON file with lines 'NAME: TOKEN', for models with a token of their own (--models).",
        ),
    ] = None,
    weights: options.Weights = None,
    budget: options.Budget = None,
    precision: options.Precision = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder for uploads until they are processed; default: a temporary one."),
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML or JSON file with limits of requests and jobs, such as 'predict_files: 100'; "
            "docs/how-to/serve.md lists all of them with their defaults.",
        ),
    ] = None,
    inbox: Annotated[
        bool,
        typer.Option(
            "--inbox",
            help="Keep photos whose answers people correct, in the folder MODEL.inbox, until they are learned.",
        ),
    ] = False,
    collect_unsure: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Also keep photos that the model is unsure of, at most N per day."
        ),
    ] = 0,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="Send traces to OpenTelemetry, to where the OTEL_ variables say (localhost:4318).",
        ),
    ] = False,
    ray: options.Ray = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="N",
            help="Number of models on the Ray cluster that score images; default: 2.",
            rich_help_panel=options.HARDWARE,
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Create an empty model if there is none.",
            rich_help_panel=options.NEW_MODEL,
        ),
    ] = False,
    method: options.NewMethod = None,
    augment: options.NewAugment = None,
    backbone: options.NewBackbone = None,
) -> None:
    """Serve a model over HTTP, with a web page, or several at once.

    The server keeps answering while the model learns new classes. The web page is at the printed address, and the
    description of the API is at /docs.
    """
    from ease.app.server import require_packages

    require_packages()
    from ease.app.server.guard import check_token
    from ease.app.server.limits import Limits, read_limits
    from ease.app.server.run import serve as run
    from ease.app.server.run import serve_several
    from ease.app.server.tokens import read_tokens

    if (model is None) == (models is None):
        raise EaseError("give either --model, the directory of one model, or --models, a folder of several")
    if collect_unsure and not inbox:
        raise EaseError("--collect-unsure needs an inbox to keep the photos in: add --inbox")
    if replicas is not None and ray is None:
        raise EaseError("--replicas are on a Ray cluster: add --ray")
    if ray is not None:
        from ease.cluster import import_ray

        import_ray()
    accepted = Limits() if limits is None else read_limits(limits)
    new = {"method": method, "backbone": backbone, "augment": augment}
    common: dict[str, Any] = {
        "host": host,
        "port": port,
        "token": token,
        "weights": weights,
        "budget": budget,
        "precision": options.asked_precision(precision),
        "work": work,
        "limits": accepted,
        "inbox": inbox,
        "collect_unsure": collect_unsure,
        "traces": traces,
        "announce": partial(echo, file=sys.stdout),
    }
    if models is not None:
        if create or any(value is not None for value in new.values()):
            raise EaseError("--create and the options for a new model belong to --model, not to --models")
        if ray is not None:
            raise EaseError("--ray serves one model: give --model in place of --models")
        serve_several(models, tokens=None if tokens is None else read_tokens(tokens), **common)
        return
    assert model is not None
    if tokens is not None:
        raise EaseError(
            "--tokens (EASE_TOKENS) belongs to --models: give the token of one model by EASE_TOKEN"
        )
    check_token(host, token)
    _prepare(model, create, new, weights, common["precision"])
    run(model, ray=ray, replicas=replicas or 2, **common)


def _prepare(
    model: Path, create: bool, wanted: dict[str, str | None], weights: Path | None, precision: Any
) -> None:
    """Create the model if that is asked for and there is none. A restarted server finds its model."""
    from ease.storage.model_directory import ModelDirectory

    given = {key: value for key, value in wanted.items() if value is not None}
    directory = ModelDirectory(model)
    if not create:
        if given:
            names = " and ".join(f"--{key}" for key in given)
            raise EaseError(f"{names} is for a new model: add --create, or leave it out")
        directory.manifest()  # a wrong path is reported before the server is started
        return
    if directory.exists:
        from ease.app.repeated import check_repeated

        check_repeated(model, directory.manifest(), given)
        return
    from ease.app.classifier import Classifier

    Classifier.create(model, weights=weights, precision=precision, **given)  # type: ignore[arg-type]
