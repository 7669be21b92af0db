"""Where a run takes place: devices, versions of libraries, and peak memory."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import ease
from ease.config import RunConfig
from ease.errors import EaseError

_LIBRARIES = (
    *("torch", "torchvision", "timm", "lightning-fabric", "numpy", "safetensors"),
    # They draw and decode images: glyphs have changed with them.
    *("matplotlib", "pillow"),
)


def make_fabric(config: RunConfig) -> Any:
    """A launched Fabric for the devices asked for."""
    from lightning_fabric import Fabric

    _check_devices(config.accelerator, config.devices)
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            strategy="ddp" if config.devices > 1 else "auto",
            precision=config.precision,
        )
        fabric.launch()
    except (RuntimeError, ValueError) as error:
        raise EaseError(f"cannot use {config.devices} x {config.accelerator}: {error}") from error
    return fabric


def _check_devices(accelerator: str, devices: int) -> None:
    """Refuse more processes than cores: on the CPU, Fabric would start as many as it is told to."""
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    most = max(2, os.cpu_count() or 1)
    if on_cpu and devices > most:
        raise EaseError(
            f"{devices} devices are {devices} processes on the CPU: give at most {most} (--devices)"
        )


def peak_memory() -> int:
    """The most bytes of memory that this process has held: on a GPU where one is in use, else in main memory.

    On Linux this is the kernel's `VmHWM`, which counts this process alone. `ru_maxrss`, which is read elsewhere,
    begins at what the process held that started this one.
    """
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the libraries that decide its results, and the number of threads."""
    found = {name: version(name) for name in _LIBRARIES}
    return {
        "ease": ease.__version__,
        "python": platform.python_version(),
        **found,
        "threads": str(torch.get_num_threads()),
    }
