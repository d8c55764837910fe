"""Codec of the data plane's contract types."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from astraflow.contract.batches import Batch, Row, StepReport
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.tasks import Lease, Prompt, Task
from astraflow.contract.timelines import Hop
from astraflow.contract.trajectories import Episode
from astraflow.wire.codec_agent_calls import check_blocks, decode_calls, encode_calls
from astraflow.wire.codec_common import decode_versions, select_entries
from astraflow.wire.codec_partial_rollouts import decode_recorded_generation, encode_recorded_generation
from astraflow.wire.codec_trajectories import arrays_of, decode_trajectories, encode_trajectory
from astraflow.wire.converter import decode_failure, encode_failure, from_message, to_message
from astraflow.wire.frames import join, split
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.request_limits import check, clipped_to_limits

PIECE_BYTES = 4 * 2**20
"""Approximate size of the pieces in which a batch is sent."""


def encode_lease(lease: Lease) -> pb.LeaseReply:
    """Lease -> message; members of a group share one prompt."""
    reply = pb.LeaseReply(lease_s=lease.lease_s)
    prompt_indexes: dict[GroupId, int] = {}
    for task in lease.tasks:
        if task.group not in prompt_indexes:
            prompt_indexes[task.group] = len(reply.prompts)
            reply.prompts.append(to_message(task.prompt, common.Prompt))
        reply.tasks.add(
            id=task.id,
            group=task.group,
            flow=task.flow,
            member=task.member,
            attempt=task.attempt,
            prompt=prompt_indexes[task.group],
            pinned={policy: int(version) for policy, version in task.pinned.items()},
            resume_from=[encode_recorded_generation(recorded) for recorded in task.resume_from],
        )
    return reply


def decode_lease(message: pb.LeaseReply) -> Lease:
    """Message -> lease."""
    prompts = [from_message(prompt, Prompt) for prompt in message.prompts]
    tasks = []
    for task in message.tasks:
        if task.prompt >= len(prompts):
            raise InvalidInput(
                f"cannot decode lease: task {task.id!r} refers to prompt {task.prompt} of {len(prompts)}; "
                "install the same release on both sides",
                code="lease.unknown_prompt",
            )
        tasks.append(
            Task(
                id=TaskId(task.id),
                group=GroupId(task.group),
                flow=FlowId(task.flow),
                member=task.member,
                attempt=task.attempt,
                prompt=prompts[task.prompt],
                pinned=decode_versions(task.pinned),
                resume_from=tuple(decode_recorded_generation(recorded) for recorded in task.resume_from),
            )
        )
    return Lease(tasks=tuple(tasks), lease_s=message.lease_s)


def encode_push(node: NodeId, episodes: Sequence[Episode]) -> bytes:
    """Episodes of one node -> a whole `PushRequest`."""
    message = pb.PushRequest(node=node, episodes=[_encode_episode(episode) for episode in episodes])
    return join(message, arrays_of([trajectory for episode in episodes for trajectory in episode.trajectories]))


def decode_push(raw: bytes, *, is_checked: bool = False) -> tuple[NodeId, list[Episode]]:
    """A whole `PushRequest` -> node and its episodes. The arrays are views of `raw`.

    is_checked: apply the limits of requests, for data from a peer; stored data may be older than the limits. Raises:
    InvalidInput.
    """
    message, arrays = split(pb.PushRequest, raw)
    if is_checked:
        check(message)
    node = NodeId(message.node)
    check_blocks(
        block
        for episode in message.episodes
        for block in (episode.failed_calls, *(trajectory.calls for trajectory in episode.trajectories))
    )
    trajectories = decode_trajectories(
        (trajectory for episode in message.episodes for trajectory in episode.trajectories), arrays
    )
    return node, [
        Episode(
            task=TaskId(episode.task),
            node=node,
            trajectories=tuple(islice(trajectories, len(episode.trajectories))),
            failure=decode_failure(episode),
            duration_s=episode.duration_s,
            attempt=episode.attempt,
            continued_tokens=episode.continued_tokens,
            failed_calls=decode_calls(episode.failed_calls),
            hops=tuple(from_message(hop, Hop) for hop in episode.hops) if episode.hops else (),
        )
        for episode in message.episodes
    ]


def _encode_episode(episode: Episode) -> pb.Episode:
    message = pb.Episode(
        task=episode.task,
        trajectories=[encode_trajectory(trajectory) for trajectory in episode.trajectories],
        duration_s=episode.duration_s,
        attempt=episode.attempt,
        continued_tokens=episode.continued_tokens,
        failed_calls=encode_calls(episode.failed_calls),
        hops=[to_message(hop, common.Hop) for hop in episode.hops],
        **encode_failure(episode.failure),
    )
    return clipped_to_limits(message)


def encode_status(status: NodeStatus) -> pb.HeartbeatRequest:
    """Node status -> message, clipped to the limits of requests, so that no number or text invalidates a heartbeat."""
    return clipped_to_limits(to_message(status, pb.HeartbeatRequest))


def decode_status(message: pb.HeartbeatRequest) -> NodeStatus:
    """Message -> node status. Unknown counters and gauges are omitted."""
    return from_message(
        message,
        NodeStatus,
        replaced={
            "counters": select_entries(message.counters, NODE_COUNTERS),
            "gauges": select_entries(message.gauges, NODE_GAUGES),
        },
    )


def encode_batch(batch: Batch) -> Iterator[bytes]:
    """Batch -> whole `BatchPiece`s of bounded size, the head first."""
    head = pb.BatchHead(
        id=batch.id,
        policy=batch.policy,
        version=batch.version,
        is_redelivered=batch.is_redelivered,
        rows=len(batch.rows),
    )
    yield pb.BatchPiece(head=head).SerializeToString()
    rows: list[Row] = []
    size_bytes = 0
    for row in batch.rows:
        rows.append(row)
        size_bytes += row.trajectory.tokens.nbytes + row.trajectory.logprobs.nbytes
        if size_bytes >= PIECE_BYTES:
            yield _encode_rows(rows)
            rows, size_bytes = [], 0
    if rows:
        yield _encode_rows(rows)


def decode_batch(pieces: Iterable[bytes]) -> Batch | None:
    """Whole `BatchPiece`s -> batch; None for no pieces. Raises: InvalidInput when rows are missing."""
    head: pb.BatchHead | None = None
    rows: list[Row] = []
    for raw in pieces:
        piece, arrays = split(pb.BatchPiece, raw)
        if piece.HasField("head"):
            head = piece.head
        trajectories = decode_trajectories((row.trajectory for row in piece.rows), arrays)
        rows += [
            Row(group=GroupId(row.group), task=TaskId(row.task), node=NodeId(row.node), trajectory=trajectory)
            for row, trajectory in zip(piece.rows, trajectories, strict=True)
        ]
    if head is None:
        return None
    if len(rows) != head.rows:
        raise InvalidInput(
            f"cannot decode batch {head.id!r}: {len(rows)} of {head.rows} rows arrived; pull it again",
            code="batch.missing_rows",
        )
    return Batch(
        id=BatchId(head.id),
        policy=PolicyId(head.policy),
        version=Version(head.version),
        is_redelivered=head.is_redelivered,
        rows=tuple(rows),
    )


def _encode_rows(rows: Sequence[Row]) -> bytes:
    message = pb.BatchPiece(
        rows=[
            pb.Row(group=row.group, task=row.task, node=row.node, trajectory=encode_trajectory(row.trajectory))
            for row in rows
        ]
    )
    return join(message, arrays_of([row.trajectory for row in rows]))


def encode_step(report: StepReport) -> pb.ReportStepRequest:
    """Step report -> message, clipped to the limits of requests, so that a metric that is not finite does not
    stop the training."""
    return clipped_to_limits(to_message(report, pb.ReportStepRequest))
