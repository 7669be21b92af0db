"""Commands that bring a saved model to other machines: export, pack, unpack, push, pull, card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.output import echo, print_json


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
    echo(
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
    echo(f"{done.path}: {_size(done.bytes)}, generation {done.generation}, {done.files} files")


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
    echo(
        f"{done.path}: generation {done.generation}, {done.files} files, all checksums are right; "
        f"show it with: ease info {done.path}"
    )


License = Annotated[str | None, typer.Option(help="License for the model card, such as mit or cc-by-4.0.")]


def push(
    model: options.SavedModel,
    target: Annotated[
        str,
        typer.Argument(
            help="hf://user/name, https://host/folder/name.ease for a server that takes PUT, or a path."
        ),
    ],
    license: License = None,
    weights: options.Weights = None,
    with_images: Annotated[
        bool,
        typer.Option(
            "--with-images", help="Include the training images that an exemplar-based method keeps."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Pack a model and put it where others can pull it.

    Its SHA-256 is printed and put beside it. The token is read from HF_TOKEN for the hub, from EASE_SHARE_TOKEN for an
    HTTP location.
    """
    from dataclasses import asdict

    from ease.app import sharing

    done = sharing.push(model, target, weights=weights, images=with_images, license=license)
    if as_json:
        print_json(asdict(done))
        return
    echo(f"{done.place}: {_size(done.bytes)}, generation {done.generation}")
    echo(f"SHA-256 {done.sha256}")
    echo(f"get it with: ease pull {done.place} MODEL --sha256 {done.sha256}")


def pull(
    source: Annotated[str, typer.Argument(help="What was given to 'ease push' as its target.")],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A new or empty folder.")],
    sha256: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="SHA-256 that 'ease push' printed; another one is refused."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fetch a model that was pushed. Everything in it is checked."""
    from dataclasses import asdict

    from ease.app import sharing

    done = sharing.pull(source, model, sha256=sha256)
    if as_json:
        print_json({**asdict(done), "model": str(model)})
        return
    echo(f"{model}: {_size(done.bytes)}, generation {done.generation}, SHA-256 {done.sha256}")
    if not done.checked:
        echo("note: it was compared with no SHA-256: there is none beside it, and --sha256 was not given")
    echo(f"show it with: ease info {model}")


def card(
    model: options.SavedModel,
    license: License = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, such as README.md; default: print it.")
    ] = None,
) -> None:
    """Write the model card: classes, accuracy as measured, what is stored, how to use it."""
    from ease.app.card import model_card
    from ease.storage.files import check_place, write_atomic

    if out is not None:
        check_place(out)
    text = model_card(model, license=license)
    if out is None:
        echo(text, nl=False)
        return
    write_atomic(out, text.encode())
    echo(f"wrote {out}")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
