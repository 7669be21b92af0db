"""Scores of finished runs added up: what an ensemble of methods would have answered, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from ease.errors import EaseError
from ease.experiments.metrics import score_stage, summary
from ease.experiments.plans.rows import PlanDocument
from ease.experiments.record import ForwardPasses, ParameterCounts, RecordFile, RunRecord, RunSeconds


class Fusion(PlanDocument):
    """A weighted sum of the scores of rows. Each image's scores are first brought to mean 0 and deviation 1.

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

    def records(self, runs: Sequence[RecordFile]) -> list[RunRecord]:
        """One record per seed for which all rows are finished.

        Args:
            runs: finished runs; their records carry the labels of their rows.
        """
        found = []
        for seed in dict.fromkeys(run.record.seed for run in runs):
            named = {run.record.label: run for run in runs if run.record.seed == seed}
            if all(label in named for label in self.of):
                found.append(self._record([named[label] for label in self.of]))
        return found

    def _record(self, runs: list[RecordFile]) -> RunRecord:
        records = [run.record for run in runs]
        first = records[0]
        sizes = first.task_sizes
        stages = [score_stage(*self._stage(runs, b + 1), sizes[: b + 1]) for b in range(len(sizes))]
        weighted = ", ".join(f"{w:g} x {label}" for w, label in zip(self.weights, self.of, strict=True))
        return first.model_copy(
            update={
                **asdict(summary(stages)),
                "label": self.label,
                "forward_passes": ForwardPasses(**_sums([r.forward_passes for r in records])),
                "seconds": RunSeconds(**_sums([r.seconds for r in records])),
                "parameters": ParameterCounts(
                    backbone=first.parameters.backbone,
                    trained=np.sum([r.parameters.trained for r in records], axis=0).tolist(),
                    stored=sum(r.parameters.stored for r in records),
                ),
                "notes": [f"the scores of finished runs added up: {weighted}"],
            }
        )

    def _stage(self, runs: list[RecordFile], number: int) -> tuple[np.ndarray, np.ndarray]:
        """The summed scores [N, C] of one stage, and the labels [N]."""
        total: np.ndarray | None = None
        seen: np.ndarray | None = None
        labels = np.empty(0)
        for run, weight in zip(runs, self.weights, strict=True):
            with np.load(run.path.with_name("predictions.npz"), allow_pickle=False) as content:
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


def _sums(parts: Sequence[ForwardPasses] | Sequence[RunSeconds]) -> dict[str, Any]:
    """The sum of each figure; None where a run has not measured it."""
    values = [part.as_json() for part in parts]
    return {
        key: None if any(v[key] is None for v in values) else sum(v[key] for v in values) for key in values[0]
    }
