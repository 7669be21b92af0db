"""What may be asked of a method that can make a learned model smaller, and what such methods have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ease.backbone import Backbone, Tuning
from ease.errors import EaseError, unknown
from ease.methods._base import Learner
from ease.storage.precision import Packed, check_energy, check_storage
from ease.tuning import build_tuning

WAYS = ("drop", "merge")


@dataclass(frozen=True)
class Compaction:
    """What to do to a model. What is None is left as it is.

    Attributes:
        storage: `fp32`, `fp16` or `int8`, of all that the model keeps beside its backbone.
        energy: share of the squared length of each adapter's matrices that their low-rank factors keep.
        max_subspaces: how many passes a prediction may take; the PTM, where it is in use, is one of them.
        how: `drop` loses the newest subspaces, `merge` averages what adapters add.
    """

    storage: str | None = None
    energy: float | None = None
    max_subspaces: int | None = None
    how: str | None = None

    def __post_init__(self) -> None:
        if self.storage is not None:
            check_storage(self.storage)
        if self.energy is not None:
            object.__setattr__(self, "energy", check_energy(self.energy))
        if self.max_subspaces is not None and self.max_subspaces < 1:
            raise EaseError(
                f"max_subspaces (--max-subspaces) must be 1 or more, not {self.max_subspaces}: without any it is blind"
            )
        if self.how is not None and self.how not in WAYS:
            raise unknown("way to lose subspaces", self.how, WAYS)
        if self.how is not None and self.max_subspaces is None:
            raise EaseError(
                f"to {self.how} subspaces it must know how many may stay: give max_subspaces (--max-subspaces) as well"
            )

    @property
    def asks(self) -> bool:
        """Whether it asks for anything."""
        return (self.storage, self.energy, self.max_subspaces) != (None, None, None)


@runtime_checkable
class Compactable(Protocol):
    """A method whose learned models can be made smaller. A subclass that cannot do so sets `compacted` to None."""

    def compacted(self, compaction: Compaction) -> Learner:
        """The learner that comes out, which goes on learning like any other; this one stays as it is.

        What the method cannot do is an `EaseError`. A storage that is asked for again must change nothing.
        """
        ...


def unpacked_tuning(kind: str, backbone: Backbone, config: dict[str, Any], packed: Packed) -> Tuning:
    """A tuning with the weights that were packed."""
    tuning = build_tuning(kind, backbone.shape, config, vit=backbone.vit)
    tuning.load_state_dict(
        packed.unpacked({name: value.shape for name, value in tuning.state_dict().items()})
    )
    return tuning


def twin(tuning: Tuning, backbone: Backbone, packed: Packed) -> Tuning:
    """A tuning of the same kind and shape with other weights."""
    return unpacked_tuning(tuning.kind, backbone, tuning.config(), packed)
