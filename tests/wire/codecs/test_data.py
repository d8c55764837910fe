"""Batches in bounded pieces, prompts once per group, and invalid messages."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.batches import Rows
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import GroupId, NodeId
from astraflow.contract.rollouts.tasks import Lease
from astraflow.contract.rollouts.trajectories import Trajectories
from astraflow.wire.codecs import data as codec_data
from astraflow.wire.codecs.data import decode_batch, decode_lease, decode_push, encode_batch, encode_lease, encode_push
from astraflow.wire.pb import data_plane_pb2 as pb
from tests import make
from tests.errors import raises_code
from tests.wire.strategies import same


def test_a_large_batch_is_sent_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make.batch(groups=10, members=4)
    row_bytes = batch.rows[0].trajectory.tokens.nbytes + batch.rows[0].trajectory.logprobs.nbytes
    monkeypatch.setattr(codec_data, "PIECE_BYTES", 8 * row_bytes)
    head, *pieces = encode_batch(batch)
    assert pb.BatchPiece.FromString(head).head.rows == len(batch.rows)
    assert [len(pb.BatchPiece.FromString(piece).tasks) for piece in pieces] == [8, 8, 8, 8, 8]


def test_a_group_larger_than_a_piece_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make.batch(groups=1, members=7)
    whole = Trajectories.of([row.trajectory for row in batch.rows])
    rows = Rows.of(batch.rows)
    joined = Rows(groups=rows.groups, tasks=rows.tasks, nodes=rows.nodes, parts=[whole])
    monkeypatch.setattr(codec_data, "PIECE_BYTES", 2 * whole.size_bytes // 7)
    head, *pieces = encode_batch(replace(batch, rows=joined))
    assert [len(pb.BatchPiece.FromString(piece).tasks) for piece in pieces] == [2, 2, 2, 1]
    decoded = decode_batch([head, *pieces])
    assert decoded is not None
    assert all(same(row, expected) for row, expected in zip(decoded.rows, joined, strict=True))


def test_an_empty_batch_is_one_piece() -> None:
    batch = replace(make.batch(), rows=())
    (head,) = encode_batch(batch)
    decoded = decode_batch([head])
    assert decoded is not None
    assert replace(decoded, rows=()) == batch
    assert not decoded.rows


def test_no_pieces_decode_to_no_batch() -> None:
    assert decode_batch([]) is None


def test_a_batch_with_missing_rows_is_refused() -> None:
    batch = replace(make.batch(groups=2, members=2))
    head, _ = encode_batch(batch)
    with raises_code(InvalidInput, "batch.missing_rows", "0 of 4"):
        decode_batch([head])


def test_members_of_a_group_share_one_prompt_on_the_wire() -> None:
    tasks = tuple(make.task(group=group, member=member) for group in (7, 8) for member in range(4))
    message = encode_lease(Lease(tasks=tasks, lease_s=10.0))
    assert len(message.prompts) == 2
    assert decode_lease(message).tasks == tasks


def test_a_task_with_a_missing_prompt_is_refused() -> None:
    message = encode_lease(Lease(tasks=(make.task(),), lease_s=10.0))
    message.tasks[0].prompt = 3
    with raises_code(InvalidInput, "lease.unknown_prompt", "'train:0/0'", "3 of 1"):
        decode_lease(message)


def test_an_unknown_boundary_is_refused_with_the_known_ones() -> None:
    raw = pushed(details=[pb.EpisodeDetails(failure_boundary="weather")])
    with raises_code(InvalidInput, "message.unknown_value", "'weather'", "engine, environment, workflow, reward"):
        decode_push(raw)


def test_an_episode_without_any_result_is_refused() -> None:
    with raises_code(InvalidInput, "episode.empty"):
        decode_push(pushed())


@pytest.mark.parametrize(
    "change",
    [
        {"attempts": []},
        {"durations_s": [0.0, 0.0]},
        {"trajectory_counts": [1]},
        {"details": [pb.EpisodeDetails(episode=1)]},
        {"details": [pb.EpisodeDetails(), pb.EpisodeDetails()]},
    ],
)
def test_a_push_whose_columns_do_not_fit_each_other_is_refused(change: dict[str, Any]) -> None:
    with raises_code(InvalidInput, "push.invalid"):
        decode_push(pushed(**change))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("tasks", ["train:0/0"]),
        ("node_indices", [0, 0, 0, 1]),
        ("group_sizes", [2, 1]),
        ("groups", ["train:0"]),
    ],
)
def test_a_piece_whose_columns_do_not_fit_each_other_is_refused(field: str, values: list[Any]) -> None:
    head, raw = encode_batch(make.batch(groups=2, members=2))
    piece = pb.BatchPiece.FromString(raw)
    piece.ClearField(field)  # type: ignore[arg-type]  # names of fields are literals
    getattr(piece, field).extend(values)
    with raises_code(InvalidInput, "batch.invalid_rows"):
        decode_batch([head, piece.SerializeToString()])


def test_rows_of_one_push_are_served_from_its_bytes_wherever_they_are_in_the_batch() -> None:
    episodes = [make.episode(f"train:{group}/{member}") for group in range(2) for member in range(3)]
    raw = encode_push(NodeId("node-1"), episodes)
    decoded_push = decode_push(raw)[1]
    parts = [Trajectories.of(episode.trajectories) for episode in decoded_push]
    assert all(np.shares_memory(part.tokens, np.frombuffer(raw, np.uint8)) for part in parts)
    order = (3, 4, 5, 0, 2)
    tasks = [decoded_push[index].task for index in order]
    rows = Rows(
        groups=[GroupId(task.partition("/")[0]) for task in tasks],
        tasks=tasks,
        nodes=[NodeId("node-1")] * len(order),
        parts=[parts[index] for index in order],
    )
    decoded = decode_batch(encode_batch(replace(make.batch(), rows=rows)))
    assert decoded is not None
    assert [row.task for row in decoded.rows] == tasks
    for row in decoded.rows:
        assert same(row.trajectory, make.trajectory())


def pushed(**columns: Any) -> bytes:
    """Returns a push of one episode without trajectories, with other columns."""
    good: dict[str, Any] = {"tasks": ["train:0/0"], "attempts": [0], "durations_s": [0.0], "trajectory_counts": [0]}
    return pb.PushRequest(node="node-1", **(good | columns)).SerializeToString()
