"""Why EASE wins or loses at the last stage: how far its subspaces' cosines are from comparable.

Takes a finished EASE run, scores its test images in every subspace once, and recombines the cosines: nothing is
trained.

    python benchmarks/offsets.py runs/demo/ease
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from ease.config import RunConfig
from ease.experiments.run import make_tasks
from ease.heads import class_means
from ease.heads.complement import complete, cosines
from ease.methods import open_model
from ease.methods.ease import Ease
from ease.storage.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run", type=Path, help="folder of a finished run of method ease, one adapter per task"
    )
    run = parser.parse_args().run
    config = RunConfig.model_validate(read_json(run / "record.json")["config"])
    learner, _ = open_model(run / "model", config.weights)
    assert isinstance(learner, Ease)
    stream, _ = make_tasks(config)
    engine = learner.engine

    tests = [engine.features(t.test, [None, *learner.tunings], "evaluation") for t in stream.tasks]
    features = torch.cat(tests, dim=1)
    labels = torch.from_numpy(np.concatenate([t.test.labels for t in stream.tasks]))
    trains = [
        (engine.features(t.train, [None]), torch.from_numpy(t.train.labels), t.classes) for t in stream.tasks
    ]
    of_ptm = cosines(features[:1], torch.cat([class_means(*each)[0] for each in trains], dim=1))[0]

    prototypes = complete(learner.bank, list(range(1, len(learner.tunings) + 1)))
    each = cosines(features[1:], prototypes)
    own = learner.bank.own_of_class() - 1
    mine = torch.stack([each[own[c], :, c] for c in range(len(own))], dim=1)
    others = (each.sum(dim=0) - mine) / max(1, len(each) - 1)

    def accuracy(logits: torch.Tensor) -> float:
        return 100 * float((logits.argmax(1) == labels).float().mean())

    print("subspace  mean cosine of all images to its own classes  accuracy among its own classes")
    for subspace in range(len(each)):
        columns = torch.nonzero(own == subspace)[:, 0]
        rows = torch.isin(labels, columns)
        within = columns[each[subspace][rows][:, columns].argmax(1)] == labels[rows]
        level, accuracy_within = float(each[subspace][:, columns].mean()), 100 * float(within.float().mean())
        print(f"{subspace + 1:8d}  {level:45.3f}  {accuracy_within:30.1f}")
    # The test of the explanation: take each subspace's level away, which a real classifier could not know, and look.
    levels = torch.stack([each[s][:, own == s].mean() for s in range(len(each))])
    print(f"alpha 0.1 as it is: {accuracy(mine + 0.1 * others):.2f} %", end="; ")
    print(f"with the levels removed: {accuracy(mine - levels[own] + 0.1 * others):.2f} %")
    print(f"PTM prototypes alone: {accuracy(of_ptm):.2f} %")
    for alpha in (0.0, 0.1, 0.3, 1.0):
        row = "  ".join(
            f"beta {b}: {accuracy(mine + alpha * others + b * of_ptm):.2f}" for b in (0.0, 1.0, 3.0)
        )
        print(f"alpha {alpha}: {row}")


if __name__ == "__main__":
    main()
