"""A saved model as one ONNX file, which runs without ease and without torch."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ease import __version__
from ease.app.calibration import Calibration
from ease.backbone import PTM
from ease.backbone.vit import stacked
from ease.errors import EaseError
from ease.methods import Learner, Prompted, PromptLearner, making_sense, open_model, set_budget
from ease.storage import files as durable
from ease.storage.manifest import Manifest
from ease.storage.model_directory import model_directory

OPSET = 18
"""What torch's exporter writes by itself; every runtime of the last years reads it."""

LIMIT = 2**31 - 2**24
"""A protobuf holds 2 GB; some of it is for the graph around the weights."""

SIDE_BY_SIDE = 8
"""Adapters that the graph runs as one batch. Each such batch is traced anew, which takes seconds; but the memory of a
prediction grows with it."""

TOLERANCE = 1e-4
UNKNOWN_THRESHOLD = 0.5
"""An image whose `unknown` is above it is of none of the classes: that is what `Calibration.unknown` promises."""

BATCHES = (1, 3)
"""Sizes that the check runs; the graph is traced with two images, so that neither is the traced one."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: the file.
        bytes: its size.
        largest_difference: on random images, of the logits from the learner's, and of what is made of them from what
            the calibration makes of them; None if not checked.
        opset: of the graph.
        classes: how many it tells apart.
        outputs: their names, in order.
    """

    path: Path
    bytes: int
    largest_difference: float | None
    opset: int
    classes: int
    outputs: tuple[str, ...]


class Network(nn.Module):
    """Pixels in [0, 1] -> logits and what they mean, as one computation that is the same for every batch size.

    Args:
        learner: what it computes.
        calibration: what turns logits into probabilities and, if it is fitted, into unknown scores.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, learner: Learner, calibration: Calibration) -> None:
        super().__init__()
        pixels = learner.backbone.pixels
        self.register_buffer("mean", torch.tensor(pixels.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(pixels.std).view(3, 1, 1))
        self.calibration = calibration
        self._learner = (learner,)  # in a tuple: it is no module
        asked = [PTM if s.tuning is None else s.tuning for s in learner.subspaces()]
        groups = (list(some) for _, some in groupby(asked, key=lambda tuning: tuning.group()))
        self.tunings = nn.ModuleList(t for some in groups for t in stacked(some, SIDE_BY_SIDE))
        # All are registered, so that a weight which several subspaces use stands in the file once.
        self.vits = nn.ModuleList([learner.backbone.vit])
        self.vits.extend(vit for tuning in asked if (vit := tuning.vit()) is not None)
        self.prompted = Prompted(learner) if isinstance(learner, PromptLearner) else None

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """[N, 3, s, s] -> logits [N, C], probabilities [N, C] and, of a calibrated model, unknown scores [N]."""
        logits = self._logits((pixels - self.mean) / self.std)
        return logits, *_meaning(logits, self.calibration).values()

    def _logits(self, pixels: Tensor) -> Tensor:
        (learner,) = self._learner
        if self.prompted is not None:
            return self.prompted(pixels)[0]
        if learner.per_image:
            return learner.logits(pixels)
        tunings = list(self.tunings)
        return learner.head(learner.backbone.features(pixels, tunings, learner.reading, at_once=1))  # type: ignore[arg-type]


def _meaning(logits: Tensor, calibration: Calibration) -> dict[str, Tensor]:
    """What the calibration makes of logits [N, C], by the name of the graph's output."""
    found = {"probabilities": calibration.confidences(logits)}
    return {**found, "unknown": calibration.unknown(logits)} if calibration.calibrated else found


def output_names(calibration: Calibration) -> tuple[str, ...]:
    """The graph's outputs in their order. A model that no image was held out from has no unknown score."""
    return ("logits", "probabilities", *["unknown"] * calibration.calibrated)


def export_onnx(path: Path, out: Path, *, weights: Path | None = None, check: bool = True) -> Exported:
    """Write a saved model as an ONNX file: `pixels` [N, 3, s, s] -> `logits` [N, C] and `probabilities` [N, C].

    A calibrated model has a third output, `unknown` [N]: how likely an image is of no known class, as in a prediction.
    Pixels are RGB in [0, 1], already resized; mean and std are inside the graph, so that nobody can get them wrong.
    What else a caller must know stands in the file's metadata.

    Args:
        path: model directory, or a run's folder.
        out: the file, replaced if it exists.
        weights: the backbone's weights, where the manifest alone does not lead to them.
        check: run the graph before it is written, and refuse it if its logits are not the learner's.
    """
    _need_packages(check)
    directory = model_directory(path)
    durable.check_place(out)
    learner, manifest = open_model(directory.path, weights)
    if not learner.classes:
        raise EaseError(f"the model in {directory.path} knows no class yet: let it learn some")
    with making_sense(directory):
        fitted = manifest.calibration
        calibration = Calibration.none() if fitted is None else Calibration.of_json(fitted, learner.classes)
        facts = _metadata(learner, manifest, calibration)
    data, difference = onnx_of(learner, facts, calibration, check)
    durable.make_folder(out.parent)
    durable.write_atomic(out, data)
    return Exported(out, len(data), difference, OPSET, learner.classes, output_names(calibration))


def onnx_of(
    learner: Learner, facts: Mapping[str, str], calibration: Calibration | None = None, check: bool = True
) -> tuple[bytes, float | None]:
    """A learner as the content of an ONNX file, and its largest difference from the learner if that is checked.

    Args:
        learner: one that knows some classes.
        facts: the file's metadata.
        calibration: what the logits mean; None leaves them uncalibrated.
        check: whether to run the graph and compare.
    """
    _need_packages(check)
    import onnx

    if not learner.per_image:
        set_budget(learner, len(learner.subspaces()))  # a graph has no choice: it takes every pass
    calibration = Calibration.none() if calibration is None else calibration
    network = Network(learner, calibration).eval()
    size = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    if size > LIMIT:
        raise _too_large(learner, size)
    images = _random_images(learner, sum(BATCHES))
    # Before the tracing: what a learner makes on first use must be made of numbers, not of symbols.
    expected = learner.logits((images - network.mean) / network.std)
    proto = _traced(network, images[:2], learner)
    onnx.helper.set_model_props(proto, facts)
    if proto.ByteSize() >= 2**31:
        raise _too_large(learner, proto.ByteSize())
    data = bytes(proto.SerializeToString(deterministic=True))
    return data, _largest_difference(data, learner, images, expected, calibration) if check else None


def _need_packages(check: bool) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401  (torch's exporter needs it)

        if check:
            import onnxruntime  # noqa: F401
    except ImportError as error:
        raise EaseError("ONNX export needs more packages: pip install 'ease-cil[onnx]'") from error


def _metadata(learner: Learner, manifest: Manifest, calibration: Calibration) -> dict[str, str]:
    names = manifest.class_names
    if len(names) != learner.classes:
        raise ValueError(f"{len(names)} class names for {learner.classes} classes")
    preprocessing = {
        **learner.engine.transforms.described(),
        "input": "float32 [N, 3, input_size, input_size], RGB, values in [0, 1], resized as said here",
        "normalisation": "(pixels - mean) / std is inside the graph: do not normalise again",
    }
    calibrated = calibration.calibrated
    return {
        "classes": json.dumps(names),
        "preprocessing": json.dumps(preprocessing),
        "calibrated": json.dumps(calibrated),
        "temperature": json.dumps(calibration.temperature),
        "unknown_threshold": json.dumps(UNKNOWN_THRESHOLD if calibrated else None),
        "method": learner.name,
        "backbone": learner.backbone.name,
        "generation": str(manifest.generation),
        "ease_version": __version__,
    }


def _random_images(learner: Learner, count: int) -> Tensor:
    size = learner.backbone.pixels.size
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def _traced(network: Network, example: Tensor, learner: Learner) -> Any:
    """The graph as an ONNX message, without what the exporter notes about this machine."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["pixels"],
                output_names=list(output_names(network.calibration)),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        assert program is not None
        proto = program.model_proto
    except Exception as error:  # tracing runs any method's code: whatever fails there means the same here
        reason = " ".join(str(error).split())[:120]
        raise EaseError(
            f"{learner.name} cannot be exported: ONNX cannot express what it computes "
            f"({type(error).__name__}: {reason})"
        ) from error
    _strip(proto)
    return proto


def _strip(message: Any) -> None:
    """Remove all remarks, which hold stack traces with this machine's paths."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _strip(inner)


def _too_large(learner: Learner, size: int) -> EaseError:
    return EaseError(
        f"{learner.name} with its backbone takes {size / 2**30:.1f} GB and an ONNX file holds 2 GB: "
        "use a smaller backbone, or a method that keeps fewer networks"
    )


def _largest_difference(
    data: bytes, learner: Learner, images: Tensor, expected: Tensor, calibration: Calibration
) -> float:
    """How far the graph's logits are from the learner's, in batches of several sizes; too far is an error.

    What is made of logits is compared with what the calibration makes of the very same: it divides by a temperature,
    which can be small, and would enlarge their last bits.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only: it warns about what it optimises
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    worst = 0.0
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for some, wanted in zip(images.split(list(BATCHES)), expected.split(list(BATCHES)), strict=True):
            outputs = session.run(list(output_names(calibration)), {"pixels": some.numpy()})
            logits, *rest = map(torch.from_numpy, outputs)
            meant = _meaning(logits, calibration).values()
            for found, right in zip([logits, *rest], [wanted, *meant], strict=True):
                difference = float((found - right).abs().max())
                worst = max(worst, difference) if math.isfinite(difference) else math.inf
    except Exception as error:  # the runtime has exceptions of its own for each kind of trouble
        reason = " ".join(str(error).split())[:120]
        raise EaseError(
            f"the ONNX graph of {learner.name} does not run ({reason}): nothing was written"
        ) from error
    if not worst <= limit:
        raise EaseError(
            f"the ONNX graph of {learner.name} differs from the model by {worst:.1e}, more than {limit:.0e}: "
            "nothing was written"
        )
    return worst
