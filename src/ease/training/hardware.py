"""What this machine supports: compiling a training, computing in bf16."""

from __future__ import annotations

import torch

from ease.errors import EaseError

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


def emulates_bf16(device: torch.device) -> bool:
    """Whether the device is known to emulate bf16 in fp32."""
    if device.type == "cuda":
        return not torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # added to torch after 2.6
        return False
    found = torch.cpu.get_capabilities()
    return found.get("architecture") == "x86_64" and not any(found.get(flag) for flag in BF16_FLAGS)
