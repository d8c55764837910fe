"""Codec of the control plane's contract types."""

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, PoolId, Version
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginSlot
from astraflow.contract.reports import (
    Completion,
    Event,
    FlowReport,
    NodeReport,
    Pace,
    PoolReport,
    Report,
    StreamReport,
)
from astraflow.contract.weight_reports import VersionReport, WeightsReport
from astraflow.wire.codec_common import decode_json, encode_json, matching_fields, sorted_map
from astraflow.wire.codec_evaluations import decode_evaluation, encode_evaluation
from astraflow.wire.codec_nodes import NodeReader, encode_node
from astraflow.wire.codec_recommendations import decode_recommendation, encode_recommendation
from astraflow.wire.pb import control_plane_pb2 as pb

_EVENT_FIELDS = ("ordinal", "at", "kind", "subject", "message", "repeats")
_COMPLETION_FIELDS = ("reason", "has_learned", "at", "ends_run")
_POOL_FIELDS = ("ready", "joining", "draining", "lost", "episodes_per_s", "tokens_per_s")
_VERSION_FIELDS = (
    "published_at",
    "full_bytes",
    "sent_bytes",
    "changed_elements",
    "elements",
    "copy_s",
    "hash_s",
    "encode_s",
    "send_s",
)
_FLOW_FIELDS = (
    "issued",
    "open",
    "admitted",
    "tasks_queued",
    "tasks_leased",
    "leases_expired",
    "tasks_returned",
    "is_paused",
)
_STREAM_FIELDS = (
    "batch_groups",
    "max_staleness",
    "admitted",
    "buffered",
    "in_batch",
    "trained",
    "issue_headroom",
    "produced_per_s",
    "consumed_per_s",
    "steps",
    "redelivered",
    "wait_s",
    "compute_s",
    "publish_s",
    "wait_fraction",
    "is_waiting",
    "reward_mean",
    "reward_produced",
    "tokens_mean",
    "replayed",
    "replayable",
)
_PACE_FIELDS = ("limit", "outstanding", "group_s", "step_s")


def encode_report(report: Report) -> pb.Report:
    """Report -> message."""
    return pb.Report(
        run=report.run,
        sequence=report.sequence,
        at=report.at,
        uptime_s=report.uptime_s,
        simulated=report.simulated,
        flows=[_encode_flow(flow) for flow in report.flows],
        streams=[_encode_stream(stream) for stream in report.streams],
        pools=[pb.PoolReport(id=pool.id, **matching_fields(pool, _POOL_FIELDS)) for pool in report.pools],
        nodes=[encode_node(node) for node in report.nodes],
        events=[encode_event(event) for event in report.events],
        problems=report.problems,
        evaluations=[encode_evaluation(evaluation) for evaluation in report.evaluations],
        weights=[_encode_weights(weights) for weights in report.weights],
        is_durable=report.is_durable,
        held_bytes=report.held_bytes,
        memory_bytes=report.memory_bytes,
        recommendations=[encode_recommendation(recommendation) for recommendation in report.recommendations],
        completion=pb.Completion(**matching_fields(report.completion, _COMPLETION_FIELDS))
        if report.completion
        else None,
    )


def decode_report(message: pb.Report, *, nodes: tuple[NodeReport, ...] | None = None) -> Report:
    """Message -> report. nodes: used instead of the message's nodes."""
    return Report(
        run=message.run,
        sequence=message.sequence,
        at=message.at,
        uptime_s=message.uptime_s,
        simulated=tuple(message.simulated),
        flows=tuple(_decode_flow(flow) for flow in message.flows),
        streams=tuple(_decode_stream(stream) for stream in message.streams),
        pools=tuple(PoolReport(id=PoolId(pool.id), **matching_fields(pool, _POOL_FIELDS)) for pool in message.pools),
        nodes=tuple(NodeReader().read(message.nodes)) if nodes is None else nodes,
        events=tuple(decode_event(event) for event in message.events),
        problems=tuple(message.problems),
        evaluations=tuple(decode_evaluation(evaluation) for evaluation in message.evaluations),
        weights=tuple(_decode_weights(weights) for weights in message.weights),
        is_durable=message.is_durable,
        held_bytes=message.held_bytes,
        memory_bytes=message.memory_bytes,
        recommendations=tuple(decode_recommendation(recommendation) for recommendation in message.recommendations),
        completion=_decode_completion(message),
    )


def _decode_completion(message: pb.Report) -> Completion | None:
    return (
        Completion(**matching_fields(message.completion, _COMPLETION_FIELDS))
        if message.HasField("completion")
        else None
    )


def encode_event(event: Event) -> pb.Event:
    """Event -> message."""
    return pb.Event(**matching_fields(event, _EVENT_FIELDS))


def decode_event(message: pb.Event) -> Event:
    """Message -> event."""
    return Event(**matching_fields(message, _EVENT_FIELDS))


def encode_change(change: PluginChange) -> pb.ChangePluginsRequest:
    """Plugin change -> message."""
    return pb.ChangePluginsRequest(
        flow=change.flow,
        policy=change.policy,
        selector=None if change.selector is None else encode_json(change.selector),
        filters=None if change.filters is None else pb.FilterSpecs(specs=map(encode_json, change.filters)),
        sampler=None if change.sampler is None else encode_json(change.sampler),
        actor=change.actor,
        reason=change.reason,
    )


def decode_change(message: pb.ChangePluginsRequest) -> PluginChange:
    """Message -> plugin change. Raises: InvalidInput."""
    filters = [decode_json(spec, what="the filter") for spec in message.filters.specs]
    return PluginChange(
        flow=FlowId(message.flow) if message.HasField("flow") else None,
        policy=PolicyId(message.policy) if message.HasField("policy") else None,
        selector=decode_json(message.selector, what="the selector") if message.HasField("selector") else None,
        filters=tuple(filters) if message.HasField("filters") else None,
        sampler=decode_json(message.sampler, what="the sampler") if message.HasField("sampler") else None,
        actor=message.actor,
        reason=message.reason,
    )


def encode_planned(planned: PlannedPlugins) -> pb.PlannedPlugins:
    """Planned plugins -> message."""
    return pb.PlannedPlugins(
        slot=planned.slot.value,
        specs=map(encode_json, planned.specs),
        actor=planned.actor,
        reason=planned.reason,
        version=planned.version,
    )


def decode_planned(message: pb.PlannedPlugins) -> PlannedPlugins:
    """Message -> planned plugins. Raises: InvalidInput."""
    try:
        slot = PluginSlot(message.slot)
    except ValueError:
        slot_names = ", ".join(slot.value for slot in PluginSlot)
        raise InvalidInput(
            f"cannot decode planned plugins: unknown slot {message.slot!r}; use one of {slot_names}",
            code="message.unknown_value",
        ) from None
    return PlannedPlugins(
        slot=slot,
        specs=tuple(decode_json(spec, what=f"the planned {slot.value}") for spec in message.specs),
        actor=message.actor,
        reason=message.reason,
        version=Version(message.version),
    )


def _encode_weights(weights: WeightsReport) -> pb.WeightsReport:
    versions = [
        pb.VersionReport(version=version.version, **matching_fields(version, _VERSION_FIELDS))
        for version in weights.versions
    ]
    return pb.WeightsReport(policy=weights.policy, versions=versions)


def _decode_weights(message: pb.WeightsReport) -> WeightsReport:
    versions = (
        VersionReport(version=Version(version.version), **matching_fields(version, _VERSION_FIELDS))
        for version in message.versions
    )
    return WeightsReport(policy=PolicyId(message.policy), versions=tuple(versions))


def _encode_flow(flow: FlowReport) -> pb.FlowReport:
    return pb.FlowReport(
        id=flow.id,
        dropped=dict(flow.dropped),
        episodes=dict(flow.episodes),
        plugins=dict(flow.plugins),
        selector=encode_json(flow.selector),
        filters=map(encode_json, flow.filters),
        planned=map(encode_planned, flow.planned),
        partial_rollouts=dict(flow.partial_rollouts),
        endings=dict(flow.endings),
        reward_terms=dict(flow.reward_terms),
        **matching_fields(flow, _FLOW_FIELDS),
    )


def _decode_flow(message: pb.FlowReport) -> FlowReport:
    return FlowReport(
        id=FlowId(message.id),
        dropped=sorted_map(message.dropped),
        episodes=sorted_map(message.episodes),
        plugins=sorted_map(message.plugins),
        selector=decode_json(message.selector, what=f"the selector of {message.id}"),
        filters=tuple(decode_json(spec, what=f"the filter of {message.id}") for spec in message.filters),
        planned=tuple(decode_planned(planned) for planned in message.planned),
        partial_rollouts=sorted_map(message.partial_rollouts),
        endings=sorted_map(message.endings),
        reward_terms=sorted_map(message.reward_terms),
        **matching_fields(message, _FLOW_FIELDS),
    )


def _encode_stream(stream: StreamReport) -> pb.StreamReport:
    return pb.StreamReport(
        policy=stream.policy,
        version=stream.version,
        dropped=dict(stream.dropped),
        staleness=dict(stream.staleness),
        metrics=dict(stream.metrics),
        plugins=dict(stream.plugins),
        sampler=encode_json(stream.sampler),
        planned=map(encode_planned, stream.planned),
        rewards=stream.rewards,
        pace=pb.Pace(**matching_fields(stream.pace, _PACE_FIELDS)) if stream.pace else None,
        **matching_fields(stream, _STREAM_FIELDS),
    )


def _decode_stream(message: pb.StreamReport) -> StreamReport:
    return StreamReport(
        policy=PolicyId(message.policy),
        version=Version(message.version),
        dropped=sorted_map(message.dropped),
        staleness={age: message.staleness[age] for age in sorted(message.staleness)},
        metrics=sorted_map(message.metrics),
        plugins=sorted_map(message.plugins),
        sampler=decode_json(message.sampler, what=f"the sampler of {message.policy}"),
        planned=tuple(decode_planned(planned) for planned in message.planned),
        rewards=tuple(message.rewards),
        pace=Pace(**matching_fields(message.pace, _PACE_FIELDS)) if message.HasField("pace") else None,
        **matching_fields(message, _STREAM_FIELDS),
    )
