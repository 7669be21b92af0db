"""Tensors in fewer bytes: half precision, 8-bit integers with a scale per row, matrices as two thin factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ease.errors import EaseError, unknown

STORAGES = ("fp32", "fp16", "int8")
SCALE, LEFT, RIGHT = "@scale", "@left", "@right"
"""What a tensor's parts are called in a file, behind its own name."""
LEVELS = 127
"""The largest 8-bit code. -128 is not used, so that signs are alike."""


def check_storage(storage: str) -> str:
    """A storage that there is."""
    if storage not in STORAGES:
        raise unknown("storage", storage, STORAGES)
    return storage


def check_energy(energy: float) -> float:
    """A share of a matrix's squared length that may be kept."""
    if not 0 < energy <= 1:
        raise EaseError(
            f"energy {energy:g} is no share to keep: give a number above 0 and up to 1, such as 0.99"
        )
    return float(energy)


@dataclass(frozen=True)
class Packed:
    """Tensors as they lie in a file, and how to get fp32 out of them again.

    Attributes:
        tensors: by name; those of `int8` and of factors have parts, see `SCALE`, `LEFT` and `RIGHT`.
        storage: one of `STORAGES`. In `int8`, matrices are 8-bit integers and vectors fp16.
        energy: the share of their squared length that factored matrices kept; None if none is factored.
    """

    tensors: Mapping[str, Tensor]
    storage: str = "fp32"
    energy: float | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], spec: Mapping[str, Any]) -> Packed:
        """What lies in a file, as a manifest describes it. One that says nothing means fp32."""
        storage, energy = spec.get("storage", "fp32"), spec.get("energy")
        if storage not in STORAGES or not (energy is None or (type(energy) is float and 0 < energy <= 1)):
            raise ValueError(f"storage {storage!r} with energy {energy!r} is unknown")
        return cls(tensors, storage, energy)

    def numbers(self) -> int:
        """How many numbers all tensors have when they are unpacked."""
        count = 0
        for name, value in self.tensors.items():
            if name.endswith(LEFT):
                right = self.tensors.get(name.removesuffix(LEFT) + RIGHT)
                count += value.shape[0] * right.shape[-1] if right is not None and value.dim() == 2 else 0
            elif not name.endswith((RIGHT, SCALE)):
                count += value.numel()
        return count

    def spec(self) -> dict[str, Any]:
        """For the manifest; empty for plain fp32."""
        storage = {} if self.storage == "fp32" else {"storage": self.storage}
        return storage if self.energy is None else {**storage, "energy": self.energy}

    def unpacked(self, shapes: Mapping[str, torch.Size] | None = None) -> dict[str, Tensor]:
        """All tensors in fp32.

        Args:
            shapes: what factors must multiply to, by name. Else a few bytes of a stranger's file could ask for any
                amount of memory.
        """
        values = dict(self.tensors) if self.storage == "fp32" else _widened(self.tensors)
        return values if self.energy is None else _multiplied(values, shapes or {})

    def repacked(self, storage: str | None = None, energy: float | None = None) -> Packed:
        """The same in another form; what is not named stays as it is.

        `energy` counts from the matrices as they were learned: factors that keep no more already are left alone.
        """
        storage = storage or self.storage
        values = dict(self.tensors) if self.storage == "fp32" else _widened(self.tensors)
        kept = self.energy
        if energy is not None and (kept is None or energy < kept):
            done = {name.removesuffix(LEFT) for name in values if name.endswith(LEFT)}
            whole = values if kept is None else _multiplied(values)
            values = _factored(
                whole, {name: energy / (kept or 1.0) if name in done else energy for name in whole}
            )
            kept = energy if any(name.endswith(LEFT) for name in values) else None
        elif storage == self.storage:
            return self
        return Packed(values if storage == "fp32" else _narrowed(values, storage), storage, kept)


def lossless(tensors: Mapping[str, Tensor], storage: str) -> Packed:
    """Packed in this storage if nothing is lost, else in fp32: what is saved is always what is in memory."""
    packed = Packed(tensors).repacked(storage)
    if packed.storage == "fp32":
        return packed
    back = packed.unpacked()
    return (
        packed if all(torch.equal(back[name], value) for name, value in tensors.items()) else Packed(tensors)
    )


# --- precision ------------------------------------------------------------------------------------


def _narrowed(values: Mapping[str, Tensor], storage: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if value.dtype != torch.float32 or not value.isfinite().all():
            found[name] = value
        elif storage == "int8" and value.dim() > 1:
            found[name], found[name + SCALE] = _quantised(value)
        else:
            half = value.half()
            found[name] = half if half.isfinite().all() else value  # beyond 65504 it stays as it is
    return found


def _quantised(value: Tensor) -> tuple[Tensor, Tensor]:
    """Codes like `value`, and a scale for each of its last dimension's rows.

    In bf16 a code times its scale is exact in fp32, so that packing what was unpacked gives the same again.
    """
    scale = (value.abs().amax(dim=-1) / LEVELS).bfloat16()
    scale = scale.where(scale >= torch.finfo(torch.bfloat16).tiny, 0)  # below it a scale loses its digits
    steps = scale.float().where(scale > 0, 1)[..., None]
    return (value / steps).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def _widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith(SCALE):
            continue
        scale = tensors.get(name + SCALE)
        if scale is not None:
            if value.dtype != torch.int8 or scale.shape != value.shape[:-1]:
                raise ValueError(f"'{name}' and its scale do not belong together")
            found[name] = value.float() * scale.float()[..., None]
        else:
            found[name] = value.float() if value.dtype == torch.float16 else value
    return found


# --- rank -----------------------------------------------------------------------------------------


def _factored(values: Mapping[str, Tensor], energies: Mapping[str, float]) -> dict[str, Tensor]:
    """Matrices as two thin ones where that takes fewer numbers; the largest singular values stay."""
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if value.dim() == 2 and value.isfinite().all():
            left, sizes, right = torch.linalg.svd(value.double(), full_matrices=False)
            rank = _rank(sizes, energies[name])
            if rank * sum(value.shape) < value.numel():
                root = sizes[:rank].sqrt()  # both sides alike, which suits their rounding
                found[name + LEFT] = (left[:, :rank] * root).float()
                found[name + RIGHT] = (root[:, None] * right[:rank]).float()
                continue
        found[name] = value
    return found


def _rank(sizes: Tensor, energy: float) -> int:
    """How many singular values, the largest first, hold this share of the energy."""
    held = sizes.square().cumsum(dim=0)
    return 1 + int((held < energy * held[-1] * (1 - 1e-12)).sum())


def _multiplied(
    values: Mapping[str, Tensor], shapes: Mapping[str, torch.Size] | None = None
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if name.endswith(LEFT):
            whole = name.removesuffix(LEFT)
            right = values[whole + RIGHT]
            if shapes is not None and tuple(shapes[whole]) != (value.shape[0], right.shape[-1]):
                raise ValueError(f"the factors of '{whole}' do not make a matrix of {tuple(shapes[whole])}")
            # In fp64, so that the last bit does not depend on the machine that multiplies.
            found[whole] = (value.double() @ right.double()).float()
        elif not name.endswith(RIGHT):
            found[name] = value
    return found
