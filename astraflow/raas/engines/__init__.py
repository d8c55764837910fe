"""Serving engines behind one small port; the built-ins by kind."""

from astraflow.raas.engines.base import Engine
from astraflow.runtime.plugins import Registry

engines: Registry[Engine] = Registry(
    "engine",
    built_in={
        "local_torch": "astraflow.raas.engines.local_torch",
        "scripted": "astraflow.raas.engines.scripted",
    },
    heavy=("local_torch",),
)
