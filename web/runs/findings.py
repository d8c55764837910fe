"""Chart titles of one run: the change over the shown time range."""

from collections.abc import Callable, Sequence
from statistics import fmean

from web.charts.charts import Row
from web.charts.version_lag import NodeLagRow
from web.components import formats
from web.components.findings import reward_finding, wait_finding

END_PARTS = 10
"""Number of parts of the range; a change compares the means of the first and the last part."""

STEADY_SHARE = 0.03
"""Relative change up to which a value counts as steady."""


def run_findings(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the titles by chart name. rows: oldest first."""
    rewards = _known(rows, "reward_average")
    span_s = rewards[-1][0] - rewards[0][0] if rewards else 0.0
    return {
        "reward": reward_finding([value for _, value in rewards], span_s),
        "wait": wait_finding([value for _, value in _known(rows, "wait")]),
    }


def version_lag_finding(rows: Sequence[NodeLagRow], bound: int) -> str:
    """Returns whether the nodes kept up with the trainer."""
    lags = [max((interval.lag for interval in row.intervals), default=0) for row in rows]
    beyond = sum(lag > bound for lag in lags)
    if not lags:
        return "No nodes in this time range"
    if beyond:
        return f"{beyond} of {formats.several(len(lags), 'node')} fell behind the bound of {bound}"
    if max(lags):
        return f"No node was more than {formats.several(max(lags), 'version')} behind; the bound is {bound}"
    return "Every node served the newest version"


def change_finding(subject: str, values: Sequence[float], text: Callable[[float], str]) -> str:
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
