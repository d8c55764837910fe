"""Registry of training backends, which run the optimizer step; the built-ins by kind."""

from astraflow.runtime.plugins import Registry
from astraflow.trainer.backends.base import Backend

backends: Registry[Backend] = Registry(
    "backend",
    built_in={
        "fsdp": "astraflow.trainer.backends.fsdp",
        "local": "astraflow.trainer.backends.local",
        "scripted": "astraflow.trainer.backends.scripted",
        "titan": "astraflow.trainer.backends.titan",
    },
    heavy=("fsdp", "local", "titan"),
)
