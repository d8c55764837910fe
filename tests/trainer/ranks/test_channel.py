"""Messages between ranks: what arrives is checked before it is parsed, and before memory is allocated for it."""

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.trainer.ranks.channel import Channel, Message
from tests.errors import raises_code


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Channel]]:
    """Socket whose bytes a test chooses, and the channel that receives them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver = Channel(listener.accept()[0])
    yield sender, receiver
    sender.close()
    receiver.close()


def send(sender: socket.socket, head: bytes, array_bytes: int) -> None:
    sender.sendall(struct.pack("<QQ", len(head), array_bytes) + head)


def test_arrays_arrive_as_they_were_sent(pair: tuple[socket.socket, Channel]) -> None:
    sender, receiver = pair
    arrays: dict[str, npt.NDArray[Any]] = {
        "float": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.uint8),
        "mask": np.array([True, False]),
    }
    Channel(sender).send(Message(facts={"command": "sum"}, arrays=arrays))

    message = receiver.receive()

    assert message.facts == {"command": "sum"}
    assert message.arrays.keys() == arrays.keys()
    for name, values in arrays.items():
        assert message.arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(message.arrays[name], values)


@pytest.mark.parametrize(
    ("form", "array_bytes"),
    [
        (["|O", [1]], 8),
        (["<f4", [10**15]], 4),
        (["<f4", [10**30]], 4),
        (["<f4", [10**15]], 4 * 10**15),
        (["<f4", [-1]], 4),
        (["<f4", [1.5]], 6),
        (["<f4", [float("inf")]], 4),
        (["|u1", [1] * 100], 1),
        (["|u1", [0, 10**30]], 0),
    ],
)
def test_arrays_that_cannot_be_as_large_as_declared_are_refused(
    pair: tuple[socket.socket, Channel], form: list[object], array_bytes: int
) -> None:
    sender, receiver = pair
    send(sender, json.dumps({"facts": {}, "arrays": {"x": form}}).encode(), array_bytes)
    sender.sendall(b"\0")
    sender.shutdown(socket.SHUT_WR)

    with raises_code(InvalidInput, "trainer.invalid_message"):
        receiver.receive()


@pytest.mark.parametrize("head", [b"[" * 200_000, b"[]", b'{"facts": {}}', b"\xff"])
def test_a_head_that_is_no_message_is_refused(pair: tuple[socket.socket, Channel], head: bytes) -> None:
    sender, receiver = pair
    send(sender, head, 0)

    with raises_code(InvalidInput, "trainer.invalid_message"):
        receiver.receive()


def test_a_connection_that_closes_is_reported(pair: tuple[socket.socket, Channel]) -> None:
    sender, receiver = pair
    sender.close()

    with raises_code(Unavailable, "trainer.rank_lost"):
        receiver.receive()
