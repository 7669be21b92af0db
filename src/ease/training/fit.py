"""The training loop.

Lightning Fabric handles devices and precision, random numbers come from counters, and a checkpoint is written after
every epoch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from ease.documents import Adjustable
from ease.errors import EaseError
from ease.storage.contents import encode_tensors, read_metadata, read_tensors
from ease.storage.files import make_folder, write_atomic
from ease.streams.images import ImageSet, IntArray
from ease.streams.transforms import DRAWS
from ease.training.randomness import permutation, seed_layers, uniforms

if TYPE_CHECKING:
    from ease.training.engine import Engine

VisitingOrder = Callable[[int], IntArray]
"""Maps an epoch to the order in which its images are visited."""


class Training(Adjustable):
    """Settings of one training."""

    epochs: int = Field(20, ge=0, description="passes over the task's images")
    lr: float = Field(0.01, gt=0, description="initial learning rate")
    batch_size: int = Field(48, ge=1, description="images per step, summed over all processes")
    weight_decay: float = Field(5e-4, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1, description="for sgd")
    clip: float | None = Field(None, gt=0, description="maximum norm of the gradient; no clipping if unset")
    schedule: Literal["cosine", "cosine-by-step", "constant"] = Field(
        "cosine", description="of the learning rate: cosine per epoch, cosine per step, or constant"
    )

    def rate(self, epoch: int, within: float = 0.0) -> float:
        """The learning rate, in closed form so that a resumed training needs no scheduler state.

        Args:
            epoch: Epoch, counted from 0.
            within: Share of the epoch that is done. Only `cosine-by-step` uses it.

        Returns:
            The learning rate of the next step.
        """
        if self.schedule == "constant":
            return self.lr
        done = epoch + (within if self.schedule == "cosine-by-step" else 0.0)
        return self.lr * 0.5 * (1 + math.cos(math.pi * (done / self.epochs)))

    def make_optimizer(
        self, module: nn.Module, rate_factors: Mapping[str, float] | None = None
    ) -> torch.optim.Optimizer:
        """Create an optimizer for the parameters of `module` that require a gradient.

        Args:
            module: The module to train.
            rate_factors: Factors of the learning rate by the first part of a parameter's name, such as `tuning`; 1 for
                all others. Each group of the optimizer has its factor under "factor".

        Returns:
            The optimizer.
        """
        factors = rate_factors or {}
        by_factor: dict[float, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                by_factor.setdefault(factors.get(name.partition(".")[0], 1.0), []).append(parameter)
        weights: Any = [{"params": some, "factor": factor} for factor, some in by_factor.items()]
        if self.optimizer == "sgd":
            return torch.optim.SGD(weights, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(weights, self.lr, weight_decay=self.weight_decay)


def fit(
    engine: Engine,
    module: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    images: ImageSet,
    training: Training,
    *,
    task: int,
    phase: str,
    order: VisitingOrder | None = None,
    rate_factors: Mapping[str, float] | None = None,
    after_step: Callable[[], None] | None = None,
) -> list[float]:
    """Train `module` in place.

    Args:
        engine: Provides devices, transforms and the seed.
        module: Its forward takes pixels [N, 3, s, s]; its output is passed to `loss` together with the labels [N].
        loss: Returns the mean loss of the batch.
        images: Training images.
        training: Epochs, learning rate, optimizer and so on.
        task: Index of the task. Together with `phase` it names the training: the checkpoint and all random numbers
            depend on both.
        phase: Distinguishes several trainings of one task.
        order: Visiting order of the images by epoch; a new random permutation per epoch if None.
        rate_factors: Factors of the learning rate; see `Training.make_optimizer`.
        after_step: Called after every step of the optimizer, in every process. Whatever it changes must be in the
            state of `module`, and whatever it reads must be in that state or constant, so that a training can resume.

    Returns:
        The mean loss of each epoch.
    """
    fabric = engine.fabric
    rank, world = fabric.global_rank, fabric.world_size
    module.train()
    what: Any = torch.compile(module) if engine.compiles else module
    wrapped, optimizer = fabric.setup(what, training.make_optimizer(module, rate_factors))
    path = None
    if engine.checkpoints is not None:
        path = engine.checkpoints / f"task{task:04d}-{phase}.safetensors"
    losses = _restore(path, module, optimizer)
    done = len(images) * len(losses)
    engine.ledger.count("train", done)
    label = f"task {task + 1}: {phase}"
    with (
        torch.random.fork_rng(devices=[] if fabric.device.type == "cpu" else None),
        engine.progress.bar(label, len(images) * training.epochs, done=done) as advance,
    ):
        for epoch in range(len(losses), training.epochs):
            draws = uniforms(len(images), DRAWS, engine.seed, "augmentation", task, phase, epoch)
            if order is None:
                visited = permutation(len(images), engine.seed, "order", task, phase, epoch)
            else:
                visited = order(epoch)
            size = training.batch_size
            batches = [visited[start : start + size] for start in range(0, len(visited), size)]
            # Every process takes part in the all-reduce. One without a share of the batch processes a single image,
            # whose gradient gets the weight 0.
            shares = [batch[rank::world] if rank < len(batch) else batch[:1] for batch in batches]
            loaded = engine.ledger.waiting_for(_loaded(engine, images, shares, draws))
            summed = 0.0
            for step, (batch, (pixels, labels)) in enumerate(zip(batches, loaded, strict=True)):
                mine = batch[rank::world]
                for group in optimizer.param_groups:
                    group["lr"] = training.rate(epoch, step / len(batches)) * group["factor"]
                seed_layers(fabric.device, engine.seed, "dropout", task, phase, epoch, step, rank)
                value = loss(wrapped(pixels), labels)
                # DDP averages gradients over processes; this weight makes that the mean over the whole batch.
                fabric.backward(value * (len(mine) * world / len(batch)))
                if training.clip is not None:  # a gradient that is not finite is reported after the epoch
                    fabric.clip_gradients(
                        wrapped, optimizer, max_norm=training.clip, error_if_nonfinite=False
                    )
                optimizer.step()
                optimizer.zero_grad()
                if after_step is not None:
                    after_step()
                summed += float(value.detach()) * len(mine)
                advance(len(batch))
            summed = float(_over_processes(fabric, torch.tensor(summed, dtype=torch.float64)))
            losses.append(summed / max(1, len(visited)))
            if not math.isfinite(losses[-1]):
                raise EaseError(
                    f"{label} diverged (its loss is {losses[-1]}): lower the rate with --set lr=..."
                )
            engine.ledger.count("train", len(visited))
            with engine.one_writer() as writer:
                if writer and path is not None:
                    _save(path, module, optimizer, losses)
    module.eval()
    return losses


def _loaded(
    engine: Engine, images: ImageSet, shares: list[IntArray], draws: np.ndarray
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the augmented pixels and the labels of each share, on the device."""
    loader, device = engine.loader, engine.fabric.device

    def make(share: IntArray) -> tuple[Tensor, Tensor]:
        pixels = engine.transforms.train([loader.training(images, int(i)) for i in share], draws[share])
        return pixels, torch.from_numpy(images.labels[share])

    for pixels, labels in loader.batches(images, shares, make):
        yield pixels.to(device), labels.to(device)


def _over_processes(fabric: Any, value: Tensor) -> Tensor:
    """Sum a value over all processes."""
    return fabric.all_reduce(value, reduce_op="sum").cpu() if fabric.world_size > 1 else value


def _save(path: Path, module: nn.Module, optimizer: Any, losses: list[float]) -> None:
    tensors = {f"module/{name}": value for name, value in module.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    make_folder(path.parent)
    # Not synchronised to disk: that would slow down every training, and a power cut costs at most one task's training.
    write_atomic(path, encode_tensors(tensors, {"checksum": _checksum(tensors)}), durable=False)


def _checksum(tensors: dict[str, Tensor]) -> str:
    checksum = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        checksum.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        checksum.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def _restore(path: Path | None, module: nn.Module, optimizer: Any) -> list[float]:
    """Load a checkpoint and return the losses of its epochs.

    The list is empty if there is no checkpoint or if it is damaged.
    """
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
    return [float(v) for v in tensors["losses"]]
