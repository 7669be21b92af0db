"""An extension of griffe, which reads docstrings for the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^Example:$", flags=re.MULTILINE)
SHAPE = re.compile(r"(?<![\w`\])])\[\w+\]\[\w+\](?!`)")


class PlainDocstrings(griffe.Extension):
    """Read docstrings as they are written here.

    A section `Example:` means `Examples:`, of which griffe knows the plural only. A shape such as [stage][task] is
    code, not a link of Markdown.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the text before it is parsed."""
        if obj.docstring:
            text = SECTION.sub("Examples:", obj.docstring.value)
            obj.docstring.value = SHAPE.sub(lambda match: f"`{match[0]}`", text)
