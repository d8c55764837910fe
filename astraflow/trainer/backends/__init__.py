"""Registry of training backends, which run the optimizer step; the built-ins by kind."""

from astraflow.runtime.plugins import Registry, modules
from astraflow.trainer.backends.base import Backend

backends: Registry[Backend] = Registry(
    "backend",
    built_in=modules(__name__, "fsdp local scripted titan"),
    heavy=("fsdp", "local", "titan"),
)
