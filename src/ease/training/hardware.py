"""What this machine supports: compiling a training, computing in bf16."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, get_args

import torch

from ease.errors import EaseError, unknown

Precision = Literal["32-true", "bf16-mixed"]
"""What the backbone computes in: fp32, or bf16 where autocast allows it. Trained weights and sums are always fp32."""

AskedPrecision = Literal["auto", "32-true", "bf16-mixed"]
"""`auto` is bf16 where the hardware computes it natively, else fp32."""

PRECISION_VARIABLE = "EASE_PRECISION"
"""The environment variable with the precision of the app, of predictions and of servers, where none is given."""

BF16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Capability flags of x86 processors with bf16 support."""


def check_can_compile(device: torch.device) -> None:
    """Compile a trivial function, so that a missing compiler is found before a run starts."""
    try:
        torch.compile(_twice)(torch.ones(8, device=device))
    except Exception as error:  # torch raises many different types here
        reason = str(error).strip().partition("\n")[0][:200]
        raise EaseError(
            f"nothing can be compiled here ({reason}): install a C++ compiler, or leave --compile out"
        ) from error


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


def computes_bf16(device: torch.device) -> bool:
    """Whether the device is known to compute in bf16 natively. Of other devices than CUDA and x86 nothing is known."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and any(_capabilities().get(flag) for flag in BF16_FLAGS)


def emulates_bf16(device: torch.device) -> bool:
    """Whether the device is known to emulate bf16 in fp32."""
    if device.type == "cuda":
        return not computes_bf16(device)
    return (
        device.type == "cpu" and _capabilities().get("architecture") == "x86_64" and not computes_bf16(device)
    )


def resolve_precision(asked: str, device: torch.device) -> Precision:
    """The precision that a choice stands for on a device."""
    if asked == "auto":
        return "bf16-mixed" if computes_bf16(device) else "32-true"
    if asked not in get_args(Precision):
        raise unknown("precision", asked, get_args(AskedPrecision))
    return asked  # type: ignore[return-value]


def app_precision(asked: str | None = None) -> Precision:
    """The precision of a model of the app, on the CPU: what is asked for, else `EASE_PRECISION`, else `auto`."""
    return resolve_precision(asked or os.environ.get(PRECISION_VARIABLE) or "auto", torch.device("cpu"))


def device_of(accelerator: str) -> torch.device:
    """The kind of device that Lightning Fabric chooses for the name of an accelerator."""
    names = {"gpu": "cuda", "auto": "cuda" if torch.cuda.is_available() else "cpu"}
    name = names.get(accelerator, accelerator)
    return torch.device(name if name in ("cpu", "cuda", "mps") else "cpu")


def _capabilities() -> Mapping[str, object]:
    """What torch says about the processor; nothing in versions that cannot, up to 2.6."""
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
