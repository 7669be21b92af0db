"""What the app asks of a method beyond learning and predicting. A method that cannot do it is refused in one line."""

from __future__ import annotations

from ease.methods import Forgetting, Learner
from ease.streams import ImageSet


def extend_learner(learner: Learner, images: ImageSet) -> None:
    """Show a learner more images of classes it knows; labels are their positions among all classes."""
    learner.extend(images)


def forget_class(learner: Learner, position: int) -> Forgetting:
    """Remove the class at this position from a learner; later classes move up."""
    return learner.forget(position)
