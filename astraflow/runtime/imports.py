"""Control over imported modules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from astraflow.contract.errors import InvalidInput


def require_package(module: str, *, extra: str, needed_by: str) -> None:
    """Checks that a package is installed, without importing it. Raises: InvalidInput with the extra to install."""
    if find_spec(module) is None:
        raise InvalidInput(
            f"cannot use {needed_by}: the package {module!r} is not installed; install it with "
            f"pip install 'astraflow[{extra}]'",
            code="plugin.missing_package",
        )


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Hides a module from imports inside the block, so that libraries do without it where they can.

    For libraries that import an optional dependency although this process never uses the feature. The module is
    restored after the block.
    """
    modules: dict[str, Any] = sys.modules
    previous = {name: modules[name]} if name in modules else {}
    modules[name] = None  # makes Python treat the module as missing
    try:
        yield
    finally:
        del modules[name]
        modules |= previous
