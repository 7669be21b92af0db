"""Commands that take a saved model to other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.output import print_json

Model = Annotated[Path, typer.Argument(help="Model directory, or a run's folder.")]


def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """Write a saved model as one ONNX file, which runs without ease; its logits are checked."""
    from dataclasses import asdict

    from ease.app.export import export_onnx

    done = export_onnx(model, onnx, weights=weights)
    if as_json:
        print_json({**asdict(done), "path": str(done.path)})
        return
    typer.echo(
        f"{done.path}: {_size(done.bytes)}, {done.classes} classes, opset {done.opset}, "
        f"outputs {', '.join(done.outputs)}, largest difference {done.largest_difference:.1e}"
    )


def pack(
    model: Model,
    out: Annotated[Path, typer.Option(help="The archive to write, such as flowers.ease.")],
    weights: options.Weights = None,
    with_images: Annotated[
        bool, typer.Option("--with-images", help="Also the training images that the method keeps.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write a saved model and its backbone's weights into one archive."""
    from dataclasses import asdict

    from ease.app import archive as packing

    done = packing.pack(model, out, weights=weights, images=with_images)
    if as_json:
        print_json({**asdict(done), "path": str(done.path)})
        return
    typer.echo(f"{done.path}: {_size(done.bytes)}, generation {done.generation}, {done.files} files")


def unpack(
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="What 'ease pack' wrote.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    as_json: options.Json = False,
) -> None:
    """Turn an archive into a model directory that opens without any download."""
    from dataclasses import asdict

    from ease.app import archive as packing

    done = packing.unpack(archive, folder)
    if as_json:
        print_json({**asdict(done), "path": str(done.path)})
        return
    typer.echo(
        f"{done.path}: generation {done.generation}, {done.files} files, every checksum agrees; "
        f"look at it with: ease info {done.path}"
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MB"
