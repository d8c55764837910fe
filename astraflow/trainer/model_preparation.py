"""Preparation of a policy's initial weights, before its trainer is built."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astraflow.datasets import datasets
from astraflow.datasets.base import examples
from astraflow.models import models
from astraflow.models.base import Example, ExamplesSource, ModelSource, OnProgress, WarmStartProgress
from astraflow.runtime.logs import get_logger
from astraflow.trainer.demonstrations import demonstrations

log = get_logger()


_EXAMPLES_SEED = 0
"""Fixed, so that the prepared model depends only on the model spec, which names the cached result."""


def prepare_model(model: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Path:
    """Returns the folder with the initial weights of the model that the spec describes; runs the warm start if it is
    due.

    on_progress: receives the progress of the warm start; by default it is logged.
    Raises: InvalidInput when the model or its examples are unavailable.
    """
    source = models.build(model)
    wanted = source.examples_source
    if wanted is None:
        return source.prepare()
    log.info("warm_start_started", dataset=dict(wanted.dataset))
    return source.prepare(warm_start_examples(source, wanted), on_progress or _logged)


def warm_start_examples(source: ModelSource, wanted: ExamplesSource) -> Iterator[Example]:
    """Returns the examples that a model's warm start needs, without end. Raises: as `prepare_model`."""
    dataset = datasets.build(wanted.dataset, _EXAMPLES_SEED)
    if wanted.episodes is None:
        return examples(dataset, seed=_EXAMPLES_SEED)
    return demonstrations(wanted.episodes, dataset, source.tokenizer(), seed=_EXAMPLES_SEED)


def _logged(progress: WarmStartProgress) -> None:
    log.info(
        "warm_start_progress", step=progress.step, accuracy=round(progress.accuracy, 3), target=progress.target_accuracy
    )
