"""Process of a rank other than the first: joins the ranks and executes the commands of the first rank."""

import os
import queue
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

import torch
from torch._C._distributed_c10d import Store  # torch.distributed does not declare them

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.supervised import end_with_parent
from astraflow.runtime.service import EXIT_FAILED, make_files_private
from astraflow.trainer.ranks.channel import Channel, Message, is_proof, proof_of
from astraflow.trainer.ranks.launch import SECRET, RankPlace
from astraflow.trainer.ranks.rendezvous import join_process_group, open_store, rank_device

log = get_logger()

CONTROL = "astraflow-control"
"""Key of the ranks' store: address of the first rank's control connections, nonce, and proof of both."""
JOIN_TIMEOUT_S = 300.0
"""Time in which a rank must reach the first rank; a scheduler may start ranks minutes apart. Seconds."""
BEAT_S = 0.5
"""Interval of the heartbeats of a rank. Seconds."""
WRITE_QUEUE = "write"
"""Queue of commands that run concurrently with those of the main queue; they use no collectives."""


class RankWork(Protocol):
    """Part of the work of one rank. Every rank has one; the first rank calls its own directly."""

    @property
    def calls(self) -> int:
        """Number of collective calls that this rank's engine has begun; a stuck rank is recognized by it."""

    @property
    def commands(self) -> Mapping[str, Callable[[Message], Message]]:
        """Commands by name. They may be collective; those of the queue `write` must not be."""


BuildWork = Callable[[Message, torch.device], RankWork]
"""Builds a rank's part from the first rank's command `build`; collective."""


def run_rank(build: BuildWork) -> NoReturn:
    """Executes commands until the first rank closes the connection or is lost; then ends the process.

    Raises: InvalidInput for a wrong environment, Unavailable when the first rank does not answer.
    """
    make_files_private()
    rank_place = RankPlace.from_environment()
    if rank_place is None or rank_place.is_first:
        raise InvalidInput(
            "cannot run a rank of a trainer: RANK is not set, or is 0; rank 0 is the trainer itself "
            "(`astraflow serve trainer`), start the others with RANK from 1",
            code="trainer.bad_rank_environment",
        )
    end_with_parent()
    store = open_store(rank_place, timeout_s=JOIN_TIMEOUT_S)
    _Rank(_connect(store, rank_place), store, rank_place, build).run()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads can abort a process that tears them down


class _Rank:
    """Threads of a rank: one receives messages, one per queue runs commands, and one sends heartbeats.

    receive ─► main queue: join, build, step, ...   (this thread: torch's collectives)
        │  └─► write queue: write                   (a checkpoint, during the next step)
        └ first rank lost ─► the process ends, whatever the other threads do
    """

    def __init__(self, channel: Channel, store: Store, rank_place: RankPlace, build: BuildWork) -> None:
        self._channel = channel
        self._store = store
        self._place = rank_place
        self._build = build
        self._work: RankWork | None = None
        self._device = torch.device("cpu")
        self._queues: dict[str, queue.SimpleQueue[Message | None]] = {
            name: queue.SimpleQueue() for name in ("main", WRITE_QUEUE)
        }

    def run(self) -> None:
        writer = threading.Thread(target=self._serve, args=(WRITE_QUEUE,), daemon=True)
        for thread in (writer, *(threading.Thread(target=work, daemon=True) for work in (self._receive, self._beat))):
            thread.start()
        self._serve("main")
        writer.join()  # a thread that has used torch and ends during the interpreter's shutdown aborts the process
        log.info("rank_closed", rank=self._place.rank)

    def _receive(self) -> None:
        try:
            while (message := self._channel.receive()).facts["command"] != "close":
                self._queues[message.facts["queue"]].put(message)
        except AstraFlowError as problem:
            log.error("rank_ends", rank=self._place.rank, problem=str(problem))
            os._exit(EXIT_FAILED)  # the main thread may wait for a lost rank in native code
        for commands in self._queues.values():
            commands.put(None)

    def _beat(self) -> None:
        pause = threading.Event()
        try:
            while not pause.wait(BEAT_S):
                self._channel.send(Message(facts={"beat": self._work.calls if self._work else 0}))
        except Unavailable:
            return  # the receiving thread ends the process

    def _serve(self, name: str) -> None:
        while (message := self._queues[name].get()) is not None:
            number = message.facts["number"]
            try:
                answer = self._carry_out(message)
            except Exception as problem:
                log.exception("command_failed", rank=self._place.rank, command=message.facts["command"])
                self._channel.send(Message(facts={"answer": number, "error": encode_error(problem)}))
                if not isinstance(problem, AstraFlowError | OSError):
                    os._exit(EXIT_FAILED)  # a defect, or memory that is exhausted: the rank's state is unknown
            else:
                self._channel.send(Message(facts={"answer": number, "facts": answer.facts}, arrays=answer.arrays))

    def _carry_out(self, message: Message) -> Message:
        command = message.facts["command"]
        if command == "join":
            self._device = rank_device(message.facts["device"], self._place)
            join_process_group(self._store, self._place, self._device, timeout_s=message.facts["timeout_s"])
            return Message(facts={"host": socket.gethostname()})
        if command == "build":
            self._work = self._build(message, self._device)
            return Message(facts={})
        if self._work is None or command not in self._work.commands:
            raise InvalidInput(
                f"cannot carry out {command!r}: this rank does not know the command; run the same release of AstraFlow "
                "on all ranks",
                code="trainer.invalid_message",
            )
        return self._work.commands[command](message)


def encode_error(problem: Exception) -> dict[str, object]:
    code = problem.code if isinstance(problem, AstraFlowError) else ""
    number = problem.errno if isinstance(problem, OSError) else None
    return {"type": type(problem).__name__, "message": str(problem), "code": code, "errno": number}


def _connect(store: Store, rank_place: RankPlace) -> Channel:
    """Connects to the first rank's control port. Raises: Unavailable; InvalidInput for a port of another process."""
    secret = rank_place.secret
    target, nonce, proof = (*store.get(CONTROL).decode(errors="replace").split(), "", "", "")[:3]
    if not is_proof(proof, secret, "control", target, nonce):
        raise _foreign("the address in the ranks' store is not signed with the secret of the ranks")
    address, _, port = target.rpartition(":")
    try:
        connection = socket.create_connection((address, int(port)), timeout=JOIN_TIMEOUT_S)
    except OSError as problem:
        raise Unavailable(
            f"cannot reach the first rank's control port at {target}: {problem}; allow connections between the ranks' "
            "hosts",
            code="trainer.first_rank_unreachable",
        ) from problem
    channel, own_nonce = Channel(connection), secrets.token_hex(16)
    own_proof = proof_of(secret, "rank", rank_place.rank, nonce, own_nonce)
    try:
        channel.send(Message(facts={"rank": rank_place.rank, "nonce": own_nonce, "proof": own_proof}))
        answer = channel.receive_greeting(timeout_s=JOIN_TIMEOUT_S)
        if not is_proof(answer.get("proof"), secret, "first", own_nonce):
            raise _foreign(f"the process at {target} does not have the secret of the ranks")
    except AstraFlowError:
        channel.close()
        raise
    return channel


def _foreign(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot join the ranks of a trainer: {cause}; give all ranks the same {SECRET}, and a network that only they "
        "reach",
        code="trainer.foreign_first_rank",
    )
