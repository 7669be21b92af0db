"""The characters of `glyphs` and their fonts, which are part of matplotlib."""

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
"""No font family is in both lists: a method has to learn the letter, not the typeface."""


@dataclass(frozen=True)
class Character:
    """One class.

    Attributes:
        name: Name of the class; safe as a folder name on file systems that ignore case.
        sign: The character.
        glyph: Its PostScript name, by which a font can be checked.
        cm: The code under which the Computer Modern fonts have it, if that is another one.
    """

    name: str
    sign: str
    glyph: str
    cm: str | None = None

    def code(self, font: str) -> str:
        """The code of the character in this font."""
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
_GREEK = {  # with the code in Computer Modern
    "Delta": ("Δ", "\xa2"),
    "Sigma": ("Σ", "\xa7"),
    "Phi": ("Φ", "\xa9"),
    "Psi": ("Ψ", "\xaa"),
    "Omega": ("Ω", "\xad"),
}

# Characters that look alike are left out: of 0 O o, C c, K k, P p, S s, U u, V v, W w, X x, Z z one is here; of 1 I l
# the digit. So are those that resemble others in some font: g (8), j, q (9), y, and Greek letters like A, H, F or O.
CHARACTERS = (
    *(Character(c, c, c) for c in "ABCDEFGHJKLMNOPQRSTUVWXYZ"),
    *(Character(f"{c}-lower", c, c) for c in "abdefhimnrt"),
    *(Character(f"digit-{i}", str(i), glyph) for i, glyph in enumerate(_DIGITS, 1)),
    *(Character(name, sign, name) for name, sign in _SIGNS.items()),
    *(Character(name, sign, name, cm) for name, (sign, cm) in _GREEK.items()),
)


def font_file(font: str) -> Path:
    """The file of a font of matplotlib."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
