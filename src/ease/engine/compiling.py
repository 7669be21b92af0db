"""`torch.compile` for the training step: it takes about a minute, and pays in long trainings."""

from __future__ import annotations

import torch

from ease.errors import EaseError


def check_can_compile(device: torch.device) -> None:
    """Compile next to nothing, so that a machine without a compiler is found before a run begins."""
    try:
        torch.compile(_twice)(torch.ones(8, device=device))
    except Exception as error:  # torch has a dozen of them for this
        reason = str(error).strip().partition("\n")[0][:200]
        raise EaseError(
            f"nothing can be compiled here ({reason}): install a C++ compiler, or leave --compile out"
        ) from error


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x + x
