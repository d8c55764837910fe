"""Batches in bounded pieces, prompts once per group, and invalid messages."""

from dataclasses import replace

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.tasks import Lease
from astraflow.wire import codec_data
from astraflow.wire.codec_data import decode_batch, decode_lease, decode_push, encode_batch, encode_lease
from astraflow.wire.pb import data_plane_pb2 as pb
from tests import make
from tests.errors import raises_code


def test_a_large_batch_is_sent_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make.batch(groups=10, members=4)
    row_bytes = batch.rows[0].trajectory.tokens.nbytes + batch.rows[0].trajectory.logprobs.nbytes
    monkeypatch.setattr(codec_data, "PIECE_BYTES", 8 * row_bytes)
    head, *pieces = encode_batch(batch)
    assert pb.BatchPiece.FromString(head).head.rows == len(batch.rows)
    assert [len(pb.BatchPiece.FromString(piece).rows) for piece in pieces] == [8, 8, 8, 8, 8]


def test_an_empty_batch_is_one_piece() -> None:
    batch = replace(make.batch(), rows=())
    (head,) = encode_batch(batch)
    assert decode_batch([head]) == batch


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
    raw = pushed(pb.Episode(task="train:0/0", failure_boundary="weather"))
    with raises_code(InvalidInput, "message.unknown_value", "'weather'", "engine, environment, workflow, reward"):
        decode_push(raw)


def test_an_episode_without_any_result_is_refused() -> None:
    with raises_code(InvalidInput, "episode.empty"):
        decode_push(pushed(pb.Episode(task="train:0/0")))


def pushed(episode: pb.Episode) -> bytes:
    return pb.PushRequest(node="node-1", episodes=[episode]).SerializeToString()
