"""Replays runs of the authors' released code and reports how far ours is from theirs.

A golden file holds one run on a small ViT: configuration, adapters before and after training, and after every stage the
classifier and the logits. `common.npz` beside it holds the backbone and the images.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import Tensor

from ease.backbone import Pixels, Tuning
from ease.backbone.zoo import backbone_from_state
from ease.documents import Count, Document, fault_of, parse_json, reason_of
from ease.errors import EaseError
from ease.filesystem import is_file, shown
from ease.methods import TunedHead
from ease.methods.ease import Ease, EaseSettings, UpperBound
from ease.streams import Dataset, ImageSet, Task
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.fit import VisitingOrder
from ease.training.memory import Memory

TOLERANCE = 1e-5
TRAINING_TOLERANCE = 1e-4
_FILE_LIMIT = 512 * 2**20
_FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
"""What arrays of wrong names, kinds and shapes end in."""


Number = Annotated[float, Field(ge=0, le=1e6)]
Small = Annotated[int, Field(ge=1, le=10_000)]


class GoldenConfig(Document):
    """The configuration of a run of the released code, by its own names."""

    model_config = ConfigDict(extra="ignore")

    init_cls: Small
    increment: Small
    heads: Small
    seed: Count
    init_epochs: Small
    init_lr: Number
    later_epochs: Small
    later_lr: Number
    batch_size: Small
    weight_decay: Number
    optimizer: Literal["sgd", "adam", "adamw"]
    ffn_num: Small
    alpha: Number
    beta: Number
    use_init_ptm: bool
    recalc_sim: bool
    use_reweight: bool
    use_diagonal: bool
    use_old_data: bool
    curve: list[float]


@dataclass
class Difference:
    """Largest deviations from one golden file, over all its stages."""

    file: str
    stages: int = 0
    prototypes: float = 0.0
    logits: float = 0.0
    argmax: int = 0
    """Images whose predicted class differs."""
    adapters: float | None = None
    """Largest deviation of a trained weight; None if training was not replayed."""
    accuracy: float = 0.0
    """Largest deviation of the accuracy curve, in points."""

    def within(self) -> bool:
        """Whether this counts as agreement."""
        replayed = self.adapters is None or self.adapters <= TRAINING_TOLERANCE
        # Trained anew, prototypes and logits inherit the deviation of the adapters.
        limit = TOLERANCE if self.adapters is None else TRAINING_TOLERANCE * 10
        return max(self.prototypes, self.logits) <= limit and self.argmax == 0 and replayed


def verify_file(path: Path, train: bool = False) -> Difference:
    """Replay one golden file; with `train`, from the initial adapters, else from the trained ones."""
    golden, common = _read(path), _read(path.parent / "common.npz")
    try:
        config = GoldenConfig.model_validate(parse_json(str(golden["config"]), f"the config of {path}"))
        return _replay(path.name, golden, common, config, train)
    except ValidationError as error:
        where, message = fault_of(error)
        raise EaseError(f"{path} is not a golden file: its config is damaged ({where}: {message})") from None
    except _FAULTS as error:
        reason = reason_of(error)
        raise EaseError(f"{path} is not a golden file: something is missing or damaged ({reason})") from error


def _read(path: Path) -> dict[str, np.ndarray]:
    if not is_file(path):
        raise EaseError(
            f"golden file {shown(path)} does not exist: common.npz must lie beside the file given"
        )
    try:
        with zipfile.ZipFile(path) as archive:  # what is small when packed may be large when not
            size = sum(member.file_size for member in archive.infolist())
        if size > _FILE_LIMIT:
            raise ValueError(f"{size} bytes are too many")
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except Exception as error:
        raise EaseError(f"golden file {path} cannot be read: {reason_of(error, 'it is damaged')}") from error


def _replay(
    name: str,
    golden: dict[str, np.ndarray],
    common: dict[str, np.ndarray],
    config: GoldenConfig,
    train: bool,
) -> Difference:
    order = tuple(int(c) for c in golden["class_order"])
    base, increment = config.init_cls, config.increment
    stream = make_stream(
        Dataset(
            "golden", tuple(map(str, range(len(order)))), _images(common, "train"), _images(common, "test")
        ),
        f"B{0 if base == increment else base} Inc{increment}",
        order=order,
    )
    memory = Memory(None) if config.use_old_data else None
    learner = _learner(common, config, golden, train, exemplars=memory is not None)
    found = Difference(name, adapters=0.0 if train else None)
    for task in stream.tasks:
        prefix = f"task{task.index}"
        learner.learn(task, memory)
        if train:
            trained = _adapter_weights(golden, f"{prefix}/adapters/")
            ours = learner.tunings[-1].state_dict()
            found.adapters = max(found.adapters or 0.0, *(_gap(ours[n], trained[n]) for n in trained))
        classifier = learner.classifier().transpose(0, 1).flatten(1)
        logits = torch.cat([_logits(learner, t) for t in stream.tasks[: task.index + 1]])
        expected = torch.from_numpy(golden[f"{prefix}/logits"])
        labels = np.concatenate([t.test.labels for t in stream.tasks[: task.index + 1]])
        if not np.array_equal(labels, golden[f"{prefix}/labels"]):
            raise EaseError(
                f"{name}: test labels of stage {task.index + 1} differ: is common.npz from the same folder?"
            )
        accuracy = 100 * float(np.mean(logits.argmax(1).numpy() == labels))
        found.stages += 1
        found.prototypes = max(
            found.prototypes, _gap(classifier, torch.from_numpy(golden[f"{prefix}/prototypes"]))
        )
        found.logits = max(found.logits, _gap(logits, expected))
        found.argmax += int((logits.argmax(1) != expected.argmax(1)).sum())
        found.accuracy = max(found.accuracy, abs(accuracy - config.curve[task.index]))
    return found


def _learner(
    common: dict[str, np.ndarray],
    config: GoldenConfig,
    golden: dict[str, np.ndarray],
    train: bool,
    exemplars: bool,
) -> Ease:
    state = {
        n.removeprefix("backbone/"): torch.from_numpy(v)
        for n, v in common.items()
        if n.startswith("backbone/")
    }
    patch = state["patch_embed.proj.weight"].shape[-1]
    size = common["data/x_train"].shape[1]
    pixels = Pixels(size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    backbone = backbone_from_state(
        state, img_size=size, patch_size=patch, heads=config.heads, name="golden", pixels=pixels
    )
    engine = Engine(backbone, Transforms.raw(pixels), seed=config.seed)
    settings = EaseSettings(
        epochs=config.init_epochs,
        lr=config.init_lr,
        later_epochs=config.later_epochs,
        later_lr=config.later_lr,
        batch_size=config.batch_size,
        weight_decay=config.weight_decay,
        optimizer=config.optimizer,
        rank=config.ffn_num,
        dropout=0.0,
        alpha=config.alpha,
        beta=config.beta,
        ptm=config.use_init_ptm,
        complement="triangle" if config.recalc_sim else "newest",
        reweight="average" if config.use_reweight else "none",
        diagonal=config.use_diagonal,
        adapt="always",
    )

    class Replay(UpperBound if exemplars else Ease):  # type: ignore[misc]
        """Takes its subspaces from the golden file."""

        def train_subspace(
            self, task: Task, start: TunedHead | None = None, order: VisitingOrder | None = None
        ) -> Tuning:
            prefix = f"task{task.index}"
            module = self.new_subspace(task)
            if not train:
                module.tuning.load_state_dict(_adapter_weights(golden, f"{prefix}/adapters/"))
                return module.tuning.freeze()
            module.tuning.load_state_dict(_adapter_weights(golden, f"{prefix}/adapters_init/"))
            module.head.load_state_dict(
                {n: torch.from_numpy(golden[f"{prefix}/proxy_init/{n}"]) for n in ("weight", "sigma")}
            )

            def visited(epoch: int) -> np.ndarray:
                seed = config.seed + 1000 * task.index + epoch
                return np.random.RandomState(seed).permutation(len(task.train))

            return super().train_subspace(task, module, visited)

    return Replay(engine, settings)


def _images(common: dict[str, np.ndarray], part: str) -> ImageSet:
    return ImageSet.of_arrays(common[f"data/x_{part}"], common[f"data/y_{part}"])


def _adapter_weights(golden: dict[str, np.ndarray], prefix: str) -> dict[str, Tensor]:
    """The authors' `LAYER.down_proj.weight` under our names, `down.LAYER.weight`."""
    weights = {}
    for name, value in golden.items():
        if name.startswith(prefix):
            layer, projection, kind = name.removeprefix(prefix).split(".")
            weights[f"{projection.removesuffix('_proj')}.{layer}.{kind}"] = torch.from_numpy(value)
    return weights


def _logits(learner: Ease, task: Task) -> Tensor:
    features = learner.engine.features(task.test, [s.tuning for s in learner.subspaces()], "evaluation")
    return learner.head(features)


def _gap(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        raise EaseError(
            f"golden tensor has shape {list(theirs.shape)}, ours {list(ours.shape)}: not the same run"
        )
    gap = float((ours - theirs).abs().max())
    return gap if math.isfinite(gap) else math.inf
