"""Pool cards of the overview: share of production, version lag of the nodes, and cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.reports.report import Report
from web.components import formats
from web.components.fleet_texts import pool_nodes

SHOWN_POOLS = 6
LAG_LABELS = ("current", "1 behind", "2 behind", "3 or more behind")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagBar:
    """Number of nodes with the same version lag."""

    label: str
    count: int
    height: float
    """Height in units; the tallest bar has 28."""
    level: str
    """CSS class: `current`, `behind` or `beyond` the staleness bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCard:
    """One pool."""

    id: str
    region: str
    share: float
    """Share of all episodes, from 0 to 1."""
    lags: Sequence[LagBar]
    lag_sentence: str
    """The bars as a sentence, for screen readers."""


def pool_cards(report: Report) -> list[PoolCard]:
    """Returns a card for each pool, most productive first."""
    total = sum(pool.episodes_per_s for pool in report.pools)
    bound = min((stream.max_staleness for stream in report.streams), default=0)
    cards = []
    for pool in sorted(report.pools, key=lambda pool: (-pool.episodes_per_s, pool.id)):
        nodes = pool_nodes(report, pool)
        counts = [0] * len(LAG_LABELS)
        for lag, count in nodes.lag_counts(report).items():
            counts[min(lag, len(counts) - 1)] += count
        cards.append(
            PoolCard(
                id=pool.id,
                region=", ".join(nodes.regions[:3]),
                share=pool.episodes_per_s / total if total else 0.0,
                lags=_bars(counts, bound),
                lag_sentence=_sentence(counts),
            )
        )
    return cards


def _bars(counts: Sequence[int], bound: int) -> list[LagBar]:
    most = max(1, *counts)
    return [
        LagBar(
            label=label,
            count=count,
            height=round(28 * count / most, 1),
            level="current" if lag == 0 else "behind" if lag <= bound else "beyond",
        )
        for lag, (label, count) in enumerate(zip(LAG_LABELS, counts, strict=True))
    ]


def _sentence(counts: Sequence[int]) -> str:
    parts = [
        f"{formats.several(count, 'node')} {label}" for label, count in zip(LAG_LABELS, counts, strict=True) if count
    ]
    return ", ".join(parts) or "No node serves a version yet"
