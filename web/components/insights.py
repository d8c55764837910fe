"""Insights: titles and notes that state what the figures of a run did. The diagnosis alone judges them."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import StreamReport
from web.components import formats
from web.history.points import Point, PolicyPoint

Row = tuple[float, Mapping[str, float | None]]


def reward_note(policy: PolicyId, points: Sequence[Point]) -> str:
    """Returns the change of the mean reward over these points."""
    rewards, span_s = _rewards(policy, points)
    if not rewards:
        return "No rewards yet"
    change = rewards[-1] - rewards[0]
    if abs(change) < 0.005:
        return f"Steady for {formats.duration(span_s)}"
    return f"{'Up' if change > 0 else 'Down'} from {formats.reward(rewards[0])} in {formats.duration(span_s)}"


def rates_note(stream: StreamReport) -> str:
    """Returns the comparison of production with consumption."""
    if stream.consumed_per_s <= 0:
        return "The trainer has consumed nothing in the last 10 s"
    ratio = stream.produced_per_s / stream.consumed_per_s
    if 0.95 <= ratio <= 1.05:
        return "In balance with what the trainer consumes"
    word = "more" if ratio > 1 else "less"
    return f"{formats.percent(abs(ratio - 1))} {word} than the trainer consumes"


def buffer_note(stream: StreamReport) -> str:
    """Returns the number of buffered batches, and whether the staleness gate is open."""
    batches = stream.groups.buffered / max(1, stream.batch_groups)
    batches_text = f"{batches:.1f} batches ready" if batches >= 1 else f"{formats.percent(batches)} of a batch"
    if stream.issue_headroom <= 0:
        gate = "no more may be issued"
    elif stream.pace is not None and stream.pace.is_reached:
        gate = "issued as needed"
    else:
        gate = f"room for {formats.count(stream.issue_headroom)} more"
    return f"{batches_text} · {gate}"


def chart_insights(stream: StreamReport, points: Sequence[Point]) -> dict[str, str]:
    """Returns a title for each chart of a policy over these points, by the chart's name."""
    policy, lags = stream.policy, points[-1].lags.get(stream.policy, {}) if points else {}
    window = [point.policies[policy] for point in points if policy in point.policies]
    return {
        "reward": reward_insight(*_rewards(policy, points)),
        "rates": _rates_insight(window),
        "wait": wait_insight([point.wait for point in window if point.wait is not None]),
        "buffer": _buffer_insight(window, stream),
        "versions": version_lag_insight(list(lags.values()), stream.max_staleness),
    }


def reward_insight(rewards: Sequence[float], span_s: float) -> str:
    """Returns the change of the mean reward over `span_s` seconds."""
    if not rewards:
        return "No reward yet"
    first, last = rewards[0], rewards[-1]
    if abs(last - first) < 0.02:
        return f"Reward is steady at {formats.reward(last)}"
    verb = "rose" if last > first else "fell"
    return f"Reward {verb} from {formats.reward(first)} to {formats.reward(last)} in {formats.duration(span_s)}"


def wait_insight(waits: Sequence[float]) -> str:
    """Returns the mean and the largest share of a step that the trainer waited."""
    if not waits:
        return "No step yet"
    mean, most = (formats.percent(value) for value in (fmean(waits), max(waits)))
    return f"The trainer waited {mean} of each step on average" + (f", {most} at most" if most != mean else "")


def _rewards(policy: PolicyId, points: Sequence[Point]) -> tuple[list[float], float]:
    """Returns the known mean rewards, and the seconds between the first and the last."""
    reward_points = [(point.at, point.policies[policy].reward_average) for point in points if policy in point.policies]
    rewards = [(at, value) for at, value in reward_points if value is not None]
    return [value for _, value in rewards], rewards[-1][0] - rewards[0][0] if rewards else 0.0


def _rates_insight(window: Sequence[PolicyPoint]) -> str:
    if not window:
        return "Nothing produced yet"
    consumed = sum(point.consumed for point in window)
    if not consumed:
        return "Nothing consumed yet"
    ratio = sum(point.produced for point in window) / consumed
    if 0.99 <= ratio <= 1.01:
        return "Production equals consumption"
    return f"Production is {formats.percent(abs(ratio - 1))} {'above' if ratio > 1 else 'below'} consumption"


def _buffer_insight(window: Sequence[PolicyPoint], stream: StreamReport) -> str:
    if not window or not stream.batch_groups:
        return "Nothing buffered yet"
    ready = sum(point.buffered >= stream.batch_groups for point in window) / len(window)
    return f"A full batch was ready {formats.percent(ready)} of the time"


STEADY_SHARE = 0.03
"""Relative change up to which a value counts as steady."""


def run_insights(rows: Sequence[Row]) -> dict[str, str]:
    """Returns titles of a recorded run's charts, by name. rows: oldest first."""
    rewards = _known(rows, "reward_average")
    span_s = rewards[-1][0] - rewards[0][0] if rewards else 0.0
    return {
        "reward": reward_insight([value for _, value in rewards], span_s),
        "wait": wait_insight([value for _, value in _known(rows, "wait")]),
    }


def version_lag_insight(lags: Sequence[int], bound: int) -> str:
    """Returns whether nodes keep up with the trainer. lags: largest lag of each node. bound: allowed staleness."""
    beyond = sum(lag > bound for lag in lags)
    if not lags:
        return "No node serves this policy"
    if beyond:
        return f"{beyond} of {formats.several(len(lags), 'node')} beyond the staleness bound of {bound}"
    if max(lags):
        return f"No node is more than {formats.several(max(lags), 'version')} behind; the bound is {bound}"
    return "Every node serves the newest version"


def change_insight(subject: str, values: Sequence[float], text: Callable[[float], str]) -> str:
    """Returns how a value changed between the ends of its line. values: oldest first; text: formats a value."""
    if not values:
        return f"{subject}: not reported"
    first, last = values[0], values[-1]
    if abs(last - first) <= STEADY_SHARE * max(abs(first), abs(last)):
        return f"{subject} is steady at {text(last)}"
    return f"{subject} {'rose' if last > first else 'fell'} from {text(first)} to {text(last)}"


def _known(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(at, value) for at, values in rows if (value := values.get(name)) is not None]
