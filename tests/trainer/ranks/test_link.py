"""The first rank refuses the connections of strangers, whatever they send, and its start goes on."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from torch._C._distributed_c10d import HashStore, Store  # torch.distributed does not declare them

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.ranks import link, process
from astraflow.trainer.ranks.channel import Channel, Message, proof_of
from astraflow.trainer.ranks.launch import LOOPBACK, RankPlace
from astraflow.trainer.ranks.link import RankLink, accept_ranks
from astraflow.trainer.ranks.process import CONTROL
from tests.errors import raises_code

START_S = 20.0
"""Longest wait of a test for the start."""
SECRET = b"secret of the ranks"
FIRST = RankPlace(rank=0, ranks=2, local_rank=0, address=LOOPBACK, port=1, secret=SECRET)
SECOND = replace(FIRST, rank=1)


@pytest.fixture
def store() -> Store:
    """Store of the ranks within this process."""
    return HashStore()


@pytest.fixture
def start(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Future[list[RankLink]]]:
    """Start of the first of two ranks, which waits for rank 1 in a thread."""
    monkeypatch.setattr(link, "JOIN_TIMEOUT_S", START_S)
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(accept_ranks, store, FIRST, {})


def control(store: Store) -> tuple[str, str]:
    """Returns address and nonce of the first rank's control port."""
    target, nonce, _ = store.get(CONTROL).decode().split()
    return target, nonce


def connect(store: Store) -> socket.socket:
    """Connects to the control port of the first rank."""
    address, _, port = control(store)[0].rpartition(":")
    return socket.create_connection((address, int(port)), timeout=START_S)


def join(store: Store) -> Channel:
    """Joins as rank 1."""
    return process._connect(store, SECOND)


def framed(head: object, array_bytes: int = 0) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<QQ", len(text), array_bytes) + text


def is_refused(stranger: socket.socket) -> bool:
    """Returns whether the first rank closes the connection."""
    with contextlib.suppress(ConnectionResetError):  # it has not read everything
        return stranger.recv(1) == b""
    return True


def greeting(nonce: str, rank: object = 1, *, secret: bytes = SECRET, **more: object) -> dict[str, object]:
    """Returns the facts that a rank sends first."""
    return {"rank": rank, "nonce": "own", "proof": proof_of(secret, "rank", rank, nonce, "own"), **more}


GREETINGS: dict[str, Callable[[str], bytes]] = {
    "other_secret": lambda nonce: framed({"facts": greeting(nonce, secret=b"guessed"), "arrays": {}}),
    "of_an_earlier_start": lambda _: framed({"facts": greeting("0" * 32), "arrays": {}}),
    "of_another_rank": lambda nonce: framed({"facts": greeting(nonce) | {"rank": 0}, "arrays": {}}),
    "proof_is_not_ascii": lambda nonce: framed({"facts": greeting(nonce, proof="é"), "arrays": {}}),
    "proof_is_a_surrogate": lambda nonce: framed({"facts": greeting(nonce, proof="\ud800"), "arrays": {}}),
    "proof_is_a_number": lambda nonce: framed({"facts": greeting(nonce, proof=1), "arrays": {}}),
    "array_of_petabytes": lambda _: framed({"facts": {}, "arrays": {"x": ["<f4", [10**15]]}}),
    "array_of_quintillions": lambda _: framed({"facts": {}, "arrays": {"x": ["<f4", [10**30]]}}),
    "declared_array": lambda nonce: framed({"facts": greeting(nonce), "arrays": {}}, 2**30),
    "empty_array": lambda nonce: framed({"facts": greeting(nonce), "arrays": {"x": ["|u1", [0]]}}),
    "nested": lambda _: framed(b"[" * 200_000),
    "nested_in_little": lambda _: framed(b"[" * 1024),
    "large_head": lambda nonce: framed({"facts": greeting(nonce, more="x" * 1024), "arrays": {}}),
    "rank_is_a_list": lambda nonce: framed({"facts": greeting(nonce, []), "arrays": {}}),
    "unknown_rank": lambda nonce: framed({"facts": greeting(nonce, 2), "arrays": {}}),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_a_start_goes_on_after_a_greeting_that_is_refused(
    store: Store, start: Future[list[RankLink]], name: str
) -> None:
    sent = GREETINGS[name](control(store)[1])
    with connect(store) as stranger:
        with contextlib.suppress(OSError):  # it is refused before everything is sent
            stranger.sendall(sent)
        assert is_refused(stranger)
    rank = join(store)

    (joined,) = start.result(START_S)

    assert joined.number == 1
    rank.send(Message(facts={"beat": 3}))
    assert joined.channel.receive().facts == {"beat": 3}
    rank.close()
    joined.channel.close()


def test_strangers_that_send_nothing_do_not_hold_up_the_start(store: Store, start: Future[list[RankLink]]) -> None:
    with contextlib.ExitStack() as strangers:
        for _ in range(50):  # each has 5 s for its greeting
            strangers.enter_context(connect(store))
        rank = join(store)
        (joined,) = start.result(4.0)
    assert joined.number == 1
    rank.close()
    joined.channel.close()


def test_a_greeting_that_trickles_in_is_refused(
    store: Store, start: Future[list[RankLink]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_GREETING_S", 0.5)
    trickling, sent = framed(b"[" * 300), 0
    with connect(store) as stranger, contextlib.suppress(OSError):
        for byte in trickling:
            stranger.sendall(bytes([byte]))
            sent += 1
            time.sleep(0.05)  # far less than the time of a greeting
    rank = join(store)

    (joined,) = start.result(START_S)
    assert joined.number == 1
    assert sent < len(trickling)
    rank.close()
    joined.channel.close()


def signed(target: str, *, secret: bytes = SECRET) -> str:
    return f"{target} nonce {proof_of(secret, 'control', target, 'nonce')}"


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1", "", "é é é", "127.0.0.1:1 nonce proof", signed("127.0.0.1:1", secret=b"guessed")]
)
def test_a_rank_connects_to_no_address_without_the_proof_of_the_secret(store: Store, text: str) -> None:
    store.set(CONTROL, text)
    with raises_code(InvalidInput, "trainer.foreign_first_rank"):
        process._connect(store, SECOND)


@pytest.mark.parametrize(
    "proof", [None, proof_of(b"guessed", "first", "x"), proof_of(SECRET, "first", "of an earlier start")]
)
def test_a_rank_obeys_no_process_that_replays_the_signed_address(store: Store, proof: str | None) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener, ThreadPoolExecutor(1) as pool:
        store.set(CONTROL, signed(f"{LOOPBACK}:{listener.getsockname()[1]}"))
        connecting = pool.submit(process._connect, store, SECOND)
        attacker = Channel(listener.accept()[0])
        sent = attacker.receive().facts
        attacker.send(Message(facts={"proof": proof, "command": "build"}))
        with raises_code(InvalidInput, "trainer.foreign_first_rank"):
            connecting.result(START_S)
        attacker.close()
    assert SECRET.decode() not in str(sent)
