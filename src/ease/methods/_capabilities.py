"""What a method may be able to do besides learning and predicting.

Each capability is a small protocol. A method has it if it implements the protocol's method; nothing else needs to be
declared. A subclass that lacks a capability of its parent sets the method to None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

from torch import Tensor

from ease.backbone import Tuning
from ease.errors import EaseError
from ease.methods._base import Forgetting, Learner
from ease.methods._registry import methods
from ease.storage.precision import check_energy, check_storage
from ease.streams import ImageSet


@runtime_checkable
class Extendable(Protocol):
    """A method that can learn more images of classes it knows."""

    def extend(self, images: ImageSet) -> None:
        """Learn more images of known classes. Labels are positions among all classes."""
        ...


@runtime_checkable
class Forgettable(Protocol):
    """A method that can remove a class."""

    def forget(self, position: int) -> Forgetting:
        """Remove the class at this position. Later classes move up by one."""
        ...


@runtime_checkable
class Budgeted(Protocol):
    """A method that can predict with fewer passes through the backbone than it would take by default."""

    def within(self, budget: int | None) -> None:
        """Spend at most `budget` passes per image from now on; None restores the value of the settings."""
        ...


@dataclass(frozen=True)
class Compaction:
    """How to make a model smaller. A field that is None leaves that aspect unchanged.

    Attributes:
        storage: `fp32`, `fp16` or `int8`, for everything that the model stores besides its backbone.
        energy: Share of the squared norm of each adapter matrix that its low-rank factors keep.
        max_subspaces: Maximum number of passes per prediction. The newest subspaces are dropped; the pre-trained
            model counts as one subspace where it is in use.
    """

    storage: str | None = None
    energy: float | None = None
    max_subspaces: int | None = None

    def __post_init__(self) -> None:
        if self.storage is not None:
            check_storage(self.storage)
        if self.energy is not None:
            object.__setattr__(self, "energy", check_energy(self.energy))
        if self.max_subspaces is not None and self.max_subspaces < 1:
            raise EaseError(f"max_subspaces (--max-subspaces) must be 1 or more, not {self.max_subspaces}")

    @property
    def asks(self) -> bool:
        """Whether any field is set."""
        return (self.storage, self.energy, self.max_subspaces) != (None, None, None)


@runtime_checkable
class Compactable(Protocol):
    """A method whose learned models can be made smaller."""

    def compacted(self, compaction: Compaction) -> Learner:
        """Return a smaller learner, which can go on learning; this learner is left unchanged.

        A request that the method cannot fulfil is an `EaseError`. Repeating a request must change nothing.
        """
        ...


@runtime_checkable
class SharesTrainings(Protocol):
    """A method of which several variants train exactly the same subspaces, so that one run can reuse another's."""

    @classmethod
    def shared_trainings(cls, settings: Mapping[str, Any]) -> str:
        """A key: on the same stream and seed, runs with equal keys may reuse each other's trainings."""
        ...


@runtime_checkable
class ComparesImages(Protocol):
    """A method that can say how alike two images are, also of classes that it does not know."""

    def directions(self, features: Tensor) -> Tensor:
        """Features [S, N, d] -> vectors of length 1, [N, K]: the cosine of two says how alike the images are."""
        ...

    def alike_from(self) -> float:
        """The cosine from which two images are more alike than by chance, by what was learned."""
        ...


@runtime_checkable
class PrototypesPerSubspace(Protocol):
    """A method with prototypes of all classes in several trained subspaces, which can be drawn."""

    def prototypes_per_subspace(self) -> list[tuple[Tuning, Tensor]]:
        """The tuning of each trained subspace in use and the prototypes [classes, d] in it, the oldest first."""
        ...


@runtime_checkable
class JudgesLabels(Protocol):
    """A method that can say how well labels fit images which it has not learned, before it learns them."""

    def label_scores(self, features: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Scores of images as if all of them had been learned with their labels, but for the image itself.

        The learner is left unchanged.

        Args:
            features: [S, N, d], one for each of `subspaces`.
            labels: [N]; positions among the known classes, or after them for new ones.
            classes: Number of known and new classes, C.

        Returns:
            [N, C]; NaN in the row of a class's only image.
        """
        ...


def extendable(learner: Learner) -> Extendable:
    """Return the learner as `Extendable`; an `EaseError` names the methods that are, if this one is not."""
    if not isinstance(learner, Extendable):
        _refuse(learner, Extendable, "cannot learn more images of a class that it knows")
    return learner


def forgettable(learner: Learner) -> Forgettable:
    """Return the learner as `Forgettable`; an `EaseError` names the methods that are, if this one is not."""
    if not isinstance(learner, Forgettable):
        _refuse(learner, Forgettable, "cannot forget a class")
    return learner


def compactable(learner: Learner) -> Compactable:
    """Return the learner as `Compactable`; an `EaseError` names the methods that are, if this one is not."""
    if not isinstance(learner, Compactable):
        _refuse(learner, Compactable, "cannot be compacted")
    return learner


def set_budget(learner: Learner, budget: int | None) -> None:
    """Limit the passes per image of a learner.

    Args:
        learner: Any learner. One that is not `Budgeted` accepts every budget that it never exceeds.
        budget: Maximum number of passes per image; None for the value of the learner's settings.
    """
    if isinstance(learner, Budgeted):
        learner.within(budget)
    elif budget is not None and budget < (passes := learner.passes_per_image()):
        raise EaseError(f"{learner.name} takes {passes} passes per image, not {budget}: leave the budget out")


def _refuse(learner: Learner, capability: type, what: str) -> NoReturn:
    able = [f"'{name}'" for name, method in methods().items() if issubclass(method, capability)]
    raise EaseError(f"a model of '{learner.name}' {what}: only those of {' and '.join(able)} can")
