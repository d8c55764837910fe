"""What draining some nodes would do, said before it is done. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.fleet import Pool
from astraflow.contract.reports import NodeState
from web.feed.node_table import NodeRow
from web.present import formats

SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEffect:
    """On one pool."""

    pool: str
    drained: int
    ready: int
    """That are ready now."""
    left: int
    rate_lost: str
    """Of the pool's episodes per second."""
    note: str
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainEffect:
    """On all of them."""

    ids: Sequence[str]
    names: Sequence[str]
    more: int
    sentence: str
    pools: Sequence[PoolEffect]


def drain_effect(chosen: Sequence[NodeRow], everyone: Sequence[NodeRow], fleet: Sequence[Pool]) -> DrainEffect:
    """chosen: those to drain. fleet: the pools that the fleet service keeps at their size; they replace what goes."""
    going = [row for row in chosen if row.node.state in (NodeState.READY, NodeState.JOINING)]
    leased = sum(row.node.leased for row in going)
    rate = sum(row.node.episodes_per_s for row in going)
    total = sum(row.node.episodes_per_s for row in everyone)
    passed = len(chosen) - len(going)
    beside = (
        f" {formats.several(passed, 'other')} of those chosen can not be drained: gone, lost or draining already."
        if passed
        else ""
    )
    share = f", {formats.percent(rate / total)} of all" if total > 0 else ""
    sentence = (
        f"{formats.several(len(going), 'node')} {'finishes' if len(going) == 1 else 'finish'} the "
        f"{formats.several(leased, 'episode')} under way, {'takes' if len(going) == 1 else 'take'} no more, then "
        f"{'leaves' if len(going) == 1 else 'leave'}. Nothing is lost. Production falls by up to "
        f"{formats.rate(rate)} episodes/s{share}.{beside}"
    )
    kept = {pool.spec.id: pool for pool in fleet}
    return DrainEffect(
        ids=[row.node.id for row in going],
        names=[row.name for row in going[:SHOWN_NAMES]],
        more=max(0, len(going) - SHOWN_NAMES),
        sentence=sentence,
        pools=[
            _on_pool(name, going, everyone, kept.get(name)) for name in sorted({row.node.facts.pool for row in going})
        ],
    )


def _on_pool(name: str, going: Sequence[NodeRow], everyone: Sequence[NodeRow], kept: Pool | None) -> PoolEffect:
    of_pool = [row for row in everyone if row.node.facts.pool == name and row.node.state is NodeState.READY]
    drained = [row for row in going if row.node.facts.pool == name]
    left = len(of_pool) - sum(row.node.state is NodeState.READY for row in drained)
    rate = sum(row.node.episodes_per_s for row in of_pool)
    lost = sum(row.node.episodes_per_s for row in drained)
    if kept is not None:
        note, tone = f"the fleet service replaces them: its target stays {kept.target}. To have fewer, plan a size", ""
    elif left <= 0:
        note, tone = "nobody is left in this pool", "bad"
    else:
        note, tone = "nobody replaces them", ""
    return PoolEffect(
        pool=name,
        drained=len(drained),
        ready=len(of_pool),
        left=max(0, left),
        rate_lost=formats.percent(lost / rate) if rate > 0 else formats.MISSING,
        note=note,
        tone=tone,
    )
