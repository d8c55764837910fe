"""Addresses of a run's metrics for KEDA and of its traces, recorded in `run.json` for the page."""

import os
from pathlib import Path

from astraflow.dataflow.keda_config import KedaConfig
from astraflow.recipe.config import Recipe
from astraflow.runtime.tracing import TRACES, format_tracing


def keda_address(recipe: Recipe) -> str:
    """Returns the `HOST:PORT` where dataflow serves KEDA; empty when it does not. Raises: InvalidInput."""
    values = recipe.dataflow.get("keda")
    if values is None:
        return ""
    config = KedaConfig.parse(values, where="dataflow.keda")
    return f"{config.host}:{config.port}"


def traces_destination(recipe: Recipe, directory: Path) -> str:
    """Returns the destination of spans in the form of ASTRAFLOW_TRACES; empty for none.

    A relative folder of the recipe is below the run directory.
    """
    if TRACES in os.environ:
        return os.environ[TRACES]
    to = recipe.tracing.to
    destination = to if "://" in to else str(directory / to)
    return format_tracing(recipe.tracing.model_copy(update={"to": destination})) if to else ""
