"""Builds the report: the state of a run, as data."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.ids import PoolId
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.plugins import PlannedPlugins, PluginSlot
from astraflow.contract.records import Record
from astraflow.contract.reports.report import (
    FlowReport,
    NodeReport,
    NodeState,
    PoolReport,
    Report,
    StreamGroups,
    StreamReport,
    TrainingReport,
)
from astraflow.contract.rollouts.agent_calls import MAX_REPORTED_SESSIONS, LiveSession, oldest_sessions
from astraflow.contract.weight_reports import WeightsReport
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.plugin_changes import plugin_kinds
from astraflow.dataflow.plugin_slot import SlotPlugins
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run
from astraflow.dataflow.serving.stream import Stream

EVENTS_SHOWN = 50


def build_report(
    run: Run,
    *,
    name: str,
    sequence: int,
    now: float,
    wall: float,
    uptime_s: float,
    service_problems: tuple[Record, ...] = (),
    recommendations: tuple[PoolRecommendation, ...] = (),
    learning_faults: tuple[Record, ...] = (),
) -> Report:
    """Returns all measurements at one time. `now` is monotonic, `wall` Unix seconds."""
    nodes = _with_oldest_sessions(tuple(_node_report(run, node, now=now) for node in run.registry.nodes()))
    return Report(
        run=name,
        sequence=sequence,
        at=wall,
        uptime_s=uptime_s,
        simulated=_simulated(run),
        flows=tuple(_flow_report(flow, terms=run.term_activity.means(flow.id, now=now)) for flow in run.flows.values()),
        streams=tuple(_stream_report(run, stream, now=now) for stream in run.streams.values()),
        pools=_pool_reports(nodes),
        nodes=nodes,
        events=run.events.latest(EVENTS_SHOWN),
        problems=(*run.problems(), *service_problems),
        learning_faults=learning_faults,
        evaluations=tuple(report for evaluation in run.evaluations.values() for report in evaluation.reports()),
        weights=tuple(
            WeightsReport(policy=policy, versions=tuple(stream.history.published))
            for policy, stream in run.streams.items()
        ),
        is_durable=run.journal.is_durable,
        held_bytes=run.held_bytes,
        memory_bytes=run.memory_bytes,
        recommendations=recommendations,
        completion=run.stop_condition.completion,
        plugin_kinds=plugin_kinds(),
    )


def _simulated(run: Run) -> tuple[str, ...]:
    engines = {f"engine {node.facts.engine}" for node in run.registry.nodes() if node.facts.is_simulated}
    trainers = {f"trainer {facts['backend']}" for facts in run.trainers.values() if facts["is_simulated"]}
    return tuple(sorted(engines | trainers))


def _flow_report(flow: Flow, *, terms: Mapping[str, float]) -> FlowReport:
    counts = flow.counts
    return FlowReport(
        id=flow.id,
        issued=flow.issued,
        open=len(flow.open_groups),
        admitted=counts.admitted,
        dropped=dict(counts.dropped),
        tasks_queued=flow.leases.queued,
        tasks_leased=flow.leases.held,
        episodes=dict(counts.episodes),
        leases_expired=counts.leases_expired,
        tasks_returned=counts.tasks_returned,
        is_paused=flow.is_paused,
        plugins=flow.metrics(),
        selector=flow.plugin_slots[PluginSlot.SELECTOR].specs[0],
        filters=flow.plugin_slots[PluginSlot.FILTERS].specs,
        planned=_planned(flow.plugin_slots.values()),
        partial_rollouts=flow.partial_rollouts.report(),
        endings=dict(counts.endings),
        reward_terms=terms,
        refused=dict(counts.refused),
    )


def _stream_report(run: Run, stream: Stream, *, now: float) -> StreamReport:
    activity, counts, totals = run.activity[stream.policy], stream.counts, stream.counts.totals
    has_rewards = any(flow.answers is None for flow in run.flows.values() if stream.policy in flow.policies)
    wall_s = sum(step["wall_s"] for step in stream.history.recent)
    staleness: Counter[int] = Counter()
    for step in stream.history.recent:
        staleness.update({int(age): rows for age, rows in step["staleness"].items()})
    produced = activity.rewards.mean(now=now)
    last = stream.history.last_step
    return StreamReport(
        policy=stream.policy,
        version=stream.version,
        batch_groups=stream.next_batch_groups,
        max_staleness=stream.max_staleness,
        groups=StreamGroups(
            admitted=counts.admitted,
            buffered=len(stream.buffer),
            in_batch=stream.in_batch,
            trained=counts.trained,
            dropped=dict(counts.dropped),
            replayed=counts.replayed,
            replayable=len(stream.replayable),
        ),
        training=TrainingReport(
            steps=counts.steps,
            redelivered=counts.redelivered,
            wait_s=totals.wait_s,
            compute_s=totals.compute_s,
            publish_s=totals.publish_s,
            wait_fraction=sum(step["wait_s"] for step in stream.history.recent) / wall_s if wall_s else 0.0,
            is_waiting=run.waiting_pulls[stream.policy] > 0,
            reward_mean=last.get("reward_mean", produced or 0.0),
            tokens_mean=last.get("tokens_mean", 0.0),
            metrics=dict(last),
            rewards=tuple(stream.history.rewards),
            losses=tuple(stream.history.losses) if not has_rewards else (),
            waiting_s=now - run.pulled_at.get(stream.policy, now) if run.waiting_pulls[stream.policy] > 0 else 0.0,
        ),
        issue_headroom=stream.issue_headroom(),
        pace=stream.pace(),
        batching=run.batching(stream.policy),
        produced_per_s=activity.produced.rate(now=now),
        consumed_per_s=activity.consumed.rate(now=now),
        staleness=dict(staleness),
        reward_produced=produced or 0.0,
        plugins=stream.metrics(),
        sampler=stream.slot_plugins.specs[0],
        planned=_planned(stream.plugin_slots.values()),
    )


def _planned(plugin_slots: Iterable[SlotPlugins[Any]]) -> tuple[PlannedPlugins, ...]:
    return tuple(slot_plugins.planned for slot_plugins in plugin_slots if slot_plugins.planned is not None)


def _node_report(run: Run, node: Node, *, now: float) -> NodeReport:
    episodes_per_s, tokens_per_s = node.rates()
    status = node.status
    return NodeReport(
        id=node.id,
        facts=node.facts,
        state=node.state,
        joined_at=node.joined_at,
        heartbeat_age_s=max(0.0, now - node.last_heartbeat_at),
        leased=sum(flow.leases.held_by(node.id) for flow in run.all_flows),
        episodes_per_s=episodes_per_s,
        tokens_per_s=tokens_per_s,
        versions=dict(node.versions),
        counters=dict(status.counters) if status else {},
        gauges=dict(status.gauges) if status else {},
        lease_expiries=node.lease_expiries,
        errors=status.errors if status else (),
        links=status.links if status else (),
        cause=node.cause,
        oldest_lease_s=max(flow.leases.oldest_s(node.id, now=now) for flow in run.all_flows),
        results=run.shares.results_of(node.id),
        is_on_probation=run.shares.is_on_probation(node.id),
        sessions=_sessions(status, silent_s=now - node.last_heartbeat_at) if status and node.is_live else (),
    )


def _sessions(status: NodeStatus, *, silent_s: float) -> tuple[LiveSession, ...]:
    """Returns the sessions of a heartbeat, the oldest first, with their ages as of now."""
    return oldest_sessions(
        (
            replace(session, age_s=session.age_s + silent_s, idle_s=session.idle_s + silent_s)
            for session in status.sessions
        ),
        MAX_REPORTED_SESSIONS,
    )


def _with_oldest_sessions(nodes: tuple[NodeReport, ...]) -> tuple[NodeReport, ...]:
    """Returns the nodes with the oldest sessions of the run, so that a report of many nodes stays small."""
    sessions = [session for node in nodes for session in node.sessions]
    if len(sessions) <= MAX_REPORTED_SESSIONS:
        return nodes
    reported = {id(session) for session in oldest_sessions(sessions, MAX_REPORTED_SESSIONS)}
    return tuple(
        replace(node, sessions=tuple(session for session in node.sessions if id(session) in reported))
        if node.sessions
        else node
        for node in nodes
    )


def _pool_reports(nodes: tuple[NodeReport, ...]) -> tuple[PoolReport, ...]:
    members: dict[PoolId, list[NodeReport]] = {}
    for node in nodes:
        members.setdefault(node.facts.pool, []).append(node)
    return tuple(_pool_report(pool, members[pool]) for pool in sorted(members))


def _pool_report(pool: PoolId, nodes: list[NodeReport]) -> PoolReport:
    states = Counter(node.state for node in nodes)
    return PoolReport(
        id=pool,
        ready=states[NodeState.READY],
        joining=states[NodeState.JOINING],
        draining=states[NodeState.DRAINING],
        lost=states[NodeState.LOST],
        episodes_per_s=sum(node.episodes_per_s for node in nodes),
        tokens_per_s=sum(node.tokens_per_s for node in nodes),
    )
