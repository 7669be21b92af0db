"""How bodies with files are described in the OpenAPI document."""

from __future__ import annotations

from typing import Any

FILE = {"type": "string", "format": "binary"}


def multipart(properties: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI entry of a multipart/form-data body with these fields."""
    schema = {"type": "object", "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
