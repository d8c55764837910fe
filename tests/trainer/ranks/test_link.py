"""The first rank refuses the connections of strangers, whatever they send, and its start goes on."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore, Store  # torch.distributed does not declare them

from astraflow.trainer.ranks import link
from astraflow.trainer.ranks.channel import Channel, Message
from astraflow.trainer.ranks.launch import LOOPBACK, RankPlace
from astraflow.trainer.ranks.link import RankLink, accept_ranks
from astraflow.trainer.ranks.process import CONTROL, TOKEN

START_S = 20.0
"""Longest wait of a test for the start."""


@pytest.fixture
def store() -> Store:
    """Store of the ranks within this process."""
    return HashStore()


@pytest.fixture
def start(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Future[list[RankLink]]]:
    """Start of the first of two ranks, which waits for rank 1 in a thread."""
    monkeypatch.setattr(link, "JOIN_TIMEOUT_S", START_S)
    first = RankPlace(rank=0, ranks=2, local_rank=0, address=LOOPBACK, port=1)
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(accept_ranks, store, first, {})


def connect(store: Store) -> socket.socket:
    """Connects to the control port of the first rank."""
    address, _, port = store.get(CONTROL).decode().rpartition(":")
    return socket.create_connection((address, int(port)), timeout=START_S)


def join(store: Store) -> Channel:
    """Joins as rank 1."""
    channel = Channel(connect(store))
    channel.send(Message(facts={"rank": 1, "token": store.get(TOKEN).decode()}))
    return channel


def framed(head: object, array_bytes: int = 0) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<QQ", len(text), array_bytes) + text


def is_refused(stranger: socket.socket) -> bool:
    """Returns whether the first rank closes the connection."""
    with contextlib.suppress(ConnectionResetError):  # it has not read everything
        return stranger.recv(1) == b""
    return True


GREETINGS: dict[str, Callable[[str], bytes]] = {
    "token_is_not_ascii": lambda _: framed({"facts": {"rank": 1, "token": "é"}, "arrays": {}}),
    "token_is_a_surrogate": lambda _: framed({"facts": {"rank": 1, "token": "\ud800"}, "arrays": {}}),
    "token_is_a_number": lambda _: framed({"facts": {"rank": 1, "token": 1}, "arrays": {}}),
    "array_of_petabytes": lambda _: framed({"facts": {}, "arrays": {"x": ["<f4", [10**15]]}}),
    "array_of_quintillions": lambda _: framed({"facts": {}, "arrays": {"x": ["<f4", [10**30]]}}),
    "declared_array": lambda token: framed({"facts": {"rank": 1, "token": token}, "arrays": {}}, 2**30),
    "empty_array": lambda token: framed({"facts": {"rank": 1, "token": token}, "arrays": {"x": ["|u1", [0]]}}),
    "nested": lambda _: framed(b"[" * 200_000),
    "nested_in_little": lambda _: framed(b"[" * 1024),
    "large_head": lambda token: framed({"facts": {"rank": 1, "token": token, "more": "x" * 1024}, "arrays": {}}),
    "rank_is_a_list": lambda token: framed({"facts": {"rank": [], "token": token}, "arrays": {}}),
    "unknown_rank": lambda token: framed({"facts": {"rank": 2, "token": token}, "arrays": {}}),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_a_start_goes_on_after_a_greeting_that_is_refused(
    store: Store, start: Future[list[RankLink]], name: str
) -> None:
    greeting = GREETINGS[name](store.get(TOKEN).decode())
    with connect(store) as stranger:
        with contextlib.suppress(OSError):  # it is refused before everything is sent
            stranger.sendall(greeting)
        assert is_refused(stranger)
    rank = join(store)

    (joined,) = start.result(START_S)

    assert joined.number == 1
    rank.send(Message(facts={"beat": 3}))
    assert joined.channel.receive().facts == {"beat": 3}
    rank.close()
    joined.channel.close()


def test_a_greeting_that_trickles_in_does_not_hold_up_the_start(
    store: Store, start: Future[list[RankLink]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_GREETING_S", 0.5)
    greeting, sent = framed(b"[" * 300), 0
    with connect(store) as stranger, contextlib.suppress(OSError):
        for byte in greeting:
            stranger.sendall(bytes([byte]))
            sent += 1
            time.sleep(0.05)  # far less than the time of a greeting
    rank = join(store)

    (joined,) = start.result(START_S)
    assert joined.number == 1
    assert sent < len(greeting)
    rank.close()
    joined.channel.close()
