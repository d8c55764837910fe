"""Data of the learning part of the first screen; viewers of the same run share what dataflow answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.runtime.clock import Clock
from web.charts.panels import Row
from web.history.training_steps import step_numbers
from web.overview.learning import Learning, learning, metric_of, with_means
from web.overview.samples import StepSamples, step_samples
from web.requests.commands import ProcessCache
from web.requests.range_points import HistorySource

SHARED_S = 4.0
"""Time for which viewers share the samples of a step and the evaluations."""

MAX_ROUNDS = 200

StepNumber = tuple[float, int, float | None]
"""Time in Unix seconds, number and value of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSource:
    """Sources of the learning of the shown run."""

    history: HistorySource
    control: ControlPlaneClient
    cache: ProcessCache
    clock: Clock


async def _steps(history: HistorySource, report: Report, stream: StreamReport) -> list[Row]:
    """Returns the steps of a policy, oldest first."""
    run_id, metric = history.recorder.run_id, metric_of(stream)
    steps: list[StepNumber] = []
    if run_id is not None:
        steps = await history.database.read(lambda session: step_numbers(session, run_id, stream.policy, metric))
    return with_means([*steps, *_not_recorded(steps, report, stream)], metric)


def _not_recorded(steps: Sequence[StepNumber], report: Report, stream: StreamReport) -> list[StepNumber]:
    """Returns the steps of the report after the recorded ones, unless steps between them are missing: the page
    copies those."""
    training = stream.training
    latest = training.losses or training.rewards
    first, last_recorded = training.steps - len(latest) + 1, steps[-1][1] if steps else 0
    if steps and first > last_recorded + 1:
        return []
    return [(report.at, first + index, value) for index, value in enumerate(latest) if first + index > last_recorded]


async def load_learning(
    source: LearningSource, report: Report, stream: StreamReport, step: int | None
) -> tuple[Learning, StepSamples]:
    """Returns the learning of a policy, and the samples of a step; None: of the newest."""
    rounds, samples = await _shared(source, report.run, stream.policy, step)
    rows = await _steps(source.history, report, stream)
    return learning(stream, rows, rounds), samples


async def _shared(
    source: LearningSource, run: str, policy: str, step: int | None
) -> tuple[Sequence[EvaluationReport], StepSamples]:
    key = ("learning", run, policy, step, int(source.clock.now() / SHARED_S))
    pending = source.cache.shared.get(key)
    if pending is None:
        pending = asyncio.ensure_future(_ask(source.control, policy, step))
        source.cache.shared.put(key, pending)
    rounds, samples = await asyncio.shield(pending)
    return rounds, samples


async def _ask(
    control: ControlPlaneClient, policy: str, step: int | None
) -> tuple[Sequence[EvaluationReport], StepSamples]:
    try:
        rounds: Sequence[EvaluationReport] = await control.evaluations(limit=MAX_ROUNDS)
    except AstraFlowError:  # the connection badge of the page shows the failure
        rounds = ()
    return rounds, await step_samples(control, policy, step)
