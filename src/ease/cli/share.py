"""Commands that bring a saved model to other machines: export, pack, unpack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.output import print_json


def export(
    model: options.SavedModel,
    onnx: Annotated[Path, typer.Option("--onnx", help="ONNX file to write.")],
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """Write a model as an ONNX file, which runs without ease. Its logits are checked."""
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
    model: options.SavedModel,
    out: Annotated[Path, typer.Option(help="Archive to write, such as flowers.ease.")],
    weights: options.Weights = None,
    with_images: Annotated[
        bool,
        typer.Option(
            "--with-images", help="Include the training images that an exemplar-based method keeps."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write a model and its backbone into one archive file."""
    from dataclasses import asdict

    from ease.app import archive as packing

    done = packing.pack(model, out, weights=weights, images=with_images)
    if as_json:
        print_json({**asdict(done), "path": str(done.path)})
        return
    typer.echo(f"{done.path}: {_size(done.bytes)}, generation {done.generation}, {done.files} files")


def unpack(
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="Archive that 'ease pack' wrote.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    as_json: options.Json = False,
) -> None:
    """Make a model directory from an archive. It needs no download."""
    from dataclasses import asdict

    from ease.app import archive as packing

    done = packing.unpack(archive, folder)
    if as_json:
        print_json({**asdict(done), "path": str(done.path)})
        return
    typer.echo(
        f"{done.path}: generation {done.generation}, {done.files} files, all checksums are right; "
        f"show it with: ease info {done.path}"
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
