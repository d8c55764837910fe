"""Where a run tells others of itself besides its report: what `run.json` says of it, so that the page can."""

import os
from pathlib import Path

from astraflow.dataflow.keda_config import KedaConfig
from astraflow.recipe import Recipe
from astraflow.runtime.tracing import TRACES, to_text


def keda_at(recipe: Recipe) -> str:
    """`HOST:PORT` where dataflow will answer KEDA; empty for nowhere. Raises: InvalidInput."""
    values = recipe.dataflow.get("keda")
    if values is None:
        return ""
    config = KedaConfig.parse(values, where="dataflow.keda")
    return f"{config.host}:{config.port}"


def traces_to(recipe: Recipe, directory: Path) -> str:
    """Where spans go, as ASTRAFLOW_TRACES has it; empty for nowhere. A folder of the recipe's is in the run's."""
    if TRACES in os.environ:
        return os.environ[TRACES]
    to = recipe.tracing.to
    place = to if "://" in to else str(directory / to)
    return to_text(recipe.tracing.model_copy(update={"to": place})) if to else ""
