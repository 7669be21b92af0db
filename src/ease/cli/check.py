"""The command that looks for wrong labels before anything is learned: check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.output import echo, print_json

SHOWN = 20
"""Findings that are printed; the report has all of them."""


def check(
    source: options.Photos = None,
    labels: options.Labels = None,
    root: options.Root = None,
    columns: options.Columns = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Compare with the classes of this model, and see through its backbone."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a report with pictures into this folder.")
    ] = None,
    false_alarms: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Expected share of photos with right labels that are named; default: 0.02."
        ),
    ] = 0.02,
    unreadable: options.Unreadable = "refuse",
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """Find photos with wrong labels, near-duplicates, and classes that look the same.

    Nothing is learned or changed. Run it before 'ease learn'.
    """
    from ease.app.audit import audit
    from ease.app.audit_page import write_audit
    from ease.app.classifier import Classifier
    from ease.errors import EaseError
    from ease.progress import Bars
    from ease.storage.files import check_folder_place
    from ease.streams.intake import collect_images

    if weights is not None and model is None:
        raise EaseError("--weights belongs to the backbone of a model: give --model as well")
    if out is not None:
        check_folder_place(out)
    bars = Bars()
    classifier = None if model is None else Classifier.open(model, weights)
    photos = collect_images(
        source,
        labels=labels,
        root=root,
        columns=options.names(columns) or None,
        unreadable=options.refuse_or_skip(unreadable),
        progress=bars,
    )
    found = audit(photos, classifier, false_alarms=false_alarms, progress=bars)
    written = [] if out is None else write_audit(found, photos, out)
    if as_json:
        print_json(found.document())
        return
    echo(
        f"{found.images:,} photos of {found.classes} class{'es' * (found.classes != 1)}: "
        f"{len(found.findings) or 'nothing'} to look at"
    )
    for finding in found.findings[:SHOWN]:
        echo(f"  {finding.sentence}")
    if len(found.findings) > SHOWN:
        where = written[0] if written else "--out DIR or --json"
        echo(f"  and {len(found.findings) - SHOWN} more: see {where}")
    echo(
        f"about {100 * found.false_alarms:g} in 100 photos with right labels are expected to be named: "
        "look before you move one"
    )
    for note in found.notes:
        echo(f"note: {note}")
    if written:
        echo(f"wrote {', '.join(str(path) for path in written)}")
