"""Codec of the data plane's contract types."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import Any

from astraflow.contract.batches import Batch, Rows, StepReport, stretches
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, TaskId, Version
from astraflow.contract.node_metrics import NODE_COUNTERS, NODE_GAUGES
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.rollouts.tasks import Lease, Prompt, Task
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.trajectories import Episode, Trajectories
from astraflow.wire.codecs.agent_calls import check_blocks, decode_calls, encode_calls
from astraflow.wire.codecs.common import decode_versions, select_entries
from astraflow.wire.codecs.converter import (
    constructor,
    decode_failure,
    encode_failure,
    from_message,
    to_message,
)
from astraflow.wire.codecs.frames import join, split
from astraflow.wire.codecs.partial_rollouts import decode_recorded_generation, encode_recorded_generation
from astraflow.wire.codecs.trajectories import decode_trajectories, encode_trajectories
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.request_limits import check, clipped_to_limits

MAX_PUSHED_TRAJECTORIES = 2**16
"""Trajectories of a push. Nodes push at most 512 episodes at once. Count."""

MAX_PUSHED_SPANS = 2**20
"""Spans of a push. Count."""

PIECE_BYTES = 4 * 2**20
"""Approximate size of the pieces in which a batch is sent."""


new_task = constructor(Task)
"""Constructs a task from the values of its fields, in order, at a quarter of the time of `Task`."""


def encode_lease(lease: Lease) -> pb.LeaseReply:
    """Lease -> message; members of a group share one prompt."""
    reply = pb.LeaseReply(lease_s=lease.lease_s)
    prompt_indexes: dict[GroupId, int] = {}
    for task in lease.tasks:
        if task.group not in prompt_indexes:
            prompt_indexes[task.group] = len(reply.prompts)
            reply.prompts.append(to_message(task.prompt, common.Prompt))
        message = reply.tasks.add(
            id=task.id,
            group=task.group,
            flow=task.flow,
            member=task.member,
            attempt=task.attempt,
            prompt=prompt_indexes[task.group],
        )
        if task.pinned:
            message.pinned.update({policy: int(version) for policy, version in task.pinned.items()})
        if task.resume_from:
            message.resume_from.extend(map(encode_recorded_generation, task.resume_from))
    return reply


def decode_lease(message: pb.LeaseReply) -> Lease:
    """Message -> lease."""
    prompts = [from_message(prompt, Prompt) for prompt in message.prompts]
    tasks = []
    ids = TaskId.checked([task.id for task in message.tasks])
    groups = GroupId.checked([task.group for task in message.tasks])
    flows = FlowId.checked([task.flow for task in message.tasks])
    for id_, group, flow, task in zip(ids, groups, flows, message.tasks, strict=True):
        if task.prompt >= len(prompts):
            raise InvalidInput(
                f"cannot decode lease: task {task.id!r} refers to prompt {task.prompt} of {len(prompts)}; "
                "install the same release on both sides",
                code="lease.unknown_prompt",
            )
        pinned = decode_versions(task.pinned) if task.pinned else {}
        resume_from = tuple(map(decode_recorded_generation, task.resume_from))
        tasks.append(new_task(id_, group, flow, task.member, task.attempt, prompts[task.prompt], pinned, resume_from))
    return Lease(tasks=tuple(tasks), lease_s=message.lease_s)


def encode_push(node: NodeId, episodes: Sequence[Episode]) -> bytes:
    """Episodes of one node -> a whole `PushRequest`, clipped to the limits of requests."""
    trajectories, arrays = encode_trajectories([episode.trajectories for episode in episodes])
    message = pb.PushRequest(
        node=node,
        tasks=[episode.task for episode in episodes],
        attempts=[episode.attempt for episode in episodes],
        durations_s=[episode.duration_s for episode in episodes],
        trajectory_counts=[len(episode.trajectories) for episode in episodes],
        trajectories=trajectories,
        details=[
            pb.EpisodeDetails(
                episode=index,
                continued_tokens=episode.continued_tokens,
                failed_calls=encode_calls(episode.failed_calls),
                hops=[to_message(hop, common.Hop) for hop in episode.hops],
                **encode_failure(episode.failure),
            )
            for index, episode in enumerate(episodes)
            if episode.failure is not None or episode.hops or episode.continued_tokens or episode.failed_calls
        ],
    )
    return join(clipped_to_limits(message), arrays)


def _check_counts(message: common.Trajectories) -> None:
    """Checks how much a push of a peer makes dataflow build. Raises: InvalidInput."""
    lists = (message.rewards, message.policy_indices, message.is_truncated, message.span_counts)
    trajectories = max(len(values) for values in lists)
    spans = max(len(message.span_lengths), len(message.span_versions))
    if trajectories > MAX_PUSHED_TRAJECTORIES or spans > MAX_PUSHED_SPANS:
        raise InvalidInput(
            f"cannot decode a push of {trajectories} trajectories with {spans} spans: the limits are "
            f"{MAX_PUSHED_TRAJECTORIES} and {MAX_PUSHED_SPANS}; push fewer episodes at once",
            code="push.too_many",
        )


def decode_push(raw: bytes, *, is_checked: bool = False) -> tuple[NodeId, list[Episode]]:
    """A whole `PushRequest` -> node and its episodes. The arrays are views of `raw`.

    is_checked: apply the limits of requests, for data from a peer; stored data may be older than the limits. Raises:
    InvalidInput.
    """
    message, arrays = split(pb.PushRequest, raw)
    if is_checked:
        check(message)
        _check_counts(message.trajectories)
    details = {entry.episode: entry for entry in message.details}
    check_blocks(
        [*(entry.failed_calls for entry in message.details), *(entry.calls for entry in message.trajectories.details)]
    )
    trajectories = decode_trajectories(message.trajectories, arrays)
    ends = list(accumulate(message.trajectory_counts, initial=0))
    sizes = {len(message.attempts), len(message.durations_s), len(message.trajectory_counts)}
    is_complete = sizes == {len(message.tasks)} and ends[-1] == len(trajectories)
    if not is_complete or len(details) != len(message.details) or max(details, default=-1) >= len(message.tasks):
        raise InvalidInput(
            f"cannot decode a push of {len(message.tasks)} tasks: its lists do not fit each other; send one entry per "
            "task",
            code="push.invalid",
        )
    node = NodeId(message.node)
    columns = zip(TaskId.checked(message.tasks), message.attempts, message.durations_s, pairwise(ends), strict=True)
    return node, [
        Episode(
            task=task,
            node=node,
            trajectories=Trajectories(trajectories.columns, begin, end),
            duration_s=duration_s,
            attempt=attempt,
            **(_decode_details(details[index]) if index in details else {}),
        )
        for index, (task, attempt, duration_s, (begin, end)) in enumerate(columns)
    ]


def _decode_details(message: pb.EpisodeDetails) -> dict[str, Any]:
    """Message -> fields of an episode."""
    return {
        "failure": decode_failure(message),
        "continued_tokens": message.continued_tokens,
        "failed_calls": decode_calls(message.failed_calls),
        "hops": tuple(from_message(hop, Hop) for hop in message.hops),
    }


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
    rows = Rows.of(batch.rows)
    parts: list[Trajectories] = []
    begin = size_bytes = 0
    for part in chain.from_iterable(map(_within_a_piece, rows.parts)):
        parts.append(part)
        size_bytes += part.size_bytes
        if size_bytes >= PIECE_BYTES:
            yield _encode_rows(rows, begin, parts)
            begin += sum(map(len, parts))
            parts, size_bytes = [], 0
    if parts:
        yield _encode_rows(rows, begin, parts)


def _within_a_piece(part: Trajectories) -> Sequence[Trajectories]:
    """Returns a part, or its trajectories one by one if it exceeds the size of a piece."""
    return [part] if part.size_bytes <= PIECE_BYTES else [part[index : index + 1] for index in range(len(part))]


def _encode_rows(rows: Rows, begin: int, parts: Sequence[Trajectories]) -> bytes:
    """Rows from `begin` on, whose trajectories are in `parts` -> whole `BatchPiece`."""
    trajectories, arrays = encode_trajectories(stretches(parts), has_calls=False)
    end = begin + len(trajectories.rewards)
    runs = [(group, sum(1 for _ in members)) for group, members in groupby(rows.groups[begin:end])]
    nodes = {node: index for index, node in enumerate(dict.fromkeys(rows.nodes[begin:end]))}
    message = pb.BatchPiece(
        groups=[group for group, _ in runs],
        group_sizes=[size for _, size in runs],
        tasks=rows.tasks[begin:end],
        nodes=nodes,
        node_indices=[nodes[node] for node in rows.nodes[begin:end]],
        trajectories=trajectories,
    )
    return join(message, arrays)


def decode_batch(pieces: Iterable[bytes]) -> Batch | None:
    """Whole `BatchPiece`s -> batch; None for no pieces. Raises: InvalidInput when rows are missing."""
    head: pb.BatchHead | None = None
    received: list[Rows] = []
    for raw in pieces:
        piece, arrays = split(pb.BatchPiece, raw)
        if piece.HasField("head"):
            head = piece.head
        received.append(_decode_rows(piece, decode_trajectories(piece.trajectories, arrays)))
    if head is None:
        return None
    rows = Rows.joined(received)
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
        rows=rows,
    )


def _decode_rows(piece: pb.BatchPiece, trajectories: Trajectories) -> Rows:
    """Piece and its trajectories -> rows. Raises: InvalidInput."""
    nodes = NodeId.checked(piece.nodes)
    sizes = {len(piece.tasks), len(piece.node_indices), sum(piece.group_sizes)}
    is_complete = len(piece.groups) == len(piece.group_sizes) and max(piece.node_indices, default=-1) < len(nodes)
    if sizes != {len(trajectories)} or not is_complete:
        raise InvalidInput(
            f"cannot decode {len(trajectories)} rows of a batch: their lists do not fit each other; pull it again",
            code="batch.invalid_rows",
        )
    groups = zip(GroupId.checked(piece.groups), piece.group_sizes, strict=True)
    return Rows(
        groups=[group for group, rows in groups for _ in range(rows)],
        tasks=TaskId.checked(piece.tasks),
        nodes=[nodes[index] for index in piece.node_indices],
        parts=[trajectories] if len(trajectories) else [],
    )


def encode_step(report: StepReport) -> pb.ReportStepRequest:
    """Step report -> message, clipped to the limits of requests, so that a metric that is not finite does not
    stop the training."""
    return clipped_to_limits(to_message(report, pb.ReportStepRequest))
