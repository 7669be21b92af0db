"""Renders the characters of `glyphs`: dark ink on light paper, slightly rotated, shifted and scaled."""

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
"""Side length of an image, in pixels."""

_SUPERSAMPLING = 3
"""Images are drawn this much larger and then reduced: strokes get soft edges, and hinting hardly matters."""

_FONT_SIZE = 240
"""Size in pixels at which the fonts are read."""


@dataclass(frozen=True)
class RenderingStyle:
    """How much images of one character differ. Lengths are in pixels of the finished image.

    Attributes:
        capital_height: Height of a capital H.
        max_extent: Largest width or height of a character; the test crop shows only the middle 56 pixels.
        scale: Range of the random factor on the size.
        rotation: Largest rotation, in degrees.
        shift: Largest shift from the centre, in both directions.
        ink: Range of the brightness of the ink, 0 to 255.
        paper: Range of the brightness of the paper, 0 to 255.
        tint: Largest difference of a colour channel from the brightness.
        noise: Largest random difference of a pixel.
    """

    capital_height: float = 40.0
    max_extent: float = 47.0
    scale: tuple[float, float] = (0.96, 1.04)
    rotation: float = 5.0
    shift: float = 1.0
    ink: tuple[float, float] = (15.0, 45.0)
    paper: tuple[float, float] = (160.0, 195.0)
    tint: float = 4.0
    noise: int = 5


def render_character(
    character: Character, font: str, style: RenderingStyle, seed: tuple[int, ...]
) -> npt.NDArray[np.uint8]:
    """Render one image.

    Args:
        character: What to draw.
        font: Name of a font of matplotlib.
        style: The ranges of the random variation.
        seed: Random seed; equal seeds give equal images.

    Returns:
        uint8 RGB [64, 64, 3].
    """
    # The legacy generator: its numbers are promised never to change.
    random = np.random.RandomState(seed)
    u = random.random_sample(12).astype(np.float32)
    mask = _ink_mask(character, font, style, u)[..., None]
    ink = _between(style.ink, u[4]) + style.tint * (2 * u[6:9] - 1)
    paper = _between(style.paper, u[5]) + style.tint * (2 * u[9:12] - 1)
    noise = random.randint(-style.noise, style.noise + 1, (SIDE, SIDE, 1)).astype(np.float32)
    return np.clip(np.rint(paper + (ink - paper) * mask + noise), 0, 255).astype(np.uint8)


def _ink_mask(
    character: Character, font: str, style: RenderingStyle, u: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """How much ink each pixel has, [64, 64] in 0..1."""
    shape, capital = glyph_shape(character, font)
    size = min(style.capital_height / capital, style.max_extent / max(shape.size))
    size = size * _between(style.scale, u[0])
    angle = math.radians(style.rotation * (2 * u[1] - 1))
    shift_x, shift_y = style.shift * (2 * u[2:4] - 1)
    # Pillow needs the inverse transform: where each pixel of the result comes from.
    cos, sin = math.cos(angle) / (size * _SUPERSAMPLING), math.sin(angle) / (size * _SUPERSAMPLING)
    x, y = (SIDE / 2 + shift_x) * _SUPERSAMPLING, (SIDE / 2 + shift_y) * _SUPERSAMPLING
    inverse = (cos, sin, shape.width / 2 - cos * x - sin * y, -sin, cos, shape.height / 2 + sin * x - cos * y)
    large = shape.transform(
        (SIDE * _SUPERSAMPLING, SIDE * _SUPERSAMPLING),
        Image.Transform.AFFINE,
        inverse,
        Image.Resampling.BILINEAR,
    )
    return np.asarray(large.reduce(_SUPERSAMPLING), dtype=np.float32) / np.float32(255)


@lru_cache(maxsize=32)
def glyph_shape(character: Character, font: str) -> tuple[Image.Image, float]:
    """The shape of a character in a font.

    Returns:
        A grey image cropped to the character, and the height of a capital H in the same pixels.
    """
    path = font_file(font)
    if not path.is_file():
        raise EaseError(f"font '{path}' is missing, and 'glyphs' is drawn with it: reinstall matplotlib")
    # The basic layout engine: the other one is a system library that may differ or be missing.
    loaded = ImageFont.truetype(str(path), _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    _, top, _, bottom = loaded.getbbox("H")
    canvas = Image.new("L", (4 * _FONT_SIZE, 4 * _FONT_SIZE))
    ImageDraw.Draw(canvas).text((_FONT_SIZE, _FONT_SIZE), character.code(font), fill=255, font=loaded)
    outline = canvas.getbbox()
    if outline is None:
        raise EaseError(f"font '{path}' draws nothing for '{character.name}': reinstall matplotlib")
    left, upper, right, lower = outline
    return canvas.crop((left - 1, upper - 1, right + 1, lower + 1)), float(bottom - top)


def _between(ends: tuple[float, float], u: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * u
