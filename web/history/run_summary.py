"""Summary of a recorded run for the list of runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlmodel import Session, select

from astraflow.contract.reports.report import StreamReport
from web.database.tables import RunRecord
from web.history import series_queries
from web.history.points import AVERAGED_STEPS, finite
from web.history.report_json import report_from_json
from web.history.samples import FLEET_SUBJECT

HOUR_S = 3600.0
COST_ROWS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """Latest figures of one policy."""

    policy: str
    """Its name."""
    steps: int
    """Training steps so far. Count."""
    version: int
    """Latest version of its weights."""
    reward: float | None
    """Mean reward of the last step; None before the first."""
    wait: float | None
    """Share of the time in which its trainer waited for rollouts; None before it was measured."""
    metrics: Mapping[str, float]
    """Metrics of the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a record's last report."""

    policies: tuple[PolicyFigures, ...]
    simulated: bool
    dollars: float | None
    """Cost of its nodes over the recorded time; None while no price is known."""


EMPTY_SUMMARY = RunSummary(policies=(), simulated=False, dollars=None)


def summary(session: Session, record: RunRecord) -> RunSummary:
    """Returns the summary of a record; its report is read from the database."""
    text = session.execute(select(RunRecord.report_json).where(RunRecord.id == record.id)).scalar_one_or_none()
    report = report_from_json(text or "")
    return RunSummary(
        policies=tuple(policy_figures(stream) for stream in report.streams),
        simulated=bool(report.simulated),
        dollars=_dollars(session, record),
    )


def policy_figures(stream: StreamReport) -> PolicyFigures:
    """Returns the latest figures of a policy; the reward is the mean of the last steps, as the charts show it."""
    latest = [reward for reward in stream.training.rewards if finite(reward) is not None][-AVERAGED_STEPS:]
    return PolicyFigures(
        policy=stream.policy,
        steps=stream.training.steps,
        version=int(stream.version),
        reward=sum(latest) / len(latest) if latest else None,
        wait=finite(stream.training.wait_fraction) if stream.training.steps else None,
        metrics={name: value for name, value in stream.training.metrics.items() if finite(value) is not None},
    )


def _dollars(session: Session, record: RunRecord) -> float | None:
    """Returns the mean US dollars per hour multiplied by the recorded time."""
    rows = series_queries.rows(session, record.id or 0, FLEET_SUBJECT, ("dollars",), at_most=COST_ROWS)
    dollars_at = [(at, numbers["dollars"]) for at, numbers in rows]
    prices = [price for _, price in dollars_at if price is not None]
    if not prices:
        return None
    return sum(prices) / len(dollars_at) * (record.last_at - record.started_at) / HOUR_S
