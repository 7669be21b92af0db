"""Frames of videos as images. They are only named, never learned from: neighbouring frames are nearly copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ease.documents import reason_of
from ease.errors import EaseError
from ease.filesystem import is_file, shown, size_of
from ease.streams.intake.limits import LIMITS

VIDEO_EXTENSIONS = frozenset({".mp4", ".mov", ".m4v", ".mkv", ".avi", ".webm", ".mpg", ".mpeg"})
MAX_FRAMES = 10_000_000


def is_video(path: Path) -> bool:
    """Whether a file has the ending of a video."""
    return path.suffix.lower() in VIDEO_EXTENSIONS


def video_frames(path: Path, every: int) -> Iterator[tuple[int, Tensor]]:
    """Every n-th frame of a video, from the first on.

    Args:
        path: The video.
        every: 1 for all frames, 2 for each second one, and so on.

    Yields:
        The number of the frame, counted from 0, and the frame, uint8 RGB [3, H, W].

    Raises:
        EaseError: The video cannot be read; frames before the damage have been given.
    """
    if every < 1:
        raise EaseError(f"every {every}-th frame makes no sense: give 1 or more")
    av = _av()
    if is_file(path) and not size_of(path):  # files of the system that say so may never end
        raise EaseError(f"video '{shown(path)}' is empty: leave it out")
    try:
        with av.open(str(path), "r") as container:
            if not container.streams.video:
                raise EaseError(f"video '{shown(path)}' has no picture in it: leave it out")
            stream = container.streams.video[0]
            for number, frame in enumerate(container.decode(stream)):
                if number >= MAX_FRAMES:
                    raise EaseError(f"video '{shown(path)}' has more than {MAX_FRAMES:,} frames: cut it")
                if number % every == 0:
                    LIMITS.check_size(frame.width, frame.height, f"{path}#{number}")
                    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24"))
                    yield number, pixels.permute(2, 0, 1).contiguous()
    except EaseError:
        raise
    except Exception as error:  # ffmpeg has an error for everything
        raise EaseError(
            f"video '{shown(path)}' cannot be read ({reason_of(error, 'its content is damaged')}): repair or remove it"
        ) from error


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise EaseError("videos need PyAV: pip install 'ease-cil[video]'") from error
    return av
