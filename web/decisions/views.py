"""Decisions page: a line for each decision, and one decision with the figures it was based on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from astraflow.contract.fleet.plans import Verdict
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.records import render
from web.components import formats
from web.components.calculation import Calculation, calculation, has_all
from web.components.downloads import Sheet
from web.components.formats import usd
from web.decisions.queries import RULE, DecisionEntry
from web.state.annotations import capitalized

COLUMNS = ("id", "time", "unix_s", "source", "kind", "pool", "actor", "role", "message", "reason", "key", "guard")

VERDICT_TONES = {Verdict.ALLOWED: "good", Verdict.NEEDS_APPROVAL: "warn", Verdict.REFUSED: "bad"}

VERDICT_TEXTS = {
    Verdict.ALLOWED: "allowed by the guard",
    Verdict.NEEDS_APPROVAL: "needs approval",
    Verdict.REFUSED: "refused by the guard",
}


SAME_TICK_S = 10.0
"""Length of one tick of the sizing rule with its follow-up events, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another size of the pool, evaluated with the same figures."""

    nodes: int
    ratio: str
    usd_per_hour: str
    verdict: str
    tone: str
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """One decision with its inputs."""

    row: DecisionEntry
    sentence: str
    recommendation_note: str
    """States whether the figures come from the tick of the decision."""
    calculation: Calculation | None
    alternatives: tuple[Alternative, ...]
    victims: tuple[str, ...]
    problem: str


def decision_groups(entries: Sequence[DecisionEntry]) -> tuple[tuple[DecisionEntry, ...], ...]:
    """Groups neighbouring decisions of one tick that share a cause, so that the cause is shown once."""
    groups: list[list[DecisionEntry]] = []
    for entry in entries:
        first = groups[-1][0] if groups else None
        if first is not None and entry.why and entry.why == first.why and abs(first.at - entry.at) <= SAME_TICK_S:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return tuple(map(tuple, groups))


def decision_sheet(entries: Sequence[DecisionEntry]) -> Sheet:
    """Returns the table as a sheet for download."""
    rows = [
        (
            entry.id,
            datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="milliseconds"),
            round(entry.at, 3),
            entry.source,
            entry.kind.value,
            entry.pool,
            entry.actor,
            entry.role,
            entry.message,
            entry.reason,
            entry.key,
            " ".join(finding.code.value for finding in entry.findings),
        )
        for entry in entries
    ]
    return Sheet(name="astraflow-decisions", columns=COLUMNS, rows=rows)


def decision_view(
    entry: DecisionEntry, recommendation: PoolRecommendation | None, *, problem: str = ""
) -> DecisionView:
    """Builds the view of a decision; figures are empty without a recommendation."""
    return DecisionView(
        row=entry,
        sentence=_recommendation_text(entry, recommendation),
        recommendation_note=_recommendation_note(entry, recommendation),
        calculation=calculation(recommendation) if recommendation else None,
        alternatives=tuple(_alternatives(recommendation)) if recommendation else (),
        victims=tuple(map(str, recommendation.victims)) if recommendation else (),
        problem=problem,
    )


def _recommendation_text(entry: DecisionEntry, recommendation: PoolRecommendation | None) -> str:
    if recommendation is None or _is_own(entry, recommendation):
        return ""
    return capitalized(render(recommendation.change))


def _recommendation_note(entry: DecisionEntry, recommendation: PoolRecommendation | None) -> str:
    if recommendation is None:
        return ""
    if _is_own(entry, recommendation):
        return "Figures from the tick of the decision."
    apart = formats.duration(max(1.0, abs(recommendation.at - entry.at)))
    return f"Recommendation from {apart} {'before' if recommendation.at < entry.at else 'after'}."


def _is_own(entry: DecisionEntry, recommendation: PoolRecommendation) -> bool:
    """Returns whether an entry of the rule was recorded at the tick of the recommendation."""
    return entry.source == RULE and abs(entry.at - recommendation.at) <= SAME_TICK_S


def _alternatives(recommendation: PoolRecommendation) -> list[Alternative]:
    """Returns sizes around the target with the ratio, the cost and the verdict of each."""
    needed = ("ratio", "demand_groups_per_s", "node_groups_per_s", "band_low", "band_high")
    if not has_all(recommendation.inputs, *needed) or not recommendation.inputs["demand_groups_per_s"]:
        return []
    step = recommendation.inputs["node_groups_per_s"] / recommendation.inputs["demand_groups_per_s"]
    sizes = sorted({recommendation.present, *(recommendation.target + more for more in (-2, -1, 0, 1, 2))})
    price = recommendation.inputs.get("price_per_hour", 0.0)
    return [
        _alternative(
            recommendation, nodes, recommendation.inputs["ratio"] + (nodes - recommendation.present) * step, price
        )
        for nodes in sizes
        if nodes >= 0
    ]


def _alternative(recommendation: PoolRecommendation, nodes: int, ratio: float, price: float) -> Alternative:
    low, high = recommendation.inputs["band_low"], recommendation.inputs["band_high"]
    if ratio < low:
        verdict, tone = f"too few: {formats.percent(1 - ratio)} of the demand is not met", "bad"
    elif ratio > high:
        verdict, tone = f"above the band by {formats.percent(ratio - high)}", "warn"
    else:
        verdict, tone = "in the band", "good"
    return Alternative(
        nodes=nodes,
        ratio=f"{max(0.0, ratio):.2f}",
        usd_per_hour=usd(nodes * price) if price else formats.MISSING,
        verdict=verdict,
        tone=tone,
        is_chosen=nodes == recommendation.target,
    )
