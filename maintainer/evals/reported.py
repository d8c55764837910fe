"""Nodes and trainers of a simulated run, as dataflow would report them."""

from astraflow.contract.causes import Cause
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.reports import NodeReport, NodeState, StreamReport
from astraflow.scaling.consumer import Consumer
from astraflow.scaling.simulator import POLICY

CAPACITY = 16
"""Episodes of a node at once."""


def node_report(
    name: str,
    pool: str,
    state: NodeState,
    *,
    episodes_per_s: float,
    joined_at: float,
    planted: str,
    cause: Cause | None = None,
) -> NodeReport:
    """One node. planted: what it logs; empty for nothing. cause: what makes it drain."""
    facts = NodeFacts(
        name=name,
        pool=PoolId(pool),
        region=pool,
        engine="simulated",
        is_simulated=True,
        hardware="simulated",
        capacity=CAPACITY,
        price_per_hour=0.0,
        software="",
    )
    return NodeReport(
        id=NodeId(f"{name}.1"),
        facts=facts,
        state=state,
        joined_at=joined_at,
        beat_age_s=0.0,
        leased=CAPACITY if state is NodeState.READY else 1,
        episodes_per_s=episodes_per_s,
        tokens_per_s=0.0,
        versions={},
        counters={},
        gauges={},
        lease_expiries=0,
        errors=(planted,) if planted else (),
        cause=cause,
    )


def stream_report(consumer: Consumer) -> StreamReport:
    """What the trainer consumes."""
    waits, computes = sum(consumer.waits_s), sum(consumer.compute_s)
    batch = consumer.config.batch_groups
    return StreamReport(
        policy=PolicyId(POLICY),
        version=Version(consumer.steps),
        batch_groups=batch,
        max_staleness=consumer.config.max_staleness,
        admitted=int(consumer.entered),
        buffered=int(consumer.buffered),
        in_batch=batch if consumer.is_computing else 0,
        trained=consumer.steps * batch,
        dropped={},
        issue_room=int(consumer.room()),
        produced_per_s=0.0,
        consumed_per_s=0.0,
        staleness={},
        steps=consumer.steps,
        redelivered=0,
        wait_s=consumer.waited_s,
        compute_s=computes,
        publish_s=0.0,
        wait_fraction=waits / (waits + computes) if waits + computes else 0.0,
        is_waiting=not consumer.is_computing,
        reward_mean=0.0,
        reward_produced=0.0,
        tokens_mean=0.0,
    )
