"""Frames of videos as images. They are only named, never learned from: neighbouring frames are nearly copies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ease.documents import reason_of
from ease.errors import EaseError
from ease.filesystem import explained, is_file, shown, size_of
from ease.streams.intake.limits import LIMITS

VIDEO_EXTENSIONS = frozenset({".mp4", ".mov", ".m4v", ".mkv", ".avi", ".webm", ".mpg", ".mpeg"})
MAX_FRAMES = 10_000_000
_CONTAINED = {
    "format_whitelist": "mov,matroska,avi,mpeg,mpegvideo,mpegts,m4v",
    "protocol_whitelist": "none",
}
"""Containers that hold their pictures themselves. ffmpeg goes by content, not by endings, and also knows lists of
further files and addresses to open; nothing but the open file is read."""


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
    if not is_file(path):
        raise EaseError(f"video '{shown(path)}' is not there, or not a file: check the path")
    if not size_of(path):  # files of the system that say so may never end
        raise EaseError(f"video '{shown(path)}' is empty: leave it out")
    with explained("read", path):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        # A descriptor has no name: ffmpeg would take what stands before a colon for a protocol.
        with (
            os.fdopen(descriptor, "rb") as file,
            av.open(file, "r", container_options=_CONTAINED) as container,
        ):
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
        foreign = isinstance(error, av.ArgumentError)
        reason = (
            "it is no kind of video that is read" if foreign else reason_of(error, "its content is damaged")
        )
        raise EaseError(f"video '{shown(path)}' cannot be read ({reason}): repair or remove it") from error


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise EaseError("videos need PyAV: pip install 'ease-cil[video]'") from error
    return av
