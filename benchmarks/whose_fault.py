"""Where the last stage's errors come from: classes confused within a task, or tasks with each other.

Reads the predictions of finished runs. `given` is the accuracy if someone told which task an image is from; `task` is
how often the predicted class belongs to the right task; `newest` is the accuracy of each task right after it was
learned, among all classes seen by then, averaged over the tasks after the first; `older` is the share of those images
that a class of an older task has won.

    python benchmarks/whose_fault.py runs/bench-small/cells/*
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ease.storage.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    print(
        f"{'method':18s} {'exemplars':>9s} {'last':>6s} {'given':>6s} {'task':>6s} {'newest':>6s} {'older':>6s}"
    )
    for folder in parser.parse_args().runs:
        if not (folder / "record.json").exists():
            continue
        record = read_json(folder / "record.json")
        tasks = np.repeat(range(len(record["task_sizes"])), record["task_sizes"])
        with np.load(folder / "predictions.npz", allow_pickle=False) as stored:
            stages = [
                (stored[f"stage{b}/logits"], stored[f"stage{b}/labels"])
                for b in range(1, len(record["task_sizes"]) + 1)
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
        figures = [
            np.mean(logits.argmax(1) == labels),
            np.mean(given),
            np.mean(tasks[logits.argmax(1)] == tasks[labels]),
            np.mean(newest),
            np.mean(older),
        ]
        kept = record["config"]["exemplars"] if (folder / "model" / "memory").exists() else "-"
        print(f"{record['method']:18s} {kept!s:>9s} " + " ".join(f"{100 * value:6.2f}" for value in figures))


if __name__ == "__main__":
    main()
