"""What runs the optimizer step; the built-ins by kind."""

from astraflow.runtime.plugins import Registry
from astraflow.trainer.backends.base import Backend

backends: Registry[Backend] = Registry(
    "backend",
    built_in={
        "scripted": "astraflow.trainer.backends.scripted",
        "single": "astraflow.trainer.backends.single",
    },
    heavy=("single",),
)
