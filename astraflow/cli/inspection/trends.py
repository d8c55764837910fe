"""Course of a run in the terminal: reward, trainer wait, throughput, mismatch and evaluations as sparklines."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from astraflow.cli.inspection.screen import number, share
from astraflow.cli.output import Table
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import Report, StreamReport
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepQuery
from astraflow.contract.training_metrics import MetricUnit, training_metric

CELLS = 32
"""Points of a sparkline. Count."""
_STEPS_PER_CELL = 10
"""Steps that are read for each point, from its first step on. Count."""
_ROUNDS = 200
"""Latest rounds of evaluations that are read. Count."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_MISMATCH = ("mismatch_k3", "kl_behaviour", "kl_corrected", "outside_head", "centering_share")
"""Metrics of steps that are shown where the trainer reports them: the mismatch, and what corrections leave of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One value over the run."""

    name: str
    values: tuple[float, ...]
    """Oldest first."""
    text: Callable[[float], str]


async def read_trends(client: ControlPlaneClient, report: Report) -> tuple[Trend, ...]:
    """Reads the course of a run, a long one at `CELLS` points in as many calls. Raises: the errors of the client."""
    trends: list[Trend] = []
    for stream in report.streams:
        trends += _of_steps(stream, await _sampled_steps(client, stream))
    return (*trends, *_of_rounds(await client.evaluations(limit=_ROUNDS) if report.evaluations else ()))


def trend_table(trends: Sequence[Trend]) -> Table:
    """Returns a row for each trend with at least two points."""
    table = Table("over the whole run", "", "first", "latest", wrapped=())
    for trend in trends:
        if len(trend.values) > 1:
            table.add(trend.name, sparkline(trend.values), trend.text(trend.values[0]), trend.text(trend.values[-1]))
    return table


def sparkline(values: Sequence[float]) -> str:
    """Returns a character for each value, from the lowest to the highest; a space for one that is unknown.

    >>> sparkline([0.0, 1.0, 2.0, math.nan, 7.0])
    '▁▂▃ █'
    """
    known = [value for value in values if math.isfinite(value)]
    lowest = min(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / ((max(known, default=0.0) - lowest) or 1.0)
    return "".join(_BLOCKS[round((value - lowest) * scale)] if math.isfinite(value) else " " for value in values)


async def _sampled_steps(client: ControlPlaneClient, stream: StreamReport) -> list[tuple[TrainingStep, ...]]:
    every = max(1.0, stream.training.steps / CELLS)
    points = range(math.ceil(stream.training.steps / every))
    limit = math.ceil(min(every, _STEPS_PER_CELL))
    queries = (TrainingStepQuery(policy=stream.policy, after=int(point * every), limit=limit) for point in points)
    pages = await asyncio.gather(*map(client.training_steps, queries))
    return [page.steps for page in pages if page.steps]


def _of_steps(stream: StreamReport, cells: Sequence[Sequence[TrainingStep]]) -> list[Trend]:
    name, metric = ("loss", "loss") if stream.training.losses else ("reward", "")
    means = [fmean(step.metrics.get(metric, math.nan) if metric else step.reward for step in cell) for cell in cells]
    waits = [_wait(cell) for cell in cells]
    rates = [_rate(before[0], after[0]) for before, after in pairwise(cells)]
    policy = stream.policy
    return [
        Trend(name=f"{name} of {policy}", values=tuple(means), text=number),
        Trend(name=f"trainer wait of {policy}", values=tuple(waits), text=share),
        Trend(name=f"trained tokens/s of {policy}", values=tuple(rates), text=lambda rate: f"{rate:,.0f}"),
        *(trend for name in _MISMATCH if (trend := _of_metric(stream, name, cells)) is not None),
    ]


def _of_metric(stream: StreamReport, name: str, cells: Sequence[Sequence[TrainingStep]]) -> Trend | None:
    """Returns the course of a described metric over the points with any value; None without one."""
    metric = training_metric(name)
    values = [[step.metrics[name] for step in cell if name in step.metrics] for cell in cells]
    means = tuple(fmean(of_cell) for of_cell in values if of_cell)
    if metric is None or not means:
        return None
    text = share if metric.unit is MetricUnit.SHARE else "{:.2g}".format
    return Trend(name=f"{metric.label.lower()} of {stream.policy}", values=means, text=text)


def _wait(steps: Sequence[TrainingStep]) -> float:
    """Returns the share of the time of steps that the trainer waited; NaN if unknown."""
    wait_s = sum(step.metrics.get("wait_s", math.nan) for step in steps)
    total_s = wait_s + sum(step.metrics.get("compute_s", 0.0) + step.metrics.get("publish_s", 0.0) for step in steps)
    return wait_s / total_s if total_s else math.nan


def _rate(before: TrainingStep, after: TrainingStep) -> float:
    duration_s = after.at - before.at
    return (after.total_tokens - before.total_tokens) / duration_s if duration_s > 0 else math.nan


def _of_rounds(rounds: Sequence[EvaluationReport]) -> list[Trend]:
    """Returns the first score of each policy in each evaluation. rounds: newest first."""
    scores: dict[str, list[float]] = {}
    for report in reversed(rounds):
        first = {score.policy: score for score in reversed(report.scores)}
        for policy, score in first.items():
            scores.setdefault(f"{score.name} of {policy} in {report.flow}", []).append(score.value)
    return [Trend(name=name, values=tuple(values[-CELLS:]), text=number) for name, values in scores.items()]
