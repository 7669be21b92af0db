"""EASE (Zhou et al., CVPR 2024) and its upper bound."""

from ease.methods.ease.method import Ease, EaseSettings, UpperBound

__all__ = ["Ease", "EaseSettings", "UpperBound"]
