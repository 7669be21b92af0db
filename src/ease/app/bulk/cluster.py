"""Shares of a folder of predictions on a Ray cluster: Ray Data with a pool of actors, one model each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import ease
from ease.app.bulk.folder import ShareDone, ShareWork
from ease.app.bulk.index import Share
from ease.cluster import HERE, connected, node_name
from ease.errors import EaseError, one_line
from ease.progress import Progress, Quiet

MODEL_MEMORY = 2**30
"""Bytes that an actor asks a node for."""


@dataclass(frozen=True)
class OnRay:
    """Does shares on the nodes of a cluster, which must see the model, the images and the folder.

    Only the places of inputs go to the actors, and only counts come back: images are read, and rows written, where
    they are computed. A share that was on a node that is lost is done again by another actor.

    Attributes:
        address: of a running cluster; `local` starts one on this machine.
        cpus: cores of an actor.
        progress: where it is said that no node has room.
    """

    address: str = HERE
    cpus: int = 1
    progress: Progress = field(default_factory=Quiet)

    def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
        """See `SharesExecutor`."""
        with connected(self.address) as ray:
            data = import_module("ray.data")
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            context = data.DataContext.get_current()
            context.enable_progress_bars = False
            if not _has_room(ray, self.cpus):
                self.progress.say(
                    f"the cluster has not {self.cpus} free {'core' if self.cpus == 1 else 'cores'} and "
                    f"{MODEL_MEMORY / 2**30:g} GB of memory at the moment: the predictions begin when it has"
                )
            room = int(ray.cluster_resources().get("CPU", 1) // self.cpus)
            most = max(1, min(room, len(left)))
            rows = data.from_items([asdict(share) for share in left], override_num_blocks=len(left))
            found = rows.map_batches(
                _Actor,
                fn_constructor_args=(work, self.cpus, ease.__version__),
                batch_size=None,
                compute=data.ActorPoolStrategy(min_size=1, max_size=most),
                num_cpus=self.cpus,
                memory=MODEL_MEMORY,
            )
            try:
                for row in found.iter_rows():
                    yield ShareDone(**row)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                raise EaseError(f"{one_line(str(cause))[-400:]} (the same command goes on)") from error


def _has_room(ray: Any, cpus: int) -> bool:
    """Whether the cluster has room for one more actor; Ray's public interface does not tell nodes apart here."""
    free = ray.available_resources()
    return bool(free.get("CPU", 0) >= cpus and free.get("memory", 0) >= MODEL_MEMORY)


class _Actor:  # pragma: no cover - on a node
    """One model, which predicts shares."""

    def __init__(self, work: ShareWork, cpus: int, version: str) -> None:
        import torch

        self.node = node_name()
        if version != ease.__version__:
            raise EaseError(
                f"{node_name()} has ease {ease.__version__} in place of {version}: install the same"
            )
        torch.set_num_threads(cpus)
        self.work = work
        _ = work.classifier  # a model that cannot be opened is found before any image is read

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        columns = zip(rows["number"], rows["offset"], rows["count"], strict=True)
        done = [self.work.do(Share(*map(int, row)), self.node).as_json() for row in columns]
        return {key: [one[key] for one in done] for key in ShareDone.model_fields}
