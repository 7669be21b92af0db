"""Runs without pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _report_without_pictures() -> Iterator[None]:
    """Drawing its report takes two thirds of a small run. It is written as ever, and drawn in `reporting`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ease.reporting.report.render_report", lambda records, title=None: "<!doctype html>\n")
        yield
