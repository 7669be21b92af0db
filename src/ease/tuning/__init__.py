"""Tunings: what is trained beside the frozen backbone. The backbone with one tuning is one subspace."""

from ease.tuning.adapter import Adapter
from ease.tuning.attention_adapter import AttentionAdapter
from ease.tuning.full import Full
from ease.tuning.lora import KvLora, Lora
from ease.tuning.prefix import CompensatedPrefix, Prefix, PrefixPerImage
from ease.tuning.registry import TUNINGS, build_tuning, faults, find_tuning, tuning_settings, tunings
from ease.tuning.ssf import Ssf
from ease.tuning.vpt import PromptsPerImage, VptDeep, VptShallow

__all__ = [
    "TUNINGS",
    "Adapter",
    "AttentionAdapter",
    "CompensatedPrefix",
    "Full",
    "KvLora",
    "Lora",
    "Prefix",
    "PrefixPerImage",
    "PromptsPerImage",
    "Ssf",
    "VptDeep",
    "VptShallow",
    "build_tuning",
    "faults",
    "find_tuning",
    "tuning_settings",
    "tunings",
]
