"""From a stream of inputs to a stream of predictions, batch by batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from ease.app.bulk.inputs import Input
from ease.app.classifier import Classifier
from ease.app.corrections import collect
from ease.app.prediction import Prediction
from ease.errors import EaseError
from ease.streams.intake.decode import LARGE_IMAGE_PIXELS, content_digest, count_pixels, load_content
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.threads import decoding_threads

BATCH = 64
"""Images of a batch."""
BATCH_BYTES = 64 * 2**20
"""A batch whose images are in memory already, such as frames of a video, ends when they are larger than this."""
_THREADS = 4

_one_large_image = threading.Lock()


def predict_stream(
    classifier: Classifier,
    inputs: Iterable[Input],
    top_k: int = 5,
    unreadable: Unreadable = "skip",
    *,
    collect_unsure: int = 0,
) -> Iterator[Prediction]:
    """Name what images show, one after the other. No more than a batch of them is in memory.

    Args:
        classifier: The model.
        inputs: The images.
        top_k: Number of classes to name for each image.
        unreadable: `skip` gives a prediction with an `error` for an image that cannot be used; `refuse` raises it.
        collect_unsure: Images that the model is unsure of are kept in its inbox, at most this many per UTC day.

    Yields:
        One prediction for each input, in their order, with the input's name as `file`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> from ease.app.bulk import Input, predict_stream
        >>> dark, bright = np.zeros((16, 16), np.uint8), np.full((16, 16), 250, np.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier = Classifier.create(f"{folder}/model", input_size=16)
        ...     _ = classifier.learn({"dark": [dark], "bright": [bright]})
        ...     rows = list(predict_stream(classifier, [Input("a.jpg", b"no image")]))
        >>> rows[0].file, rows[0].classes, rows[0].error
        ('a.jpg', (), "image 'a.jpg' cannot be read (no image format recognised): repair or remove it")
    """
    for batch in batches(inputs):
        rows = predict_batch(classifier, batch, top_k, unreadable)
        if collect_unsure:
            fine = [(each.content, row) for each, row in zip(batch, rows, strict=True) if row.error is None]
            collect(classifier, [image for image, _ in fine], [row for _, row in fine], collect_unsure)
        yield from rows


def batches(inputs: Iterable[Input], size: int = BATCH) -> Iterator[list[Input]]:
    """Inputs in groups of at most `size`, fewer where they are large; none is empty."""
    batch: list[Input] = []
    held = 0
    for each in inputs:
        batch.append(each)
        content = each.content
        held += content.nbytes if isinstance(content, Tensor) else 0
        held += len(content) if isinstance(content, bytes) else 0
        if len(batch) >= size or held > BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def predict_batch(
    classifier: Classifier, batch: Sequence[Input], top_k: int = 5, unreadable: Unreadable = "skip"
) -> list[Prediction]:
    """Name what the images of one batch show; arguments as for `predict_stream`.

    Returns:
        One prediction for each input, in their order.
    """
    if top_k < 1:
        raise EaseError(f"top_k must be 1 or more, not {top_k}")
    predictor = classifier.predictor
    with decoding_threads(min(_THREADS, os.cpu_count() or 1)) as pool:
        ready = list(pool.map(lambda each: _pixels(classifier, each), batch))
    good = [found for found in ready if isinstance(found, Tensor)]
    digests = [
        content_digest(each.content)
        for each, found in zip(batch, ready, strict=True)
        if classifier.looks_up_photos
        and isinstance(found, Tensor)
        and not isinstance(each.content, EaseError)
    ]
    answers = iter(classifier.predictions(predictor.logits(torch.cat(good)), top_k, digests) if good else [])
    rows = []
    for each, found in zip(batch, ready, strict=True):
        file = each.name.encode(errors="backslashreplace").decode()
        if isinstance(found, Tensor):
            rows.append(next(answers).model_copy(update={"file": file}))
        elif unreadable == "refuse":
            raise found
        else:
            rows.append(Prediction.failed(file, str(found), calibrated=classifier.calibration.calibrated))
    return rows


def _pixels(classifier: Classifier, each: Input) -> Tensor | EaseError:
    """The image as the backbone reads it, [1, 3, s, s], or why it cannot be used."""
    content = each.content
    if isinstance(content, EaseError):
        return content
    try:
        with _one_large_image if _is_large(content, each.name) else nullcontext():
            return classifier.pixels([load_content(content, each.name)])
    except EaseError as error:
        return EaseError(str(error))  # the one that was raised keeps the bytes of the image in memory


def _is_large(content: object, name: str) -> bool:
    """Whether an image needs so much memory that no other large one may be decoded at the same time."""
    try:
        return (
            isinstance(content, Path)
            and content.is_file()
            and count_pixels(content, name) > LARGE_IMAGE_PIXELS
        )
    except (OSError, ValueError):  # reading it will explain the damage
        return False
