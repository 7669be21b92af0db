"""Explanations as files: one picture for each photo, one HTML page with all of them, and JSON."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from jinja2 import Environment, StrictUndefined
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ease.app.explain import Explanation, Map
from ease.storage.contents import encode_json
from ease.storage.files import write_all

SIDE = 288
"""Side length of each of the three pictures beside each other, in pixels."""
GAP, CAPTION = 12, 30
MARKED = 0.2
"""The share of patches that are outlined: the warmest ones."""
FOR, AGAINST = (230, 97, 0), (26, 92, 190)
"""Orange and blue, which people with any of the usual kinds of colour blindness can tell apart."""
SEEN = 224 / 256
"""The part of the shorter side that the model sees."""


@dataclass(frozen=True)
class Explained:
    """A photo with its explanation.

    Attributes:
        file: What the page calls the photo.
        image: uint8 RGB [3, H, W].
        why: The explanation.
    """

    file: str
    image: Tensor
    why: Explanation


def write_explanations(explained: Sequence[Explained], out: Path) -> list[Path]:
    """Write a picture for each photo, a page with all of them, and the maps as JSON; returns the paths.

    Args:
        explained: The photos, in the order of the page.
        out: A folder; it is made if it does not exist.
    """
    rows: list[dict[str, Any]] = []
    pictures: dict[str, bytes] = {}
    for number, one in enumerate(explained, start=1):
        picture = overlay(one)
        stem = re.sub(r"[^\w.-]", "_", Path(one.file).stem)[:60] or "photo"
        pictures[f"{number:03d}-{stem}.jpg"] = picture
        found = one.why.prediction
        rows.append(
            {
                "file": one.file,
                "sentence": one.why.sentence,
                "answers": ", ".join(f"{c.name} {100 * c.confidence:.1f} %" for c in found.classes),
                "unknown": found.is_unknown,
                "picture": f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}",
                "nearest": [(near.name, near.difference) for near in one.why.nearest],
            }
        )
    document = [{"file": one.file, **one.why.model_dump(mode="json")} for one in explained]
    contents = {
        "explanations.html": _page(rows, explained).encode(),
        "explanations.json": encode_json({"version": 1, "explanations": document}),
    }
    return write_all(out, {**contents, **pictures})


def overlay(one: Explained) -> bytes:
    """A JPEG: the photo as the model sees it, the patches that spoke for the answer, and those against the rival."""
    photo = _seen(one.image)
    panels = [("what the model sees", photo), (f"for {one.why.name}", _heated(photo, one.why.heat))]
    if one.why.nearest:
        rival = one.why.nearest[0]
        panels.append((f"{one.why.name} rather than {rival.name}", _heated(photo, rival.heat)))
    width = len(panels) * SIDE + (len(panels) - 1) * GAP
    whole = Image.new("RGB", (width, SIDE + CAPTION), "white")
    draw = ImageDraw.Draw(whole)
    for at, (caption, panel) in enumerate(panels):
        left = at * (SIDE + GAP)
        whole.paste(panel, (left, CAPTION))
        draw.text((left + 2, 6), _fitting(caption, SIDE - 4), fill=(27, 31, 39), font=_font())
    buffer = io.BytesIO()
    whole.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _seen(image: Tensor) -> Image.Image:
    """The centre of a photo, which the model sees."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    side = max(1, round(min(picture.size) * SEEN))
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def _heated(photo: Image.Image, heat: Map) -> Image.Image:
    """The photo in grey, with orange where patches speak for the class and blue where they speak against it."""
    values = np.array(heat)
    smooth = np.asarray(
        Image.fromarray(values.astype(np.float32), mode="F").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    ).clip(-1, 1)
    grey = np.asarray(photo.convert("L"), dtype=np.float32)[..., None].repeat(3, axis=2)
    grey = 70 + grey * 0.62  # neither black nor white, so that both colours can be seen on it
    colour = np.where((smooth > 0)[..., None], np.array(FOR), np.array(AGAINST)).astype(np.float32)
    share = 0.75 * np.abs(smooth)[..., None] ** 0.8
    heated = Image.fromarray((grey * (1 - share) + colour * share).clip(0, 255).astype(np.uint8))
    _outline(heated, values)
    return heated


def _outline(picture: Image.Image, values: npt.NDArray[np.float64]) -> None:
    """Draw a line around the warmest patches, so that colour is not the only sign."""
    count = max(1, round(MARKED * values.size))
    limit = max(np.sort(values, axis=None)[-count], 1e-9)
    marked = np.pad(values >= limit, 1)
    rows, columns = values.shape
    draw = ImageDraw.Draw(picture)
    for colour, thick in (((0, 0, 0), 5), ((255, 255, 255), 2)):
        for row in range(rows + 1):
            for column in range(columns + 1):
                x, y = round(column * SIDE / columns), round(row * SIDE / rows)
                right, down = round((column + 1) * SIDE / columns), round((row + 1) * SIDE / rows)
                if column < columns and marked[row, column + 1] != marked[row + 1, column + 1]:
                    draw.line([(x, _inside(y)), (right, _inside(y))], fill=colour, width=thick)
                if row < rows and marked[row + 1, column] != marked[row + 1, column + 1]:
                    draw.line([(_inside(x), y), (_inside(x), down)], fill=colour, width=thick)


def _inside(at: int) -> int:
    return min(max(at, 2), SIDE - 3)


@lru_cache(maxsize=1)
def _font() -> Any:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), 14)


def _fitting(text: str, width: int) -> str:
    """A text that is cut if it is too wide."""
    if _font().getlength(text) <= width:
        return text
    while text and _font().getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _page(rows: list[dict[str, Any]], explained: Sequence[Explained]) -> str:
    source = (files("ease.app") / "explanations.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style = (files("ease.app") / "report.css").read_text(encoding="utf-8")
    method = explained[0].why.method if explained else ""
    return template.from_string(source).render(rows=rows, style=style, method=method)
