"""Imports of the packages of the extra `data`, when a dataset needs them."""

from importlib import import_module
from typing import Any

from astraflow.contract.errors import InvalidInput


def import_optional(name: str) -> Any:
    """Imports a module. Raises: InvalidInput with the command to install it, when it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        raise InvalidInput(
            f"cannot load the dataset: the package {problem.name!r} is not installed; "
            "run pip install 'astraflow[data]'",
            code="dataset.missing_package",
        ) from problem
