"""How bodies with files are described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ease.app.server.refusals import RefusalError
from ease.app.server.uploads import Form

FILE = {"type": "string", "format": "binary"}


def multipart(properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    """The OpenAPI entry of a multipart/form-data body with these fields."""
    schema = {
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def flag(form: Form, name: str) -> bool:
    """The value of a field that is true or false; false if it is not there."""
    value = form.fields.get(name, "false").strip().lower()
    if value not in ("true", "false"):
        raise RefusalError(422, f"field '{name}' must be true or false")
    return value == "true"
