"""Preview of a drain: its effect on nodes, pools and production. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.contract.fleet.pools import Pool
from astraflow.contract.reports.report import NodeState
from web.components import formats
from web.state.node_table import NodeRow

SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEffect:
    """Effect on one pool."""

    pool: str
    drained: int
    ready: int
    """Nodes of the pool that are ready now."""
    remaining: int
    rate_lost: str
    """Share of the pool's episodes per second that is lost, in per cent."""
    note: str
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainEffect:
    """Effect on all pools."""

    ids: Sequence[str]
    names: Sequence[str]
    more: int
    sentence: str
    pools: Sequence[PoolEffect]


def drain_effect(chosen: Sequence[NodeRow], all_nodes: Sequence[NodeRow], fleet: Sequence[Pool]) -> DrainEffect:
    """Returns the effect. chosen: nodes to drain. fleet: managed pools, which replace drained nodes."""
    drained = [row for row in chosen if row.node.state in (NodeState.READY, NodeState.JOINING)]
    leased = sum(row.node.leased for row in drained)
    rate = sum(row.node.episodes_per_s for row in drained)
    total = sum(row.node.episodes_per_s for row in all_nodes)
    skipped = len(chosen) - len(drained)
    skipped_text = (
        f" {formats.several(skipped, 'other')} of the selection cannot be drained: draining, lost or gone."
        if skipped
        else ""
    )
    share = f", {formats.percent(rate / total)} of all" if total > 0 else ""
    sentence = (
        f"{formats.several(len(drained), 'node')} {'finishes' if len(drained) == 1 else 'finish'} the "
        f"{formats.several(leased, 'episode')} in progress, {'takes' if len(drained) == 1 else 'take'} no new tasks, "
        f"then {'leaves' if len(drained) == 1 else 'leave'}. No work is lost. Production falls by up to "
        f"{formats.rate(rate)} episodes/s{share}.{skipped_text}"
    )
    managed_pools = {pool.spec.id: pool for pool in fleet}
    return DrainEffect(
        ids=[row.node.id for row in drained],
        names=[row.name for row in drained[:SHOWN_NAMES]],
        more=max(0, len(drained) - SHOWN_NAMES),
        sentence=sentence,
        pools=[
            _pool_effect(name, drained, all_nodes, managed_pools.get(name))
            for name in sorted({row.node.facts.pool for row in drained})
        ],
    )


def _pool_effect(
    name: str, drained_nodes: Sequence[NodeRow], all_nodes: Sequence[NodeRow], managed_pool: Pool | None
) -> PoolEffect:
    ready_nodes = [row for row in all_nodes if row.node.facts.pool == name and row.node.state is NodeState.READY]
    drained = [row for row in drained_nodes if row.node.facts.pool == name]
    remaining = len(ready_nodes) - sum(row.node.state is NodeState.READY for row in drained)
    rate = sum(row.node.episodes_per_s for row in ready_nodes)
    lost = sum(row.node.episodes_per_s for row in drained)
    if managed_pool is not None:
        note, tone = (
            f"the fleet service replaces them: the target stays {managed_pool.target}; to scale down, plan a size",
            "",
        )
    elif remaining <= 0:
        note, tone = "no node remains in this pool", "bad"
    else:
        note, tone = "they are not replaced", ""
    return PoolEffect(
        pool=name,
        drained=len(drained),
        ready=len(ready_nodes),
        remaining=max(0, remaining),
        rate_lost=formats.percent(lost / rate) if rate > 0 else formats.MISSING,
        note=note,
        tone=tone,
    )
