"""Errors of the algorithm's plugins, with the plugin's name and the line of its code instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import extract_tb

import torch
from torch import Tensor

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.runtime.plugins import plugin_cause

_COLLECTIVE_FILES = ("torch/distributed/", "trainer/engines/mesh.py")
"""Parts of paths in the traceback of an error that another rank causes."""


@contextmanager
def plugin_errors(plugin: str) -> Iterator[None]:
    """Raises InvalidInput, which a restart does not cure, for an error of a plugin in the block.

    plugin: its description, such as `the loss 'ppo'`. Errors of memory and of other ranks stay as they are.
    """
    try:
        yield
    except (AstraFlowError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as problem:
        files = [frame.filename for frame in extract_tb(problem.__traceback__)]
        if any(part in file for part in _COLLECTIVE_FILES for file in files):
            raise
        raise InvalidInput(
            f"cannot train the batch: {plugin} failed: {plugin_cause(problem)}; correct it and start the run again",
            code="algorithm.plugin_failed",
        ) from problem


def checked_rows(values: object, rows: int) -> Tensor:
    """Returns the result of an advantage in float64. Raises: ValueError unless it is one finite number for each row."""
    if not isinstance(values, Tensor) or values.shape != (rows,):
        form = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"it returned {form}; return a tensor with one number for each of the {rows} rows")
    if not values.isfinite().all():
        raise ValueError("it returned a number that is not finite (NaN or infinite)")
    return values.double()
