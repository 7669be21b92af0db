"""A model card: Markdown with YAML front matter that says what a model knows, how good it is, how to use it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ease.backbone.zoo import EMBEDDED
from ease.errors import EaseError
from ease.methods import find_method, making_sense
from ease.reporting.significance import wilson
from ease.storage.manifest import HistoryEntry, Manifest
from ease.storage.model_directory import model_directory

UNKNOWN_LICENSE = "unknown"
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#!|~$&])")
_CLASSES = 2_000
"""Rows of the table; a larger model's card names the first ones."""


def model_card(path: Path | str, *, title: str | None = None, license: str | None = None) -> str:
    """The card of a model, made from its manifest alone.

    Args:
        path: Model directory, or the folder of a run.
        title: Heading; the name of the folder if None.
        license: Short name of the license under which the owner gives the model away, such as `mit`.

    Returns:
        Markdown with YAML front matter, as the Hugging Face hub reads it.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> from ease.app.card import model_card
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = Classifier.create(f"{folder}/shades", input_size=16)
        ...     _ = model.learn({"dark": images[:2], "bright": images[2:]})
        ...     card = model_card(model.path, license="mit")
        >>> card.splitlines()[1], "| dark | 2 |" in card
        ('license: mit', True)
    """
    if license is not None and not _LICENSE.fullmatch(license):
        raise EaseError(f"'{license[:80]}' is no short name of a license: write for example mit or cc-by-4.0")
    directory = model_directory(Path(path))
    manifest = directory.manifest()
    name = title or directory.path.resolve().name
    with making_sense(directory):
        parts = [
            _front_matter(license or UNKNOWN_LICENSE),
            f"# {_plain(name)}",
            _summary(manifest),
            _classes(manifest),
            _measured(manifest),
            _stored(manifest),
            _use(),
            _terms(manifest, license),
        ]
    return "\n\n".join(parts) + "\n"


def _front_matter(license: str) -> str:
    tags = ["image-classification", "class-incremental-learning", "ease-cil"]
    facts = {
        "license": license,
        "library_name": "ease-cil",
        "pipeline_tag": "image-classification",
        "tags": tags,
    }
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---"


def _summary(manifest: Manifest) -> str:
    images = sum(entry.count for entry in manifest.classes)
    backbone = manifest.backbone
    title = find_method(manifest.method).title
    return (
        f"An image classifier of {len(manifest.classes)} classes, learned from {images} images with "
        f"`ease-cil`. It can learn further classes without the old images.\n\n"
        "| | |\n|---|---|\n"
        f"| method | `{manifest.method}` ({_plain(title)}) |\n"
        f"| backbone | `{_code(backbone.name)}`, frozen, {backbone.input_size} x {backbone.input_size} pixels |\n"
        f"| hash of the backbone's weights | `{_code(backbone.weights_hash)}` |\n"
        f"| generation | {manifest.generation}, written {_plain(manifest.created[:10])} |\n"
        f"| passes through the backbone per image | {manifest.passes_per_image} |"
    )


def _classes(manifest: Manifest) -> str:
    rows = [f"| {_plain(entry.name)} | {entry.count} |" for entry in manifest.classes[:_CLASSES]]
    more = len(manifest.classes) - len(rows)
    rows += [f"| and {more} more | |"] * bool(more)
    return "\n".join(["## Classes", "", "| class | images |", "|---|---:|", *rows])


def _measured(manifest: Manifest) -> str:
    lines = [_act(entry) for entry in manifest.history if entry.accuracy is not None and entry.held_out]
    head = "## Accuracy\n\n"
    if not lines:
        return f"{head}No image was held out, so that the accuracy was not measured."
    return (
        f"{head}Measured on images that were held out when classes were learned, among all classes of that day. It "
        "says nothing about images of another kind.\n\n"
        "| learned | new classes | held-out images | recognised | 95 % interval |\n|---|---:|---:|---:|---:|\n"
        + "\n".join(lines)
    )


def _act(entry: HistoryEntry) -> str:
    rate = float(entry.accuracy or 0.0)
    low, high = wilson(round(rate / 100 * entry.held_out), entry.held_out)
    return (
        f"| {_plain(entry.date[:10])} | {len(entry.classes)} | {entry.held_out} | {rate:.1f} % | "
        f"{low:.1f} to {high:.1f} % |"
    )


def _stored(manifest: Manifest) -> str:
    kinds: dict[str, int] = {}
    for name, entry in manifest.files.items():
        kind = name.split("/")[0]
        kinds[kind] = kinds.get(kind, 0) + entry.size
    told = {
        "subspaces": "trained adapters",
        "prototypes": "class prototypes",
        "learner": find_method(manifest.method).state_title,
    }
    rows = [
        f"- {_plain(told[kind])}: {size / 1e6:.2f} MB" for kind, size in sorted(kinds.items()) if kind in told
    ]
    if "memory" in kinds:
        rows.append(f"- **training images** that the method keeps: {kinds['memory'] / 1e6:.2f} MB")
    if manifest.kept_images:
        rows.append(f"- a **small picture** of {len(manifest.kept_images)} of the classes, made from a photo")
    if "memory" not in kinds and not manifest.kept_images:
        rows.append("- no image")
    rows.append("- the backbone's weights, in the archive")
    return "\n".join(["## What is stored", "", *rows])


def _use() -> str:
    return (
        "## Use\n\n```sh\npip install ease-cil\n"
        "ease pull SOURCE model                   # SOURCE: hf://user/name, or where the archive is\n"
        "ease predict photo.jpg --model model\n```\n\n"
        "```python\nfrom ease import Classifier\n\n"
        'model = Classifier.open("model")\n'
        'print(model.predict("photo.jpg")[0].name)\n```\n\n'
        "Confidences are calibrated where images were held out; a photo that is like none of the classes is marked as "
        "unknown."
    )


def _terms(manifest: Manifest, license: str | None) -> str:
    said = f"`{license}`" if license else "The owner has not stated a license"
    line = f"## License\n\n{said}. The backbone's weights have terms of their own."
    if manifest.backbone.name == EMBEDDED:
        line += " Those of `ease-vit` were trained on ImageNet images, which are provided for research."
    return line


def _plain(text: str) -> str:
    """Text of the owner that is not taken for Markdown or HTML."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split())) if not text.isalnum() else text


def _code(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:/-]", "?", text)
