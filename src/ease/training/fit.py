"""The training loop: Fabric for devices and precision, counters for randomness, a checkpoint after every epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ease.errors import EaseError
from ease.storage.files import encode_tensors, make_folder, read_metadata, read_tensors, write_atomic
from ease.streams.images import ImageSet, IntArray
from ease.streams.transforms import DRAWS
from ease.training.randomness import permutation, seed_layers, uniforms

if TYPE_CHECKING:
    from ease.training.engine import Engine

RISING = 0.3
"""The share of a one-cycle training in which the rate rises,"""
LOWEST = 0.04
"""and where it starts and ends, in peaks."""

Order = Callable[[int], IntArray]
"""Epoch -> the order in which images are visited."""


class Training(BaseModel):
    """How one thing is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(20, ge=0, description="passes over the task's images")
    lr: float = Field(0.01, gt=0, description="learning rate at the start")
    batch_size: int = Field(48, ge=1, description="images per step, over all processes")
    weight_decay: float = Field(5e-4, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1, description="for sgd")
    clip: float | None = Field(None, gt=0, description="largest norm of a step's gradient")
    schedule: Literal["cosine", "cosine-by-step", "constant", "one-cycle"] = Field(
        "cosine",
        description="of the rate: down by epoch, down by step, as it is, or up and down again by step",
    )

    def rate(self, epoch: int, within: float = 0.0) -> float:
        """The learning rate, in closed form so that a resumed training needs no scheduler state.

        Args:
            epoch: from 0.
            within: the share of the epoch that is done, for what changes by step.
        """
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine":
            return self.lr * _falling(epoch / self.epochs)
        done = (epoch + within) / self.epochs
        if self.schedule == "cosine-by-step":
            return self.lr * _falling(done)
        if done < RISING:
            return self.lr * max(LOWEST, done / RISING)
        return self.lr * max(LOWEST, _falling((done - RISING) / (1 - RISING)))

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """An optimizer over everything in `module` that wants a gradient."""
        weights = [p for p in module.parameters() if p.requires_grad]
        if self.optimizer == "sgd":
            return torch.optim.SGD(weights, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(weights, self.lr, weight_decay=self.weight_decay)


def _falling(done: float) -> float:
    """Half a cosine, from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * done))


def fit(
    engine: Engine,
    module: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    images: ImageSet,
    training: Training,
    *,
    task: int,
    phase: str,
    order: Order | None = None,
    hardest: float = 1.0,
) -> list[float]:
    """Train `module` in place and return the mean loss of each epoch.

    Args:
        engine: devices, transforms, seed.
        module: its forward takes pixels [N, 3, s, s]; what it returns goes to `loss` with the labels [N].
        loss: a mean over the batch, or [N] by image.
        images: the only images that are looked at.
        training: rate, epochs, optimizer.
        task: names this training among those of the run; the checkpoint and all randomness hang on it,
        phase: and on this, where a task trains more than once.
        order: visiting order by epoch; a fresh permutation per epoch when None.
        hardest: each epoch visits this share of what the one before it did: the images whose last loss was highest.
            Below 1, `loss` must be by image.
    """
    fabric = engine.fabric
    rank, world = fabric.global_rank, fabric.world_size
    module.train()
    what: Any = torch.compile(module) if engine.compiles else module
    wrapped, optimizer = fabric.setup(what, training.make_optimizer(module))
    path = None
    if engine.checkpoints is not None:
        path = engine.checkpoints / f"task{task:04d}-{phase}.safetensors"
    hardness = torch.zeros(len(images))
    losses = _restore(path, module, optimizer, hardness)
    done = visits(len(images), len(losses), hardest)
    engine.ledger.count("train", done)

    def visit(epoch: int) -> IntArray:
        if order is not None:
            everything = order(epoch)
        else:
            everything = permutation(len(images), engine.seed, "order", task, phase, epoch)
        wanted = _visited(len(images), epoch, hardest)
        if wanted == len(images):
            return everything
        chosen = hardness.argsort(descending=True, stable=True)[:wanted]
        return everything[np.isin(everything, chosen.numpy())]

    label = f"task {task + 1}: {phase}"
    total = visits(len(images), training.epochs, hardest)
    with (
        torch.random.fork_rng(devices=[] if fabric.device.type == "cpu" else None),
        engine.progress.bar(label, total, done=done) as advance,
    ):
        for epoch in range(len(losses), training.epochs):
            draws = uniforms(len(images), DRAWS, engine.seed, "augmentation", task, phase, epoch)
            visited, summed, met = visit(epoch), 0.0, torch.zeros(len(images))
            size = training.batch_size
            batches = [visited[start : start + size] for start in range(0, len(visited), size)]
            # A process without a share still has to take part in the all-reduce: it works on one image for nothing.
            shares = [batch[rank::world] if rank < len(batch) else batch[:1] for batch in batches]
            loaded = engine.ledger.waiting_for(_loaded(engine, images, shares, draws))
            for step, (batch, (pixels, labels)) in enumerate(zip(batches, loaded, strict=True)):
                mine = batch[rank::world]
                for group in optimizer.param_groups:
                    group["lr"] = training.rate(epoch, step / len(batches))
                seed_layers(fabric.device, engine.seed, "dropout", task, phase, epoch, step, rank)
                each = loss(wrapped(pixels), labels)
                if hardest < 1:
                    met[mine] = each.detach().float().cpu()[: len(mine)]
                value = each.mean() if each.ndim else each
                # DDP averages gradients over processes; this weight makes that the mean over the whole batch.
                fabric.backward(value * (len(mine) * world / len(batch)))
                if training.clip is not None:  # what is not finite is told after the epoch
                    fabric.clip_gradients(
                        wrapped, optimizer, max_norm=training.clip, error_if_nonfinite=False
                    )
                optimizer.step()
                optimizer.zero_grad()
                summed += float(value.detach()) * len(mine)
                advance(len(batch))
            summed = float(_over_processes(fabric, torch.tensor(summed, dtype=torch.float64)))
            losses.append(summed / max(1, len(visited)))
            if hardest < 1:
                hardness[visited] = _over_processes(fabric, met)[visited]
            if not math.isfinite(losses[-1]):
                raise EaseError(
                    f"{label} diverged (its loss is {losses[-1]}): lower the rate with --set lr=..."
                )
            engine.ledger.count("train", len(visited))
            with engine.one_writer() as writer:
                if writer and path is not None:
                    _save(path, module, optimizer, losses, hardness)
    module.eval()
    return losses


def visits(images: int, epochs: int, hardest: float = 1.0) -> int:
    """Images that so many epochs go through; `hardest` as in `fit`."""
    return sum(_visited(images, epoch, hardest) for epoch in range(epochs))


def _visited(images: int, epoch: int, hardest: float) -> int:
    return min(images, max(1, round(images * hardest**epoch)))


def _loaded(
    engine: Engine, images: ImageSet, shares: list[IntArray], draws: np.ndarray
) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented pixels and labels of each share, on the device."""
    loader, device = engine.loader, engine.fabric.device

    def make(share: IntArray) -> tuple[Tensor, Tensor]:
        pixels = engine.transforms.train([loader.training(images, int(i)) for i in share], draws[share])
        return pixels, torch.from_numpy(images.labels[share])

    for pixels, labels in loader.batches(images, shares, make):
        yield pixels.to(device), labels.to(device)


def _over_processes(fabric: Any, value: Tensor) -> Tensor:
    """The sum of what each process has."""
    return fabric.all_reduce(value, reduce_op="sum").cpu() if fabric.world_size > 1 else value


def _save(path: Path, module: nn.Module, optimizer: Any, losses: list[float], hardness: Tensor) -> None:
    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    tensors["hardness"] = hardness
    make_folder(path.parent)
    # Not forced to the disk: a power cut costs at most the training of one task, every epoch would cost all trainings.
    write_atomic(path, encode_tensors(tensors, {"checksum": _checksum(tensors)}), durable=False)


def _checksum(tensors: dict[str, Tensor]) -> str:
    sum_ = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        sum_.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sum_.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sum_.hexdigest()


def _restore(path: Path | None, module: nn.Module, optimizer: Any, hardness: Tensor) -> list[float]:
    """Continue where the checkpoint stopped; an empty list of losses where there is none, or a damaged one."""
    if path is None or not path.exists():
        return []
    try:
        tensors = read_tensors(path)
        if read_metadata(path).get("checksum") != _checksum(tensors):
            return []
    except EaseError:
        return []
    prefix = "module/"
    module.load_state_dict({n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)})
    state = optimizer.state_dict()
    for name, value in tensors.items():
        if name.startswith("optimizer/"):
            _, index, slot = name.split("/")
            state["state"].setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict(state)
    hardness.copy_(tensors.get("hardness", hardness))
    return [float(v) for v in tensors["losses"]]
