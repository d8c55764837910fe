"""The weights a policy starts from: made once, before its trainer is built."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow.datasets import datasets
from astraflow.datasets.base import examples
from astraflow.models import models
from astraflow.models.base import OnProgress, WarmStartProgress
from astraflow.runtime.logs import get_logger

log = get_logger()


_EXAMPLES_SEED = 0
"""Fixed: what is prepared follows from the model spec alone, which names the cached result."""


def prepare_model(model: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Path:
    """The folder with the first weights of the model that this spec describes; the warm start runs if it is due.

    on_progress: told how far the warm start is; by default it goes to the log.
    Raises: InvalidInput when the model or its examples cannot be had.
    """
    source = models.build(model)
    if source.examples_from is None:
        return source.prepare()
    dataset = datasets.build(source.examples_from, _EXAMPLES_SEED)
    log.info("warm_start_begins", dataset=dict(source.examples_from))
    return source.prepare(examples(dataset, seed=_EXAMPLES_SEED), on_progress or _logged)


def _logged(progress: WarmStartProgress) -> None:
    log.info("warm_start", step=progress.step, accuracy=round(progress.accuracy, 3), target=progress.target_accuracy)
