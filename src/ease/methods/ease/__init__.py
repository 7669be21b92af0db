"""EASE (Zhou et al., CVPR 2024) and its upper bound."""

from ease.methods.ease.method import Ease
from ease.methods.ease.settings import EaseSettings
from ease.methods.ease.upper_bound import UpperBound

__all__ = ["Ease", "EaseSettings", "UpperBound"]
