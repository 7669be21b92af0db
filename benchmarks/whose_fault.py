"""Where the last stage's errors come from: classes confused within a task, or tasks with each other.

Reads the predictions of finished runs; the seeds of a method are averaged. `given` is the accuracy if someone told
which task an image is from; `task` is how often the predicted class belongs to the right task; `newest` is the accuracy
of each task right after it was learned, among all classes seen by then, averaged over the tasks after the first;
`older` is the share of those images that a class of an older task has won.

    python -m benchmarks.whose_fault runs/bench-small/cells/*
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.trade_off import row_name
from ease.experiments.record import RECORD, RunRecord

COLUMNS = ("last", "given", "task", "newest", "older")


def shares(folder: Path, record: RunRecord) -> list[float]:
    """The figures of one run, in percent, in the order of `COLUMNS`."""
    tasks = np.repeat(range(len(record.task_sizes)), record.task_sizes)
    with np.load(folder / "predictions.npz", allow_pickle=False) as stored:
        stages = [
            (stored[f"stage{b}/logits"], stored[f"stage{b}/labels"])
            for b in range(1, len(record.task_sizes) + 1)
        ]
    logits, labels = stages[-1]
    own = tasks[labels][:, None] == tasks[None, :]
    given = np.where(own, logits, -np.inf).argmax(1) == labels
    newest, older = [], []
    for index, (seen, truth) in enumerate(stages[1:], start=1):
        new = tasks[truth] == index
        winner = seen[new].argmax(1)
        newest.append(np.mean(winner == truth[new]))
        older.append(np.mean(tasks[winner] < index))
    winners = logits.argmax(1)
    figures = (
        winners == labels,
        given,
        tasks[winners] == tasks[labels],
        newest,
        older,
    )
    return [100 * float(np.mean(values)) for values in figures]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    found: dict[str, list[list[float]]] = {}
    for folder in parser.parse_args().runs:
        if (folder / RECORD).exists():
            record = RunRecord.read(folder / RECORD)
            found.setdefault(row_name(record), []).append(shares(folder, record))
    print(f"| method | seeds | {' | '.join(COLUMNS)} |\n|---|---:|{'---:|' * len(COLUMNS)}")
    for name, rows in sorted(found.items()):
        print(f"| {name} | {len(rows)} | " + " | ".join(f"{x:.1f}" for x in np.mean(rows, axis=0)) + " |")


if __name__ == "__main__":
    main()
