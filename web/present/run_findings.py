"""Titles of the charts of one run: what they show over the stretch of time that is looked at."""

from collections.abc import Callable, Sequence
from statistics import fmean

from web.present import formats
from web.present.charts import Row
from web.present.findings import reward_sentence, wait_sentence
from web.present.ladder import Rung

ENDS = 10
"""What changed is told from the means of the first and of the last tenth."""

STEADY = 0.03
"""A change by a smaller share is none."""


def run_findings(rows: Sequence[Row]) -> dict[str, str]:
    """By the chart's name. rows: oldest first."""
    rewards = _known(rows, "reward_average")
    span_s = rewards[-1][0] - rewards[0][0] if rewards else 0.0
    return {
        "reward": reward_sentence([value for _, value in rewards], span_s),
        "wait": wait_sentence([value for _, value in _known(rows, "wait")]),
        "loss": _change("Loss", rows, "loss", formats.figure, nothing="No loss was told"),
        "length": _change("Length of answers", rows, "length", _tokens, nothing="No length was told"),
        "kl": _highest(rows),
    }


def ladder_finding(rungs: Sequence[Rung], bound: int) -> str:
    """Whether nodes kept up with the trainer."""
    lags = [max((stretch.lag for stretch in rung.stretches), default=0) for rung in rungs]
    beyond = sum(lag > bound for lag in lags)
    if not lags:
        return "No node was recorded in this time"
    if beyond:
        return f"{beyond} of {formats.several(len(lags), 'node')} fell behind the bound of {bound}"
    if max(lags):
        return f"No node was more than {formats.several(max(lags), 'version')} behind; the bound is {bound}"
    return "Every node served the newest version"


def _change(what: str, rows: Sequence[Row], name: str, text: Callable[[float], str], *, nothing: str) -> str:
    values = [value for _, value in _known(rows, name)]
    if not values:
        return nothing
    few = max(1, len(values) // ENDS)
    first, last = fmean(values[:few]), fmean(values[-few:])
    if abs(last - first) <= STEADY * max(abs(first), abs(last)):
        return f"{what} is steady at {text(last)}"
    return f"{what} {'rose' if last > first else 'fell'} from {text(first)} to {text(last)}"


def _highest(rows: Sequence[Row]) -> str:
    values = [value for _, value in _known(rows, "kl")]
    if not values:
        return "No divergence was told"
    return f"KL was {formats.figure(max(values))} at most, and is {formats.figure(values[-1])}"


def _tokens(value: float) -> str:
    return f"{value:.0f} tokens"


def _known(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(at, value) for at, values in rows if (value := values.get(name)) is not None]
