"""What a process loads."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(name: str) -> Iterator[None]:
    """Whatever is imported here finds no module of that name, and does without where it can.

    For libraries that load another one when they find it, though this process never uses what they want it for. Outside
    the block the module is what it was.
    """
    modules: dict[str, Any] = sys.modules
    was = {name: modules[name]} if name in modules else {}
    modules[name] = None  # how Python is told that there is none
    try:
        yield
    finally:
        del modules[name]
        modules |= was
