"""Where a run takes place: devices, versions of libraries, and peak memory."""

from __future__ import annotations

import atexit
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
    """A launched Fabric for the devices asked for, on one or several machines.

    On several machines the command is started on each of them: by torchrun or SLURM, or by hand with MASTER_ADDR,
    MASTER_PORT and NODE_RANK in the environment. torchrun says itself how many there are.
    """
    from lightning_fabric import Fabric

    nodes, devices = _started_by_torchrun() or (config.nodes, config.devices)
    if (nodes, devices) != (config.nodes, config.devices) and config.nodes * config.devices > 1:
        raise EaseError(
            f"torchrun started {devices} processes on each of {nodes} machines, but {config.devices} devices on "
            f"{config.nodes} nodes were asked for: leave out --devices and --nodes"
        )
    _check_devices(config.accelerator, devices)
    if nodes > 1:
        _check_can_meet()
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if nodes * devices > 1 else "auto",
            precision=config.precision,
        )
        fabric.launch()
    except (RuntimeError, ValueError) as error:
        where = f" on {nodes} nodes" if nodes > 1 else ""
        raise EaseError(f"cannot use {devices} x {config.accelerator}{where}: {error}") from error
    if nodes * devices > 1:
        atexit.register(_leave_the_others)
    return fabric


def _leave_the_others() -> None:
    """End the threads that talk to the other processes. One that still runs at exit may abort the process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def is_first_process() -> bool:
    """Whether this is the process of a distributed run that prints; it is in any other run."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _started_by_torchrun() -> tuple[int, int] | None:
    """How many machines take part, and how many processes on each, if torchrun started this one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, int(os.environ.get("WORLD_SIZE", "1")) // here), here


def _check_can_meet() -> None:
    """Processes of several machines that do not know where to meet would each wait for a long time."""
    if "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_NTASKS" in os.environ:
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if name not in os.environ]
    if missing:
        raise EaseError(
            f"--nodes needs {', '.join(missing)} in the environment of every machine: start the command with "
            "torchrun or srun, or set them"
        )


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
