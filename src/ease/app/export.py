"""Export a saved model as an ONNX file, which runs without ease and torch."""

from __future__ import annotations

import json
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ease import __version__
from ease.app.calibration import Calibration
from ease.app.prediction import UNKNOWN_THRESHOLD
from ease.backbone import PTM
from ease.backbone.vit import stacked
from ease.documents import reason_of
from ease.errors import EaseError
from ease.methods import Learner, making_sense, open_model, set_budget
from ease.storage import files as durable
from ease.storage.manifest import Manifest
from ease.storage.model_directory import model_directory

OPSET = 18
"""ONNX opset; the default of torch's exporter."""

LIMIT = 2**31 - 2**24
"""Bytes of all weights: a protobuf can hold 2 GB, including the graph."""

SIDE_BY_SIDE = 8
"""Number of adapters that the graph runs as one batch. Tracing each batch takes seconds, but the memory of a prediction
grows with the size of the batch."""

TOLERANCE = 1e-4

BATCHES = (1, 3)
"""Batch sizes of the check. The graph is traced with another one, two images."""


@dataclass(frozen=True)
class Exported:
    """The result of `export_onnx`.

    Attributes:
        path: The file.
        bytes: Size of the file.
        largest_difference: Largest difference on random images, of the logits from the learner's, and of the other
            outputs from those of the calibration; None if not checked.
        opset: ONNX opset of the graph.
        classes: Number of classes.
        outputs: Names of the outputs, in order.
    """

    path: Path
    bytes: int
    largest_difference: float | None
    opset: int
    classes: int
    outputs: tuple[str, ...]


@runtime_checkable
class HasModule(Protocol):
    """A method whose whole prediction is one module, such as those with prompts for each image."""

    def module(self) -> nn.Module:
        """Pixels [N, 3, s, s] -> a tuple that begins with logits [N, classes]; all weights are registered."""
        ...


class Network(nn.Module):
    """A model as one module that maps pixels in [0, 1] to logits, probabilities and unknown scores.

    Args:
        learner: The learner.
        calibration: Function from logits to probabilities and, if it is fitted, to unknown scores.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, learner: Learner, calibration: Calibration) -> None:
        super().__init__()
        pixels = learner.backbone.pixels
        self.register_buffer("mean", torch.tensor(pixels.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(pixels.std).view(3, 1, 1))
        self.calibration = calibration
        self._learner = (learner,)  # in a tuple, since it is not a module
        asked = [PTM if s.tuning is None else s.tuning for s in learner.subspaces()]
        groups = (list(some) for _, some in groupby(asked, key=lambda tuning: tuning.group()))
        self.tunings = nn.ModuleList(t for some in groups for t in stacked(some, SIDE_BY_SIDE))
        # All are registered, so that a weight that several subspaces share is in the file once.
        self.vits = nn.ModuleList([learner.backbone.vit])
        self.vits.extend(vit for tuning in asked if (vit := tuning.vit()) is not None)
        self.whole = learner.module() if isinstance(learner, HasModule) else None

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """[N, 3, s, s] -> logits [N, C], probabilities [N, C] and, of a calibrated model, unknown scores [N]."""
        logits = self._logits((pixels - self.mean) / self.std)
        return logits, *_calibrated_outputs(logits, self.calibration).values()

    def _logits(self, pixels: Tensor) -> Tensor:
        (learner,) = self._learner
        if self.whole is not None:
            logits: Tensor = self.whole(pixels)[0]
            return logits
        if learner.per_image:
            return learner.logits(pixels)
        tunings = list(self.tunings)
        return learner.head(learner.backbone.features(pixels, tunings, learner.reading, at_once=1))  # type: ignore[arg-type]


def _calibrated_outputs(logits: Tensor, calibration: Calibration) -> dict[str, Tensor]:
    """The other outputs for logits [N, C], by name."""
    found = {"probabilities": calibration.confidences(logits)}
    return {**found, "unknown": calibration.unknown(logits)} if calibration.calibrated else found


def output_names(calibration: Calibration) -> tuple[str, ...]:
    """Names of the graph's outputs in order. A model that is not calibrated has no unknown score."""
    return ("logits", "probabilities", *["unknown"] * calibration.calibrated)


def export_onnx(path: Path, out: Path, *, weights: Path | None = None, check: bool = True) -> Exported:
    """Write a saved model as an ONNX file: `pixels` [N, 3, s, s] -> `logits` [N, C] and `probabilities` [N, C].

    A calibrated model has a third output, `unknown` [N], the unknown score of a prediction. Pixels are RGB in [0, 1]
    and already resized; the normalisation with mean and std is part of the graph. The metadata of the file describe
    the classes and the preprocessing.

    Args:
        path: Model directory, or the folder of a run.
        out: The file; it is replaced if it exists.
        weights: Weights file of the backbone, if it is neither embedded nor on the hub.
        check: Run the graph before it is written, and refuse it if its logits differ from the learner's.

    Returns:
        What was written.
    """
    directory = model_directory(path)
    durable.check_place(out)
    _need_packages(check)
    # Graphs are fp32: runtimes convert them themselves, and the check compares with what they compute.
    learner, manifest = open_model(directory.path, weights, precision="32-true")
    if not learner.classes:
        raise EaseError(f"the model in {directory.path} knows no class yet: teach it some with learn")
    with making_sense(directory):
        fitted = manifest.calibration
        calibration = Calibration.none() if fitted is None else Calibration.of_json(fitted, learner.classes)
        facts = _metadata(learner, manifest, calibration)
    data, difference = onnx_of(learner, facts, calibration, check)
    durable.write_all(out.parent, {out.name: data})
    return Exported(out, len(data), difference, OPSET, learner.classes, output_names(calibration))


def onnx_of(
    learner: Learner, facts: Mapping[str, str], calibration: Calibration | None = None, check: bool = True
) -> tuple[bytes, float | None]:
    """The content of an ONNX file for a learner, and its largest difference from the learner.

    Args:
        learner: A learner that knows some classes.
        facts: Metadata of the file.
        calibration: Calibration of the learner; not calibrated if None.
        check: Whether to run the graph and compare; without it, the difference is None.
    """
    _need_packages(check)
    import onnx

    if not learner.per_image:
        set_budget(learner, len(learner.subspaces()))  # a graph always takes all passes
    calibration = Calibration.none() if calibration is None else calibration
    network = Network(learner, calibration).eval()
    size = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    if size > LIMIT:
        raise _too_large(learner, size)
    images = _random_images(learner, sum(BATCHES))
    # Before the tracing, so that what a learner computes on first use is not traced.
    expected = learner.logits((images - network.mean) / network.std)
    proto = _traced(network, images[:2], learner)
    onnx.helper.set_model_props(proto, facts)
    if proto.ByteSize() >= 2**31:
        raise _too_large(learner, proto.ByteSize())
    data = bytes(proto.SerializeToString(deterministic=True))
    return data, _largest_difference(data, learner, images, expected, calibration) if check else None


def _need_packages(check: bool) -> None:
    """Refuse if a package is missing. None is imported yet: some write files as soon as they are."""
    needed = ["onnx", "onnxscript", *["onnxruntime"] * check]  # torch's exporter needs onnxscript
    if any(find_spec(package) is None for package in needed):
        raise EaseError("ONNX export needs more packages: pip install 'ease-cil[onnx]'")


@contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """Torch's exporter and ONNX Runtime leave files in the temporary folder and in the cache: here they go with it."""
    names = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="ease-export-", ignore_cleanup_errors=True) as folder:
        os.environ.update(dict.fromkeys(names, folder))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _runtime() -> Any:
    """ONNX Runtime, told to report nothing about its use."""
    with _own_temporary_folder():
        import onnxruntime
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def _metadata(learner: Learner, manifest: Manifest, calibration: Calibration) -> dict[str, str]:
    names = manifest.class_names
    if len(names) != learner.classes:
        raise ValueError(f"{len(names)} class names for {learner.classes} classes")
    preprocessing = {
        **learner.engine.transforms.described(),
        "input": "float32 [N, 3, input_size, input_size], RGB, values in [0, 1], resized as described here",
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
    """The graph as an ONNX message, without remarks of the exporter about this machine."""
    try:
        with torch.no_grad(), warnings.catch_warnings(), _own_temporary_folder():
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
    except Exception as error:  # tracing runs the method's code, which may raise anything
        reason = reason_of(error, "the exporter failed, --debug shows where")
        raise EaseError(
            f"{learner.name} cannot be exported: ONNX cannot express what it computes ({reason})"
        ) from error
    _strip(proto)
    return proto


def _strip(message: Any) -> None:
    """Remove all remarks: they contain stack traces with paths of this machine."""
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
    """Largest difference of the graph's logits from the learner's, for several batch sizes; too large is an error.

    The other outputs are compared with what the calibration gives for the graph's own logits: a division by a small
    temperature would enlarge differences in their last bits.
    """
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only: it warns about its optimisations
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    worst = 0.0
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for some, wanted in zip(images.split(list(BATCHES)), expected.split(list(BATCHES)), strict=True):
            outputs = session.run(list(output_names(calibration)), {"pixels": some.numpy()})
            logits, *rest = map(torch.from_numpy, outputs)
            right_outputs = _calibrated_outputs(logits, calibration).values()
            for found, right in zip([logits, *rest], [wanted, *right_outputs], strict=True):
                difference = float((found - right).abs().max())
                worst = max(worst, difference) if math.isfinite(difference) else math.inf
    except Exception as error:  # the runtime has its own exceptions for each kind of error
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
