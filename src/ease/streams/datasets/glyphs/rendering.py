"""Prints the characters of `glyphs`: dark ink on paper, a little askew."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from ease.errors import EaseError
from ease.streams.datasets.glyphs.characters import Character, font_file

SIDE = 64
"""Of an image, in pixels."""

_FINE = 3
"""Images are drawn this much larger and then reduced: strokes get soft edges, and hinting hardly matters."""

_TYPE = 240
"""Size in pixels at which the fonts are read."""


@dataclass(frozen=True)
class Look:
    """How far prints of one character differ. Lengths are in pixels of the finished image.

    Attributes:
        capital: height of a capital H.
        longest: no character is larger than this: the test crop shows the middle 56 pixels only.
        zoom: range of the factor on the size.
        turn: largest rotation, in degrees.
        shift: largest distance from the middle, both ways.
        ink, paper: range of the brightness.
        tint: how far each colour channel strays from the brightness.
        grain: how far each pixel strays.
    """

    capital: float = 40.0
    longest: float = 47.0
    zoom: tuple[float, float] = (0.96, 1.04)
    turn: float = 5.0
    shift: float = 1.0
    ink: tuple[float, float] = (15.0, 45.0)
    paper: tuple[float, float] = (160.0, 195.0)
    tint: float = 4.0
    grain: int = 5


def print_character(
    character: Character, font: str, look: Look, seed: tuple[int, ...]
) -> npt.NDArray[np.uint8]:
    """One image, uint8 [64, 64, 3]; the same for the same seed."""
    # The legacy generator: its numbers are promised never to change.
    random = np.random.RandomState(seed)
    u = random.random_sample(12).astype(np.float32)
    mask = _stamp(character, font, look, u)[..., None]
    ink = _between(look.ink, u[4]) + look.tint * (2 * u[6:9] - 1)
    paper = _between(look.paper, u[5]) + look.tint * (2 * u[9:12] - 1)
    grain = random.randint(-look.grain, look.grain + 1, (SIDE, SIDE, 1)).astype(np.float32)
    return np.clip(np.rint(paper + (ink - paper) * mask + grain), 0, 255).astype(np.uint8)


def _stamp(
    character: Character, font: str, look: Look, u: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Where the ink is, [64, 64] in 0..1."""
    shape, capital = glyph(character, font)
    size = min(look.capital / capital, look.longest / max(shape.size)) * _between(look.zoom, u[0])
    angle = math.radians(look.turn * (2 * u[1] - 1))
    shift_x, shift_y = look.shift * (2 * u[2:4] - 1)
    # Pillow asks where each pixel of the result comes from, so this is the way back: unshift, unturn, unzoom.
    cos, sin = math.cos(angle) / (size * _FINE), math.sin(angle) / (size * _FINE)
    x, y = (SIDE / 2 + shift_x) * _FINE, (SIDE / 2 + shift_y) * _FINE
    back = (cos, sin, shape.width / 2 - cos * x - sin * y, -sin, cos, shape.height / 2 + sin * x - cos * y)
    large = shape.transform(
        (SIDE * _FINE, SIDE * _FINE), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR
    )
    return np.asarray(large.reduce(_FINE), dtype=np.float32) / np.float32(255)


@lru_cache(maxsize=32)
def glyph(character: Character, font: str) -> tuple[Image.Image, float]:
    """The character's shape, cut to its outline, and the height of the font's capitals in the same pixels."""
    path = font_file(font)
    if not path.is_file():
        raise EaseError(f"font '{path}' is missing, and 'glyphs' is drawn with it: reinstall matplotlib")
    # The basic layout engine: the other one is a system library that may differ or be missing.
    type_ = ImageFont.truetype(str(path), _TYPE, layout_engine=ImageFont.Layout.BASIC)
    _, top, _, bottom = type_.getbbox("H")
    sheet = Image.new("L", (4 * _TYPE, 4 * _TYPE))
    ImageDraw.Draw(sheet).text((_TYPE, _TYPE), character.code(font), fill=255, font=type_)
    outline = sheet.getbbox()
    if outline is None:
        raise EaseError(f"font '{path}' draws nothing for '{character.name}': reinstall matplotlib")
    left, upper, right, lower = outline
    return sheet.crop((left - 1, upper - 1, right + 1, lower + 1)), float(bottom - top)


def _between(ends: tuple[float, float], u: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * u
