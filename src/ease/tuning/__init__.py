"""What plugs into the backbone's ports. Backbone + one tuning = one subspace."""

from ease.tuning.adapter import Adapter
from ease.tuning.full import Full

__all__ = ["Adapter", "Full"]
