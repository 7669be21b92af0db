"""A trained tuning that never changes again, together with the form in which it is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ease.backbone import Backbone, Tuning
from ease.methods._allocations import bounded_allocations
from ease.storage.precision import Packed
from ease.tuning import build_tuning

_SMALL = 2**20
"""Numbers that building any tuning may allocate beside its weights."""


@dataclass(frozen=True)
class FrozenTuning:
    """A frozen tuning.

    Attributes:
        tuning: The tuning, on the backbone's device.
        packed: Its tensors as they are saved. A tuning that was loaded is saved again as it was.
        hash: Content hash, computed once since the tuning never changes.
    """

    tuning: Tuning
    packed: Packed
    hash: str

    @classmethod
    def of(cls, tuning: Tuning, backbone: Backbone, packed: Packed | None = None) -> FrozenTuning:
        """Freeze a tuning and compute its hash.

        Args:
            tuning: A trained tuning.
            backbone: The backbone that it belongs to.
            packed: Its saved form, if that is not plain fp32.

        Returns:
            The frozen tuning.
        """
        tuning = tuning.to(backbone.device).freeze()
        plain = packed is None or not packed.spec()  # plain weights need no second copy
        return cls(tuning, Packed(tuning.state_dict()) if plain else packed, tuning.fingerprint())  # type: ignore[arg-type]

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor], spec: Mapping[str, Any], backbone: Backbone) -> FrozenTuning:
        """Restore a tuning from the tensors of a file and the `spec` stored with them."""
        return cls._unpacked(spec["kind"], spec["config"], Packed.of(tensors, spec), backbone)

    @classmethod
    def _unpacked(cls, kind: str, config: dict[str, Any], packed: Packed, backbone: Backbone) -> FrozenTuning:
        with bounded_allocations(2 * packed.numbers() + _SMALL):  # it can be no larger than its file
            tuning = build_tuning(kind, backbone.shape, config, vit=backbone.vit)
        shapes = {name: value.shape for name, value in tuning.state_dict().items()}
        tuning.load_state_dict(packed.unpacked(shapes))
        return cls.of(tuning, backbone, packed)

    def spec(self) -> dict[str, Any]:
        """What the manifest says about the tuning: its kind, its configuration and how it is packed."""
        return {"kind": self.tuning.kind, "config": self.tuning.config(), **self.packed.spec()}

    def repacked(self, storage: str | None, energy: float | None, backbone: Backbone) -> FrozenTuning:
        """The tuning in another precision or with low-rank factors; see `Packed.repacked`."""
        packed = self.packed.repacked(storage, energy)
        if packed is self.packed:
            return self
        return self._unpacked(self.tuning.kind, self.tuning.config(), packed, backbone)
