"""Insights: sentences that interpret the figures of a run, such as whether the trainer is fed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from astraflow.contract.fleet.recommendations import DEFAULT_WAIT_HIGH, Reason
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import NodeState, Report, StreamReport
from web.components import formats
from web.history.points import Point, PolicyPoint

STARVED_ABOVE = 0.25
"""Wait fraction above which rollouts clearly hold the trainer back."""


Row = tuple[float, Mapping[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """A headline, its explanation, and its tone: `good`, `warn`, `bad` or empty."""

    headline: str
    note: str = ""
    tone: str = ""


def fed_below(report: Report | None) -> float:
    """Returns the wait fraction up to which a trainer counts as fed: that of the sizer, if the report names it."""
    recommendations = report.recommendations if report is not None else ()
    return recommendations[0].inputs.get("wait_high", DEFAULT_WAIT_HIGH) if recommendations else DEFAULT_WAIT_HIGH


def verdict(report: Report, stream: StreamReport) -> Insight:
    """Returns whether this trainer is fed, or why nothing is produced."""
    return _without_production(report, stream) or _fed(report, stream)


def reward_note(policy: PolicyId, points: Sequence[Point]) -> str:
    """Returns the change of the mean reward over these points."""
    rewards, span_s = _rewards(policy, points)
    if not rewards:
        return "No rewards yet"
    change = rewards[-1] - rewards[0]
    if abs(change) < 0.005:
        return f"Steady for {formats.duration(span_s)}"
    return f"{'Up' if change > 0 else 'Down'} from {formats.reward(rewards[0])} in {formats.duration(span_s)}"


def wait_tone(wait: float | None, *, fed_below: float) -> str:
    """Returns the tone of a wait fraction. fed_below: that up to which a trainer counts as fed."""
    if wait is None:
        return ""
    return "good" if wait <= fed_below else "warn" if wait <= STARVED_ABOVE else "bad"


def wait_note(stream: StreamReport, wait: float | None, *, fed_below: float) -> str:
    """Returns the meaning of a wait fraction."""
    if wait is None:
        return "No step yet: waiting for the first batch" if stream.training.is_waiting else "No step yet"
    if wait <= fed_below:
        return "Fed: batches are ready on request"
    if wait <= STARVED_ABOVE:
        return "Nearly fed: it waits sometimes"
    if stream.issue_headroom <= 0:
        return "Starved: the staleness bound limits rollouts"
    return "Starved: rollouts are the bottleneck"


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
        gate = "gate closed"
    elif stream.pace is not None and stream.pace.is_reached:
        gate = "paced"
    else:
        gate = f"room for {formats.count(stream.issue_headroom)} more"
    return f"{batches_text} · {gate}"


def chart_insights(report: Report, stream: StreamReport, points: Sequence[Point]) -> dict[str, str]:
    """Returns a title for each chart of a policy over these points, by the chart's name."""
    policy, lags = stream.policy, points[-1].lags.get(stream.policy, {}) if points else {}
    window = [point.policies[policy] for point in points if policy in point.policies]
    return {
        "reward": reward_insight(*_rewards(policy, points)),
        "rates": _rates_insight(window),
        "wait": wait_insight([point.wait for point in window if point.wait is not None], fed_below=fed_below(report)),
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


def wait_insight(waits: Sequence[float], *, fed_below: float) -> str:
    """Returns the share of time in which the trainer was fed."""
    if not waits:
        return "No step yet"
    fed = sum(wait <= fed_below for wait in waits) / len(waits)
    if fed == 1:
        return "Fed the whole time"
    if fed == 0:
        return f"Waited {formats.percent(sum(waits) / len(waits))} of each step on average"
    return f"Fed {formats.percent(fed)} of the time"


def _without_production(report: Report, stream: StreamReport) -> Insight | None:
    states = [node.state for node in report.nodes]
    if NodeState.READY not in states and NodeState.DRAINING not in states:
        if NodeState.JOINING in states:
            joining = formats.several(states.count(NodeState.JOINING), "node")
            return Insight(headline="Nodes are starting", note=f"{joining} loading the first version", tone="warn")
        return Insight(
            headline="No node is producing rollouts",
            note="The trainer uses up the buffer, then waits until a node joins",
            tone="bad",
        )
    if report.flows and all(flow.is_paused for flow in report.flows):
        return Insight(headline="Issuing is paused", note="Nodes finish their tasks and get no new ones", tone="warn")
    if stream.training.steps == 0:
        ready = f"{formats.count(stream.groups.buffered)} of {formats.several(stream.batch_groups, 'group')}"
        return Insight(headline="Filling the first batch", note=f"{ready} ready")
    return None


def _fed(report: Report, stream: StreamReport) -> Insight:
    wait = stream.training.wait_fraction
    tone = wait_tone(wait, fed_below=fed_below(report))
    headline = {
        "good": "The trainer is fed",
        "warn": "The trainer is nearly fed",
        "bad": "The trainer waits for rollouts",
    }[tone]
    parts = [f"It waits {formats.percent(wait)} of each step"]
    gated_pool = next(
        (recommendation for recommendation in report.recommendations if Reason.GATED in recommendation.reasons), None
    )
    if gated_pool is not None and tone != "good":
        parts.append("slots are idle at the staleness gate, so more nodes would hardly help")
        if enough := gated_pool.inputs.get("staleness_needed"):
            parts.append(f"max_staleness {formats.count(int(enough))} would let nodes run ahead")
    elif stream.issue_headroom <= 0 and tone == "good":
        parts.append("nodes wait at the staleness gate, so more nodes would not help")
    elif tone == "bad" and stream.issue_headroom > 0:
        parts.append("more rollout capacity would shorten every step")
    elif tone == "bad":
        parts.append("nodes wait at the staleness gate; a higher max_staleness would let them run ahead")
    return Insight(headline=headline, note="; ".join(parts), tone=tone)


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


END_PARTS = 10
"""Number of parts of the range; a change compares the means of the first and the last part."""

STEADY_SHARE = 0.03
"""Relative change up to which a value counts as steady."""


def run_insights(rows: Sequence[Row], *, fed_below: float) -> dict[str, str]:
    """Returns titles of a recorded run's charts, by name. rows: oldest first."""
    rewards = _known(rows, "reward_average")
    span_s = rewards[-1][0] - rewards[0][0] if rewards else 0.0
    return {
        "reward": reward_insight([value for _, value in rewards], span_s),
        "wait": wait_insight([value for _, value in _known(rows, "wait")], fed_below=fed_below),
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
    """Returns how a value changed, from the first to the last tenth. values: oldest first; text: formats a value."""
    if not values:
        return f"{subject}: not reported"
    window_size = max(1, len(values) // END_PARTS)
    first, last = fmean(values[:window_size]), fmean(values[-window_size:])
    if abs(last - first) <= STEADY_SHARE * max(abs(first), abs(last)):
        return f"{subject} is steady at {text(last)}"
    return f"{subject} {'rose' if last > first else 'fell'} from {text(first)} to {text(last)}"


def _known(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(at, value) for at, values in rows if (value := values.get(name)) is not None]
