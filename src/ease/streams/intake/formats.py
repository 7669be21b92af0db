"""Which image formats are read: by the endings of files and by what files begin with.

Pillow supports many more formats, such as PostScript, which are disabled for safety. HEIC needs the package
`pillow-heif` (the extra `heic`); AVIF is part of Pillow from version 11.3 on.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from PIL import features

from ease.errors import EaseError

HEIC = find_spec("pillow_heif") is not None
"""Whether HEIC can be decoded."""
AVIF = bool(features.check("avif"))
"""Whether AVIF can be decoded."""

_HEIC_EXTENSIONS = frozenset({".heic", ".heif", ".hif"})
_EVERY = (
    frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".avif"}) | _HEIC_EXTENSIONS
)

UNSUPPORTED_EXTENSIONS = (_HEIC_EXTENSIONS if not HEIC else frozenset()) | ({".avif"} if not AVIF else set())
"""Image formats that are not decoded here. Such files are reported, whereas files that are not images are ignored."""
IMAGE_EXTENSIONS = _EVERY - UNSUPPORTED_EXTENSIONS

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
"""The formats that are always decoded, by the names that Pillow has for them."""

HEAD = 256
"""Bytes at the beginning of a file by which HEIC and AVIF are recognised."""

_HEIC_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
_AVIF_BRANDS = frozenset((b"avif", b"avis"))


def formats_of(head: bytes, name: str) -> tuple[str, ...]:
    """The names that Pillow has for the formats that a file may be in.

    Args:
        head: The first bytes of the file, at least `HEAD` of them if it has as many.
        name: What the message calls the image.

    Raises:
        EaseError: The image is HEIC or AVIF, and that cannot be decoded here.
    """
    # Both begin with a box that lists compatible formats. Files of either kind may have the brands of HEIC.
    size = min(int.from_bytes(head[:4], "big"), HEAD)
    brands = {head[at : at + 4] for at in (8, *range(16, size, 4))} if head[4:8] == b"ftyp" else set()
    if not brands.isdisjoint(_AVIF_BRANDS):
        if not AVIF:
            raise unsupported_format(f"{name}.avif", name)
        return ("AVIF",)
    if not brands.isdisjoint(_HEIC_BRANDS):
        if not HEIC:
            raise unsupported_format(f"{name}.heic", name)
        _register_heic()
        return ("HEIF",)
    return FORMATS


def unsupported_format(file: str, name: str = "") -> EaseError:
    """The error for an image in a format that is not decoded here.

    Args:
        file: A file name; its ending decides what is said.
        name: What the message calls the image, if that is not the file name.
    """
    kind, remedy = ("HEIC", "pip install 'ease-cil[heic]'")
    if file.lower().endswith(".avif"):
        kind, remedy = ("AVIF", "pip install -U pillow")
    return EaseError(
        f"image '{name or file}' is {kind}, which cannot be read here: install it ({remedy}), "
        "or convert it to JPEG or PNG"
    )


@cache
def _register_heic() -> None:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)
