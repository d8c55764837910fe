"""Imports packages of the extra `data` on first use."""

from importlib import import_module
from typing import Any

from astraflow.runtime.imports import needs_extra


def import_optional(name: str) -> Any:
    """Imports a module. Raises: InvalidInput with the command to install it, when it is missing."""
    with needs_extra("data", to="load the dataset"):
        return import_module(name)
