"""Codec of the fleet plane's maintainer status, control state, proposals and transcript."""

from astraflow.contract.fleet import KillScope
from astraflow.contract.maintainer import (
    Budget,
    GroupScore,
    LiveScore,
    Maintainer,
    MaintainerControlState,
    MaintainerMode,
    MaintainerScore,
    MaintainerState,
    MaintainerStatus,
    Proposal,
    ProposalState,
    TranscriptEntry,
)
from astraflow.wire.codec_common import decode_json, encode_json, matching_fields, optional_fields
from astraflow.wire.codec_fleet import choice, decode_actor, decode_plan, encode_actor, encode_plan
from astraflow.wire.pb import fleet_plane_pb2 as pb

_STATUS = (
    *("run", "model", "is_simulated", "at", "started_at", "last_wake", "prompt_hash", "tools_hash"),
    *("evaluation_source", "evaluation_problem", "live_problem"),
)
_STATUS_OPTIONAL = ("last_wake_at", "next_wake_at")
_GROUP = ("group", "cases", "passed")
_EVALUATION = ("source", "at", "is_current", "violations", "out_of_scope")
_LIVE = (
    *("began_at", "ended_at", "changes", "reports", "is_priced", "cost", "rule_cost"),
    *("node_hours", "rule_node_hours", "wait_hours", "rule_wait_hours"),
)
_BUDGET = ("scope", "unit", "used", "limit")
_MAINTAINER = ("mode_by", "mode_reason")
_MAINTAINER_OPTIONAL = ("mode_at", "status_age_s")
_PROPOSAL = ("proposed_at", "decided_by", "decision_reason")
_ENTRY = ("ordinal", "at", "wake", "kind", "previous", "hash")


def encode_maintainer_status(status: MaintainerStatus) -> pb.FleetMaintainerStatus:
    """Status -> message."""
    return pb.FleetMaintainerStatus(
        state=status.state.value,
        mode=status.mode.value,
        last_signals=status.last_signals,
        budgets=[pb.FleetBudget(**matching_fields(budget, _BUDGET)) for budget in status.budgets],
        counters=dict(status.counters),
        problems=status.problems,
        evaluation=_encode_evaluation(status.evaluation) if status.evaluation is not None else None,
        live=pb.FleetLiveScore(**matching_fields(status.live, _LIVE)) if status.live is not None else None,
        **matching_fields(status, _STATUS + _STATUS_OPTIONAL),
    )


def decode_maintainer_status(message: pb.FleetMaintainerStatus) -> MaintainerStatus:
    """Message -> status. Raises: InvalidInput."""
    return MaintainerStatus(
        state=choice(MaintainerState, message.state),
        mode=choice(MaintainerMode, message.mode),
        last_signals=tuple(message.last_signals),
        budgets=tuple(Budget(**matching_fields(budget, _BUDGET)) for budget in message.budgets),
        counters={name: message.counters[name] for name in sorted(message.counters)},
        problems=tuple(message.problems),
        evaluation=_decode_evaluation(message.evaluation) if message.HasField("evaluation") else None,
        live=LiveScore(**matching_fields(message.live, _LIVE)) if message.HasField("live") else None,
        **matching_fields(message, _STATUS),
        **optional_fields(message, _STATUS_OPTIONAL),
    )


def _encode_evaluation(score: MaintainerScore) -> pb.FleetMaintainerScore:
    return pb.FleetMaintainerScore(
        groups=[pb.FleetGroupScore(ratio=group.ratio, **matching_fields(group, _GROUP)) for group in score.groups],
        objections=score.objections,
        **matching_fields(score, _EVALUATION),
    )


def _decode_evaluation(message: pb.FleetMaintainerScore) -> MaintainerScore:
    return MaintainerScore(
        groups=tuple(
            GroupScore(**matching_fields(group, _GROUP), **optional_fields(group, ("ratio",)))
            for group in message.groups
        ),
        objections=tuple(message.objections),
        **matching_fields(message, _EVALUATION),
    )


def encode_control_state(state: MaintainerControlState) -> pb.MaintainerControlState:
    """Control state -> message."""
    return pb.MaintainerControlState(mode=state.mode.value, kill=state.kill.value, kill_reason=state.kill_reason)


def decode_control_state(message: pb.MaintainerControlState) -> MaintainerControlState:
    """Message -> control state."""
    return MaintainerControlState(
        mode=choice(MaintainerMode, message.mode),
        kill=choice(KillScope, message.kill),
        kill_reason=message.kill_reason,
    )


def encode_maintainer(maintainer: Maintainer) -> pb.FleetMaintainer:
    """Maintainer -> message."""
    return pb.FleetMaintainer(
        mode=maintainer.mode.value,
        status=encode_maintainer_status(maintainer.status) if maintainer.status is not None else None,
        **matching_fields(maintainer, _MAINTAINER + _MAINTAINER_OPTIONAL),
    )


def decode_maintainer(message: pb.FleetMaintainer) -> Maintainer:
    """Message -> maintainer."""
    return Maintainer(
        mode=choice(MaintainerMode, message.mode),
        status=decode_maintainer_status(message.status) if message.HasField("status") else None,
        **matching_fields(message, _MAINTAINER),
        **optional_fields(message, _MAINTAINER_OPTIONAL),
    )


def encode_proposal(proposal: Proposal) -> pb.FleetProposal:
    """Proposal -> message."""
    return pb.FleetProposal(
        plan=encode_plan(proposal.plan),
        state=proposal.state.value,
        proposed_by=encode_actor(proposal.proposed_by),
        decided_at=proposal.decided_at,
        **matching_fields(proposal, _PROPOSAL),
    )


def decode_proposal(message: pb.FleetProposal) -> Proposal:
    """Message -> proposal."""
    return Proposal(
        plan=decode_plan(message.plan),
        state=choice(ProposalState, message.state),
        proposed_by=decode_actor(message.proposed_by),
        **matching_fields(message, _PROPOSAL),
        **optional_fields(message, ("decided_at",)),
    )


def encode_entry(entry: TranscriptEntry) -> pb.FleetTranscriptEntry:
    """Transcript entry -> message."""
    return pb.FleetTranscriptEntry(body_json=encode_json(entry.body), **matching_fields(entry, _ENTRY))


def decode_entry(message: pb.FleetTranscriptEntry) -> TranscriptEntry:
    """Message -> transcript entry. Raises: InvalidInput."""
    body = decode_json(message.body_json, what=f"entry {message.ordinal} of the transcript")
    return TranscriptEntry(body=body, **matching_fields(message, _ENTRY))
