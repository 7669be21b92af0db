"""The characters of `glyphs` and the fonts that draw them: all of them ship with matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TRAIN_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
)
TEST_FONTS = ("STIXGeneral", "STIXGeneralBol", "cmr10", "cmb10", "cmss10", "cmtt10")
"""No family is in both: a method has to know the letter, not the typeface."""


@dataclass(frozen=True)
class Character:
    """One class.

    Attributes:
        name: readable, and safe as a folder name on file systems that ignore case.
        sign: the character.
        glyph: its PostScript name, by which a font can be checked.
        cm: the character under which Computer Modern keeps it, if that is another one.
    """

    name: str
    sign: str
    glyph: str
    cm: str | None = None

    def code(self, font: str) -> str:
        """What to ask this font for."""
        return self.cm if self.cm is not None and font.startswith("cm") else self.sign


_DIGITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_SIGNS = {
    "ampersand": "&",
    "asterisk": "*",
    "at": "@",
    "dollar": "$",
    "equal": "=",
    "exclam": "!",
    "numbersign": "#",
    "percent": "%",
    "plus": "+",
    "question": "?",
}
_GREEK = {  # with the place where Computer Modern keeps it
    "Delta": ("Δ", "\xa2"),
    "Sigma": ("Σ", "\xa7"),
    "Phi": ("Φ", "\xa9"),
    "Psi": ("Ψ", "\xaa"),
    "Omega": ("Ω", "\xad"),
}

# No twins: of 0 O o, C c, K k, P p, S s, U u, V v, W w, X x, Z z one is here; of 1 I l the digit. Left out because
# they come too near to others in some typeface: g (8), j, q (9), y, and the Greek letters that look like A, H, F or O.
CHARACTERS = (
    *(Character(c, c, c) for c in "ABCDEFGHJKLMNOPQRSTUVWXYZ"),
    *(Character(f"{c}-lower", c, c) for c in "abdefhimnrt"),
    *(Character(f"digit-{i}", str(i), glyph) for i, glyph in enumerate(_DIGITS, 1)),
    *(Character(name, sign, name) for name, sign in _SIGNS.items()),
    *(Character(name, sign, name, cm) for name, (sign, cm) in _GREEK.items()),
)


def font_file(font: str) -> Path:
    """Where matplotlib keeps it."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
