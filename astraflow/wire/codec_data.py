"""The data plane's dataclasses and messages, both ways."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from astraflow.contract.batches import Batch, Row, StepReport, TrainerWelcome
from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Boundary, Failure
from astraflow.contract.ids import BatchId, FlowId, GroupId, NodeId, PolicyId, PromptId, TaskId, Version
from astraflow.contract.nodes import NODE_COUNTERS, NODE_GAUGES, Directive, FlowSpec, NodeStatus, PolicySpec, Welcome
from astraflow.contract.tasks import Lease, Prompt, Task
from astraflow.contract.trajectories import Episode
from astraflow.wire.codec_common import (
    decode_json,
    decode_link,
    decode_versions,
    encode_json,
    encode_link,
    known,
    plain,
)
from astraflow.wire.codec_partials import decode_recorded, encode_recorded
from astraflow.wire.codec_trajectories import arrays_of, decode_trajectories, encode_trajectory
from astraflow.wire.frames import join, split
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.requests import check, fitted

PIECE_BYTES = 4 * 2**20
"""A batch travels in pieces of about this size, whatever its size."""


def encode_welcome(welcome: Welcome) -> pb.JoinReply:
    """Welcome -> message."""
    return pb.JoinReply(
        node=welcome.node,
        lease_s=welcome.lease_s,
        beat_s=welcome.beat_s,
        run=welcome.run,
        weights_address=welcome.weights_address,
        flows=[
            pb.FlowSpec(
                id=flow.id,
                workflow_json=encode_json(flow.workflow),
                reward_json=encode_json(flow.reward),
                evaluation_share=flow.evaluation_share,
            )
            for flow in welcome.flows
        ],
        policies=[common.Spec(id=policy.id, json=encode_json(policy.model)) for policy in welcome.policies],
        engine_json=encode_json(welcome.engine),
        weights_key=welcome.weights_key,
    )


def decode_welcome(message: pb.JoinReply) -> Welcome:
    """Message -> welcome."""
    return Welcome(
        node=NodeId(message.node),
        lease_s=message.lease_s,
        beat_s=message.beat_s,
        run=message.run,
        weights_address=message.weights_address,
        flows=tuple(
            FlowSpec(
                id=FlowId(flow.id),
                workflow=decode_json(flow.workflow_json, what=f"workflow of {flow.id}"),
                reward=decode_json(flow.reward_json, what=f"reward of {flow.id}"),
                evaluation_share=flow.evaluation_share if flow.HasField("evaluation_share") else None,
            )
            for flow in message.flows
        ),
        policies=tuple(
            PolicySpec(id=PolicyId(policy.id), model=decode_json(policy.json, what=f"model of {policy.id}"))
            for policy in message.policies
        ),
        engine=decode_json(message.engine_json, what="engine"),
        weights_key=message.weights_key,
    )


def encode_lease(lease: Lease) -> pb.LeaseReply:
    """Lease -> message; members of a group share one prompt."""
    reply = pb.LeaseReply(lease_s=lease.lease_s)
    places: dict[GroupId, int] = {}
    for task in lease.tasks:
        if task.group not in places:
            places[task.group] = len(reply.prompts)
            reply.prompts.append(encode_prompt(task.prompt))
        reply.tasks.add(
            id=task.id,
            group=task.group,
            flow=task.flow,
            member=task.member,
            attempt=task.attempt,
            prompt=places[task.group],
            pinned={policy: int(version) for policy, version in task.pinned.items()},
            resume=[encode_recorded(recorded) for recorded in task.resume],
        )
    return reply


def decode_lease(message: pb.LeaseReply) -> Lease:
    """Message -> lease."""
    prompts = [decode_prompt(prompt) for prompt in message.prompts]
    tasks = []
    for task in message.tasks:
        if task.prompt >= len(prompts):
            raise InvalidInput(f"task {task.id} names prompt {task.prompt} of {len(prompts)}")
        tasks.append(
            Task(
                id=TaskId(task.id),
                group=GroupId(task.group),
                flow=FlowId(task.flow),
                member=task.member,
                attempt=task.attempt,
                prompt=prompts[task.prompt],
                pinned=decode_versions(task.pinned),
                resume=tuple(decode_recorded(recorded) for recorded in task.resume),
            )
        )
    return Lease(tasks=tuple(tasks), lease_s=message.lease_s)


def encode_push(node: NodeId, episodes: Sequence[Episode]) -> bytes:
    """Episodes of one node -> a whole `PushRequest`."""
    message = pb.PushRequest(node=node, episodes=[_encode_episode(episode) for episode in episodes])
    return join(message, arrays_of([one for episode in episodes for one in episode.trajectories]))


def decode_push(raw: bytes, *, is_checked: bool = False) -> tuple[NodeId, list[Episode]]:
    """A whole `PushRequest` -> who pushes what. The arrays are views of `raw`.

    is_checked: hold it to the limits of requests, for what comes from a peer; what was accepted before there
    were any is read without. Raises: InvalidInput.
    """
    message, arrays = split(pb.PushRequest, raw)
    if is_checked:
        check(message)
    node = NodeId(message.node)
    trajectories = decode_trajectories((one for episode in message.episodes for one in episode.trajectories), arrays)
    return node, [
        Episode(
            task=TaskId(episode.task),
            node=node,
            trajectories=tuple(islice(trajectories, len(episode.trajectories))),
            failure=_decode_failure(episode),
            duration_s=episode.duration_s,
            attempt=episode.attempt,
            continued_tokens=episode.continued_tokens,
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
    )
    if episode.failure is not None:
        message.failure_boundary = episode.failure.boundary.value
        message.failure_message = episode.failure.message
    return fitted(message)


def _decode_failure(message: pb.Episode) -> Failure | None:
    if not message.failure_boundary:
        return None
    try:
        boundary = Boundary(message.failure_boundary)
    except ValueError:
        known = ", ".join(boundary.value for boundary in Boundary)
        raise InvalidInput(f"episode {message.task} failed at {message.failure_boundary!r}; known: {known}") from None
    return Failure(boundary=boundary, message=message.failure_message)


def encode_status(status: NodeStatus) -> pb.BeatRequest:
    """Node status -> message, within the limits of requests: no figure or text of its own costs a node its beat."""
    return fitted(
        pb.BeatRequest(
            node=status.node,
            running=status.running,
            versions={policy: int(version) for policy, version in status.versions.items()},
            counters=dict(status.counters),
            gauges=dict(status.gauges),
            errors=status.errors,
            ending=status.ending,
            is_taken=status.is_taken,
            links=[encode_link(link) for link in status.links],
        )
    )


def decode_status(message: pb.BeatRequest) -> NodeStatus:
    """Message -> node status. Counters and gauges that this release does not know are left out."""
    return NodeStatus(
        node=NodeId(message.node),
        running=tuple(TaskId(task) for task in message.running),
        versions=decode_versions(message.versions),
        counters=known(message.counters, NODE_COUNTERS),
        gauges=known(message.gauges, NODE_GAUGES),
        errors=tuple(message.errors),
        ending=message.ending,
        is_taken=message.is_taken,
        links=tuple(decode_link(link) for link in message.links),
    )


def encode_directive(directive: Directive) -> pb.BeatReply:
    """Directive -> message."""
    return pb.BeatReply(action=directive.action, reason=directive.reason, deadline_s=directive.deadline_s)


def decode_directive(message: pb.BeatReply) -> Directive:
    """Message -> directive."""
    return Directive(action=message.action, reason=message.reason, deadline_s=message.deadline_s)


def encode_trainer_welcome(welcome: TrainerWelcome) -> pb.AttachReply:
    """Trainer welcome -> message."""
    return pb.AttachReply(
        run=welcome.run,
        weights_address=welcome.weights_address,
        acknowledged_steps=welcome.acknowledged_steps,
        weights_key=welcome.weights_key,
    )


def decode_trainer_welcome(message: pb.AttachReply) -> TrainerWelcome:
    """Message -> trainer welcome."""
    return TrainerWelcome(
        run=message.run,
        weights_address=message.weights_address,
        acknowledged_steps=message.acknowledged_steps,
        weights_key=message.weights_key,
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
        raise InvalidInput(f"batch {head.id} came with {len(rows)} of its {head.rows} rows")
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
    """Step report -> message, within the limits of requests: a metric that is not finite ends no training."""
    return fitted(
        pb.ReportStepRequest(
            batch=report.batch,
            policy=report.policy,
            version=report.version,
            wait_s=report.wait_s,
            compute_s=report.compute_s,
            publish_s=report.publish_s,
            metrics=dict(report.metrics),
        )
    )


def decode_step(message: pb.ReportStepRequest) -> StepReport:
    """Message -> step report."""
    return StepReport(
        batch=BatchId(message.batch),
        policy=PolicyId(message.policy),
        version=Version(message.version),
        wait_s=message.wait_s,
        compute_s=message.compute_s,
        publish_s=message.publish_s,
        metrics=plain(message.metrics),
    )


def encode_prompt(prompt: Prompt) -> common.Prompt:
    """Prompt -> message."""
    return common.Prompt(id=prompt.id, fields_json=encode_json(prompt.fields))


def decode_prompt(message: common.Prompt) -> Prompt:
    """Message -> prompt."""
    return Prompt(id=PromptId(message.id), fields=decode_json(message.fields_json, what=f"prompt {message.id}"))
