"""Reports of simulated nodes and trainers, as dataflow would write them."""

from astraflow.contract.fleet.instances import Cause
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.nodes import NodeFacts
from astraflow.contract.reports.report import NodeReport, NodeState, StreamGroups, StreamReport, TrainingReport
from astraflow.scaling.simulation.simulator import POLICY
from astraflow.scaling.simulation.trainer import SimulatedTrainer

CAPACITY = 16
"""Concurrent episodes of a node."""


def node_report(
    name: str,
    pool: str,
    state: NodeState,
    *,
    episodes_per_s: float,
    joined_at: float,
    injected_text: str,
    cause: Cause | None = None,
) -> NodeReport:
    """Report of one node. injected_text: its error log; empty for none. cause: cause of its drain."""
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
        heartbeat_age_s=0.0,
        leased=CAPACITY if state is NodeState.READY else 1,
        episodes_per_s=episodes_per_s,
        tokens_per_s=0.0,
        versions={},
        counters={},
        gauges={},
        lease_expiries=0,
        errors=(injected_text,) if injected_text else (),
        cause=cause,
    )


def stream_report(consumer: SimulatedTrainer, *, learning_rate: float) -> StreamReport:
    """Report of the trainer's stream."""
    waits, computes = sum(consumer.waits_s), sum(consumer.compute_s)
    batch = consumer.config.batch_groups
    return StreamReport(
        policy=PolicyId(POLICY),
        version=Version(consumer.steps),
        batch_groups=batch,
        max_staleness=consumer.config.max_staleness,
        groups=StreamGroups(
            admitted=int(consumer.entered),
            buffered=int(consumer.buffered),
            in_batch=batch if consumer.is_computing else 0,
            trained=consumer.steps * batch,
            dropped={},
        ),
        training=TrainingReport(
            steps=consumer.steps,
            redelivered=0,
            wait_s=consumer.waited_s,
            compute_s=computes,
            publish_s=0.0,
            wait_fraction=waits / (waits + computes) if waits + computes else 0.0,
            is_waiting=not consumer.is_computing,
            reward_mean=0.0,
            tokens_mean=0.0,
            metrics={"learning_rate": learning_rate},
        ),
        issue_headroom=int(consumer.free_groups()),
        produced_per_s=0.0,
        consumed_per_s=0.0,
        staleness={},
        reward_produced=0.0,
    )
