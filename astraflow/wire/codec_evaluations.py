"""Codec of evaluation rounds."""

from astraflow.contract.errors import InvalidInput
from astraflow.contract.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.wire.codec_common import decode_versions
from astraflow.wire.pb import control_plane_pb2 as pb


def encode_evaluation(report: EvaluationReport) -> pb.EvaluationReport:
    """Round -> message."""
    return pb.EvaluationReport(
        flow=report.flow,
        round=report.round,
        versions={policy: int(version) for policy, version in report.versions.items()},
        state=report.state.value,
        done=report.done,
        total=report.total,
        masked=report.masked,
        failed=report.failed,
        scores=[
            pb.EvaluationScore(policy=score.policy, name=score.name, value=score.value, error=score.error)
            for score in report.scores
        ],
        actor=report.actor,
        reason=report.reason,
        requested_at=report.requested_at,
        started_at=report.started_at,
        finished_at=report.finished_at,
    )


def decode_evaluation(message: pb.EvaluationReport) -> EvaluationReport:
    """Message -> round."""
    try:
        state = EvaluationState(message.state)
    except ValueError:
        state_names = ", ".join(state.value for state in EvaluationState)
        raise InvalidInput(
            f"cannot decode round {message.round} of {message.flow!r}: unknown state {message.state!r}; "
            f"use one of {state_names}",
            code="message.unknown_value",
        ) from None
    return EvaluationReport(
        flow=FlowId(message.flow),
        round=message.round,
        versions=decode_versions(message.versions),
        state=state,
        done=message.done,
        total=message.total,
        masked=message.masked,
        failed=message.failed,
        scores=tuple(_decode_score(score) for score in message.scores),
        actor=message.actor,
        reason=message.reason,
        requested_at=message.requested_at,
        started_at=message.started_at if message.HasField("started_at") else None,
        finished_at=message.finished_at if message.HasField("finished_at") else None,
    )


def _decode_score(message: pb.EvaluationScore) -> EvaluationScore:
    return EvaluationScore(
        policy=PolicyId(message.policy),
        name=message.name,
        value=message.value,
        error=message.error if message.HasField("error") else None,
    )
