"""Connections of the first rank to the others, over which they get commands."""

import queue
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch._C._distributed_c10d import Store  # torch.distributed does not declare them

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.trainer.ranks.channel import Channel, Message, is_proof, proof_of
from astraflow.trainer.ranks.launch import LOOPBACK, RankPlace
from astraflow.trainer.ranks.process import CONTROL, JOIN_TIMEOUT_S

log = get_logger()

EXIT_WAIT_S = 2.0
"""Time for the exit code of a rank whose connection has closed."""
_GREETING_S = 5.0
"""Time in which a new connection must have sent its rank and the proof of the ranks' secret."""


@dataclass(kw_only=True)
class RankLink:
    """A rank other than the first, as the first rank knows it. Guarded by the condition of its `RankGroup`."""

    number: int
    channel: Channel
    process: subprocess.Popen[bytes] | None
    """None for a rank that a scheduler started."""
    heard_at: float = 0.0
    """Time of its last message, by the clock of its `RankGroup`."""
    calls: int = 0
    """Collective calls that it has begun."""
    answers: dict[int, Message] = field(default_factory=dict)
    """Answers that were not taken yet, by number of the call."""
    loss: str = ""
    """Why the rank is lost; empty while it is not."""

    def exit_text(self) -> str:
        """Returns how the process ended; waits a little for it."""
        if self.process is None:
            return "closed its connection"
        try:
            return _exit_text(self.process.wait(EXIT_WAIT_S))
        except subprocess.TimeoutExpired:
            return "closed its connection"


def check_place(rank_place: RankPlace, ranks: int) -> None:
    """Checks that the environment fits the recipe. Raises: InvalidInput."""
    if not rank_place.is_first or rank_place.ranks != ranks:
        raise InvalidInput(
            f"cannot start the trainer with {ranks} ranks: the environment says RANK={rank_place.rank}, "
            f"WORLD_SIZE={rank_place.ranks}; start as many ranks as the recipe's `ranks`",
            code="trainer.bad_rank_environment",
        )


def accept_ranks(
    store: Store, rank_place: RankPlace, processes: Mapping[int, subprocess.Popen[bytes]]
) -> list[RankLink]:
    """Returns the connections of all other ranks, in rank order.

    Raises: Unavailable when a rank exits or does not connect in time.
    """
    nonce = secrets.token_hex(16)
    links: dict[int, RankLink] = {}
    greeted: queue.SimpleQueue[tuple[int, Channel]] = queue.SimpleQueue()
    with socket.create_server((LOOPBACK if rank_place.address == LOOPBACK else "", 0)) as listener:
        listener.settimeout(0.2)
        target = f"{rank_place.address}:{listener.getsockname()[1]}"
        store.set(CONTROL, f"{target} {nonce} {proof_of(rank_place.secret, 'control', target, nonce)}")
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while missing := set(range(1, rank_place.ranks)) - links.keys():
            _check_started(missing, processes, deadline)
            try:
                connection, _ = listener.accept()
            except (TimeoutError, ConnectionAbortedError):
                pass
            else:  # in a thread, since strangers that send nothing must not hold up the ranks
                threading.Thread(target=_greet, args=(connection, nonce, rank_place, greeted), daemon=True).start()
            while not greeted.empty():
                number, channel = greeted.get()
                if number in links:
                    log.warning("connection_refused", rank=number)
                    channel.close()
                    continue
                links[number] = RankLink(number=number, channel=channel, process=processes.get(number))
    return [links[number] for number in sorted(links)]


def _greet(
    connection: socket.socket, nonce: str, rank_place: RankPlace, greeted: queue.SimpleQueue[tuple[int, Channel]]
) -> None:
    """Hands over the connection of a rank that proves to have the ranks' secret; closes any other connection."""
    channel = Channel(connection)
    try:
        greeting = channel.receive_greeting(timeout_s=_GREETING_S)
        number, rank_nonce = greeting.get("rank"), greeting.get("nonce")
        if not is_proof(greeting.get("proof"), rank_place.secret, "rank", number, nonce, rank_nonce):
            log.warning("connection_refused", problem="it does not have the secret of the ranks")
        elif isinstance(number, int) and 0 < number < rank_place.ranks:
            channel.send(Message(facts={"proof": proof_of(rank_place.secret, "first", rank_nonce)}))
            greeted.put((number, channel))
            return
        else:
            log.warning("connection_refused", rank=number)
    except AstraFlowError as problem:
        log.warning("connection_refused", problem=str(problem))
    channel.close()


def _check_started(missing: set[int], processes: Mapping[int, subprocess.Popen[bytes]], deadline: float) -> None:
    for number in sorted(missing):
        process = processes.get(number)
        code = process.poll() if process is not None else None
        if code is not None or time.monotonic() >= deadline:
            why = _exit_text(code) if code is not None else f"did not connect within {JOIN_TIMEOUT_S:g} s"
            raise Unavailable(
                f"cannot start the ranks of the trainer: rank {number} {why}; read its output above, or start it with "
                "the same MASTER_ADDR and MASTER_PORT",
                code="trainer.rank_not_started",
            )


def _exit_text(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
