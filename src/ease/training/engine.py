"""The engine of a learner: backbone, input pipeline, devices, randomness and cost accounting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ease.backbone import Backbone, Reading, Tuning
from ease.progress import Progress, Quiet
from ease.streams import ImageSet
from ease.streams.transforms import Transforms
from ease.training.fit import Training, VisitingOrder, fit
from ease.training.hardware import Precision
from ease.training.loading import Loader
from ease.training.one_process import OneProcess
from ease.training.trainings import Finished, Trainings, training_key
from ease.training.usage import Ledger, Phase


class Engine:
    """Trains tunings and extracts features, so that methods need not handle devices and files.

    Args:
        backbone: The frozen ViT.
        transforms: From decoded images to the backbone's input.
        seed: Random seed.
        fabric: A launched Lightning Fabric; a single CPU process if None.
        batch_size: Images per batch where no gradient is needed. Several processes compute whole batches in turn, so
            that the features do not depend on how many there are.
        checkpoints: Folder for the checkpoints of unfinished trainings; none are written if None.
        trainings: Store of finished trainings to reuse and to add to; none if None.
        progress: Where progress is shown.
        loader: Loads and caches decoded images.
        compiles: Whether trainings are compiled; see `ease.training.hardware`.
        precision: What the backbone computes in, if there is no Fabric, which has a precision of its own.
    """

    def __init__(
        self,
        backbone: Backbone,
        transforms: Transforms,
        *,
        seed: int = 1993,
        fabric: Any = None,
        batch_size: int = 64,
        checkpoints: Path | None = None,
        trainings: Trainings | None = None,
        progress: Progress | None = None,
        loader: Loader | None = None,
        compiles: bool = False,
        precision: Precision = "32-true",
    ) -> None:
        self.fabric: Any = OneProcess(precision) if fabric is None else fabric
        self.precision: Precision = precision if fabric is None else fabric.strategy.precision.precision
        """What the backbone computes in."""
        self.backbone = backbone.to(self.fabric.device)
        if self.precision == "bf16-mixed":
            self.backbone.keep_cast(torch.bfloat16)
        self.transforms = transforms
        self.seed = seed
        self.batch_size = batch_size
        self.checkpoints = checkpoints
        self.trainings = trainings
        self.progress: Progress = progress or Quiet()
        self.ledger = Ledger()
        self.loader = loader or Loader()
        self.compiles = compiles

    def fit(
        self,
        module: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        images: ImageSet,
        training: Training,
        *,
        task: int,
        phase: str = "train",
        order: VisitingOrder | None = None,
        rate_factors: Mapping[str, float] | None = None,
        after_step: Callable[[], None] | None = None,
        known_by: Mapping[str, Any] | None = None,
    ) -> list[float]:
        """Train a module on images; see `ease.training.fit.fit`.

        Args:
            module: Maps pixels [N, 3, s, s] to outputs. It is trained in place.
            loss: Maps outputs and labels [N] to the mean loss of the batch.
            images: Training images.
            training: Epochs, learning rate, optimizer and so on.
            task: Index of the task.
            phase: Distinguishes several trainings of one task.
            order: Visiting order of the images by epoch; random if None.
            rate_factors: Factors of the learning rate by the first part of a parameter's name.
            after_step: Called after every step of the optimizer; see `ease.training.fit.fit`.
            known_by: Everything that decides the result besides the module's tensors, the images and the fields of
                `Training`, as JSON. With it, a finished training of another run can be reused. `rate_factors` and
                `after_step` are not seen by themselves: a method that uses them names them here, or leaves this out.

        Returns:
            The mean loss of each epoch.
        """
        key = None
        if self.trainings is not None and known_by is not None and order is None:
            key = training_key(module, images, training, {**self._circumstances(task, phase), **known_by})
            kept = self.trainings.find(key)
            if kept is not None:
                module.load_state_dict(kept.tensors)
                module.to(self.fabric.device).eval()
                self.ledger.add_reused(kept.seconds, len(images) * len(kept.losses))
                self._record_losses(kept.losses)
                return kept.losses
        before = self.ledger.seconds["train"]
        with self.ledger.timing("train"):
            losses = fit(
                self,
                module,
                loss,
                images,
                training,
                task=task,
                phase=phase,
                order=order,
                rate_factors=rate_factors,
                after_step=after_step,
            )
        self._record_losses(losses)
        if self.trainings is not None and key is not None:
            spent = self.ledger.seconds["train"] - before
            with self.one_writer() as writer:
                if writer:
                    self.trainings.keep(key, Finished(module.state_dict(), losses, spent))
        return losses

    def _circumstances(self, task: int, phase: str) -> dict[str, Any]:
        return {
            "backbone": self.backbone.weights_hash,
            "transforms": self.transforms.id,
            "precision": self.precision,
            "processes": self.fabric.world_size,
            **({"compiled": True} if self.compiles else {}),
            "seed": self.seed,
            "task": task,
            "phase": phase,
        }

    def report(self, line: str) -> None:
        """Show a line to the user and store it with the result."""
        self.progress.say(line)
        self.ledger.notes.append(line)

    def _record_losses(self, losses: list[float]) -> None:
        if losses:
            self.ledger.losses.append((losses[0], losses[-1]))

    def features(
        self,
        images: ImageSet,
        tunings: Sequence[Tuning | None],
        phase: Phase = "prototypes",
        reading: Reading = "pooled",
    ) -> Tensor:
        """Compute features with the test transform.

        Args:
            images: N images.
            tunings: S tunings; None stands for the pre-trained model itself.
            phase: The phase that the passes and the time are counted for.
            reading: Which part of the backbone's output is read.

        Returns:
            Features [S, N, d] on the CPU, in the order of the images.
        """
        shown = self.progress if len(images) > self.batch_size else Quiet()
        rank, world, size = self.fabric.global_rank, self.fabric.world_size, self.batch_size
        with self.ledger.timing(phase), shown.bar(phase, len(images)) as advance:
            batches = [np.arange(at, min(at + size, len(images))) for at in range(0, len(images), size)]
            # Whole batches are dealt out, since the last bits of a feature depend on the batch it is computed in.
            mine = batches[rank::world]
            # All processes must gather the same shapes, so one without a batch processes a single image.
            asked = mine or [np.zeros(1, np.int64)]
            parts = []
            for turn, pixels in enumerate(self.ledger.waiting_for(self._loaded(images, asked, phase))):
                parts.append(self.features_of_pixels(pixels, tunings, reading).cpu())
                advance(sum(map(len, batches[turn * world : (turn + 1) * world])))
            self.ledger.count(phase, len(images) * len(tunings))
            if world == 1:
                return torch.cat(parts, dim=1)
            share = torch.cat(parts, dim=1)[:, : sum(map(len, mine))]
            return self._gathered(share, mine, batches)

    def _loaded(self, images: ImageSet, batches: list[np.ndarray], phase: Phase) -> Iterator[Tensor]:
        """Yield the pixels of each batch after the test transform."""
        crop, loader = self.transforms.test_crop, self.loader

        def one(position: int) -> Tensor:
            if phase == "evaluation":
                return loader.testing(images, position, crop)
            return crop(loader.training(images, position, keep=False))

        def make(batch: np.ndarray) -> Tensor:
            return self.transforms.scaled(torch.stack([one(int(i)) for i in batch]))

        return loader.batches(images, batches, make)

    def pixels(self, images: ImageSet) -> Tensor:
        """The images after the test transform, as the backbone reads them, [N, 3, s, s]."""
        crops = [self.transforms.test_crop(images.image(i)) for i in range(len(images))]
        return self.transforms.scaled(torch.stack(crops))

    def features_of_pixels(
        self, pixels: Tensor, tunings: Sequence[Tuning | None], reading: Reading = "pooled"
    ) -> Tensor:
        """Pixels [N, 3, s, s] -> features [S, N, d], computed in the run's precision and returned in fp32."""
        with self.fabric.autocast():
            return self.backbone.features(pixels.to(self.fabric.device), tunings, reading)

    def _gathered(self, share: Tensor, mine: list[np.ndarray], batches: list[np.ndarray]) -> Tensor:
        """Gather the batches of all processes in the order of the images. Padding is recognised by its position -1."""
        rounds = -(-len(batches) // self.fabric.world_size)
        length = rounds * max(map(len, batches))
        padded = share.new_zeros(share.shape[0], length, *share.shape[2:])
        padded[:, : share.shape[1]] = share
        at = torch.full((length,), -1, dtype=torch.int64)
        at[: share.shape[1]] = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *mine]))
        everyone = self.fabric.all_gather(padded.to(self.fabric.device)).cpu()
        positions = self.fabric.all_gather(at.to(self.fabric.device)).cpu()
        out = share.new_empty(share.shape[0], sum(map(len, batches)), *share.shape[2:])
        for theirs, where in zip(everyone, positions, strict=True):
            real = where >= 0
            out[:, where[real]] = theirs[:, real]
        return out

    @property
    def is_main(self) -> bool:
        """True in the one process that writes files and messages."""
        return bool(self.fabric.global_rank == 0)

    @contextmanager
    def one_writer(self) -> Iterator[bool]:
        """Yield True in the process that writes. The others wait for it, and exit if it fails."""
        failure: Exception | None = None
        try:
            yield self.is_main
        except Exception as error:
            failure = error
        if self.fabric.world_size > 1:
            failures = self.fabric.all_reduce(torch.tensor(float(failure is not None)), reduce_op="sum")
            if failure is None and float(failures):
                raise SystemExit(0)  # the process that failed prints the error and sets the exit code
        if failure is not None:
            raise failure
