"""Registry of corrections for mismatch between the engine, which samples, and the trainer; the built-ins by kind."""

from astraflow.algorithms.corrections.base import Correction
from astraflow.runtime.plugins import Registry

corrections: Registry[Correction] = Registry(
    "correction",
    built_in={
        "geometric_mask": "astraflow.algorithms.corrections.masks",
        "icepop": "astraflow.algorithms.corrections.weights",
        "mis": "astraflow.algorithms.corrections.weights",
        "opsm": "astraflow.algorithms.corrections.masks",
        "tis": "astraflow.algorithms.corrections.weights",
    },
    heavy=("geometric_mask", "icepop", "mis", "opsm", "tis"),
)
