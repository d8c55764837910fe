"""Control over imported modules."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
