"""Scores of finished runs added up: what an ensemble of methods would have answered, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from ease.errors import EaseError
from ease.experiments.metrics import score_stage, summary
from ease.experiments.plans.rows import Plan
from ease.experiments.record import Record

Run = tuple[Record, Path]
"""A finished run's record, with the label of its row, and its folder."""


class Fusion(Plan):
    """A weighted sum of rows. Every image's scores are brought to mean 0 and deviation 1 first, row by row.

    Attributes:
        label: what the sum is called.
        of: labels of the rows.
        weights: how much each row counts.
    """

    label: str
    of: list[str] = Field(min_length=2)
    weights: list[float]

    @model_validator(mode="after")
    def _one_weight_each(self) -> Fusion:
        if len(self.weights) != len(self.of):
            raise ValueError(f"{len(self.of)} rows need as many weights, not {len(self.weights)}")
        return self

    def records(self, runs: Sequence[Run]) -> list[Record]:
        """One record per seed for which all rows are finished."""
        found = []
        for seed in dict.fromkeys(record["seed"] for record, _ in runs):
            named = {record.get("label"): (record, path) for record, path in runs if record["seed"] == seed}
            if all(label in named for label in self.of):
                found.append(self._record([named[label] for label in self.of]))
        return found

    def _record(self, members: list[Run]) -> Record:
        records = [record for record, _ in members]
        sizes = records[0]["task_sizes"]
        stages = [score_stage(*self._stage(members, b + 1), sizes[: b + 1]) for b in range(len(sizes))]
        parts = ("forward_passes", "seconds")
        totals = {part: {k: sum(r[part][k] for r in records) for k in records[0][part]} for part in parts}
        parameters = {
            "backbone": records[0]["parameters"]["backbone"],
            "trained": np.sum([r["parameters"]["trained"] for r in records], axis=0).tolist(),
            "stored": sum(r["parameters"]["stored"] for r in records),
        }
        weighted = ", ".join(f"{w:g} x {label}" for w, label in zip(self.weights, self.of, strict=True))
        return {
            **records[0],
            **summary(stages),
            **totals,
            "label": self.label,
            "parameters": parameters,
            "notes": [f"the scores of finished runs added up: {weighted}"],
        }

    def _stage(self, members: list[Run], number: int) -> tuple[np.ndarray, np.ndarray]:
        """The summed scores [N, C] of one stage, and the labels [N]."""
        total: np.ndarray | None = None
        seen: np.ndarray | None = None
        labels = np.empty(0)
        for (_, path), weight in zip(members, self.weights, strict=True):
            with np.load(path / "predictions.npz", allow_pickle=False) as content:
                scores, labels, ids = (
                    content[f"stage{number}/{part}"] for part in ("logits", "labels", "ids")
                )
            if seen is not None and not np.array_equal(seen, ids):
                raise EaseError(f"fused row '{self.label}': its runs saw different test images")
            seen = ids
            centred = scores - scores.mean(axis=1, keepdims=True)
            deviation = np.maximum(centred.std(axis=1, keepdims=True), np.finfo(np.float32).tiny)
            total = weight * centred / deviation + (0 if total is None else total)
        assert total is not None
        return total, labels
