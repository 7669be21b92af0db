"""What studies and exhibits are made of: a row is a method with some settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ConfigDict, Field

from ease.documents import Document
from ease.errors import unknown
from ease.methods import find_method


class PlanDocument(Document):
    """A part of a data file that says what to run. YAML writes whole numbers and tuples as people do, so types are
    converted where that loses nothing.
    """

    model_config = ConfigDict(strict=False)


class MethodRow(PlanDocument):
    """One method, and the settings in which this row differs from the others.

    Attributes:
        method: its name.
        set: the settings.
        minutes: a rough estimate of how long it takes, if there is one: the longest rows are started first.
        label: what the row is called in tables and plots; the method's title if left out.
    """

    method: str
    set: dict[str, Any] = Field(default_factory=dict)
    minutes: float = Field(0.0, ge=0)
    label: str | None = None


AnyRow = TypeVar("AnyRow", bound=MethodRow)


def chosen(rows: Sequence[AnyRow], methods: Sequence[str], where: str) -> list[AnyRow]:
    """The rows of these methods, all rows if none is named; a method without a row is an error."""
    known = [row.method for row in rows]
    wanted = [find_method(name).name for name in methods]
    for name in wanted:
        if name not in known:
            raise unknown(f"method in this {where}", name, known)
    return [row for row in rows if not wanted or row.method in wanted]
