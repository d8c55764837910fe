"""Ranks of a trainer as seen by the first: starts them, sends commands, notices which one is lost or hangs."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store  # torch.distributed does not declare them

from astraflow.contract import errors
from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.runtime.clock import AwakeClock, Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.service import EXIT_FAILED, print_error
from astraflow.trainer.ranks import launch
from astraflow.trainer.ranks.channel import Message
from astraflow.trainer.ranks.launch import LaunchedRanks, RankPlace, take_launched
from astraflow.trainer.ranks.link import EXIT_WAIT_S, RankLink, accept_ranks, check_place
from astraflow.trainer.ranks.process import BEAT_S, JOIN_TIMEOUT_S
from astraflow.trainer.ranks.rendezvous import join_process_group, open_store, rank_device

T = TypeVar("T")
log = get_logger()

AWAKE_S = 5.0
"""A process that did not read the time for longer was suspended: then it could not hear ranks either. Seconds."""

REPORT_S = 10.0
"""Time in which a call must report a lost rank; then the process ends, because the call is stuck in native code."""


class RankGroup:
    """First rank's connections to the other ranks. Use as a `with`: at the end the ranks exit, or are killed.

        start ─► join (process groups) ─► call ─► call ─► ... ─► close
                       │ a rank's connection closes, or is silent for `timeout_s`, or its command takes that long
                       └──► Unavailable `trainer.rank_lost`, which names the rank: the trainer ends, its restart resumes

    A call of the main queue that is stuck in native code although a rank is lost (nccl) ends the process after
    `REPORT_S`, also when a call of another queue has raised the loss.
    """

    def __init__(self, rank_place: RankPlace, store: Store, *, timeout_s: float, clock: Clock | None = None) -> None:
        self._place = rank_place
        self._store = store
        self._timeout_s = timeout_s
        self._ranks: list[RankLink] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._changed = threading.Condition()
        self._clock = AwakeClock(clock or SystemClock(), gap_s=AWAKE_S)
        """Leaves out the time in which this process was suspended. Guarded by `_changed`."""
        self._number = 0
        self._calls: dict[int, str] = {}
        """Queues of the calls that have not returned, by number. Guarded by `_changed`."""
        self._closing = threading.Event()
        self._is_reported = False
        """True when a call of any queue has raised the loss of a rank. Guarded by `_changed`."""
        self.device = torch.device("cpu")
        """Device of this rank."""

    @classmethod
    def start(
        cls, *, ranks: int, device: str, timeout_s: float, threads: int, command: Sequence[str] | None = None
    ) -> Self:
        """Starts the other ranks, or waits for them where the environment has RANK=0; joins them to a process group.

        ranks: of the recipe. timeout_s: longest silence of a rank, and longest wait for another rank. Blocks.
        Raises: InvalidInput when WORLD_SIZE is not `ranks`, or for the device; Unavailable when a rank does not start.
        """
        first_rank = RankPlace.from_environment()
        if first_rank is None:
            launched = None if command else take_launched(ranks=ranks, threads=threads)
            launched = launched or LaunchedRanks.launch(
                ranks=ranks, threads=threads, command=command or launch.RANK_COMMAND
            )
            rank_group = cls(launched.place, open_store(launched.place, timeout_s=timeout_s), timeout_s=timeout_s)
            rank_group._processes = launched.processes
        else:
            check_place(first_rank, ranks)
            rank_group = cls(first_rank, open_store(first_rank, timeout_s=JOIN_TIMEOUT_S), timeout_s=timeout_s)
        try:
            rank_group._connect()
            rank_group._join(device)
        except BaseException:
            rank_group.close(is_failed=True)
            raise
        return rank_group

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_failed=kind is not None)

    @property
    def ranks(self) -> int:
        return self._place.ranks

    @property
    def processes(self) -> Mapping[int, int]:
        """Process ids of the ranks that this process started, by rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def call(
        self,
        command: str,
        own: Callable[[], T],
        *,
        facts: Mapping[str, Any] | None = None,
        messages: Sequence[Message] = (),
        queue: str = "main",
        is_long: bool = False,
        calls: Callable[[], int] = lambda: 0,
    ) -> tuple[T, list[Message]]:
        """Runs a command on all ranks: `own` here, in this thread. Returns its result and the others' answers.

        facts: the same for all ranks; messages: else, one for each rank but the first. calls: this rank's
        `RankWork.calls`. is_long: a rank that is alive may take any time. One call at a time in each queue.
        Raises: an error of `own`; else that of the first rank that failed; Unavailable when a rank is lost.
        """
        number = self._begin(queue)
        try:
            self._send(number, command, messages or [Message(facts=facts or {})] * len(self._ranks), queue)
            began_at = self._now()
            try:
                result = own()
                return result, self._answers(number, command, limit_s=None if is_long else self._timeout_s)
            except (RuntimeError, Unavailable):  # of collectives: another rank has failed, is lost, or takes too long
                self._raise_cause(number, calls(), waited_s=self._now() - began_at)
                raise
        finally:
            self._end(number)

    def close(self, *, is_failed: bool = False) -> None:
        """Ends the ranks; kills those that do not exit in time, or all at once after a failure or during a call."""
        if self._closing.is_set():
            return
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        is_failed = is_failed or bool(self._calls) or any(rank.loss for rank in self._ranks)
        for rank in self._ranks:
            if not is_failed:
                try:
                    rank.channel.send(Message(facts={"command": "close"}))
                except Unavailable as problem:
                    log.warning("rank_lost", rank=rank.number, problem=str(problem))
        deadline = time.monotonic() + (0 if is_failed else EXIT_WAIT_S)
        for process in self._processes.values():
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
        for rank in self._ranks:
            rank.channel.close()
        if dist.is_initialized() and not is_failed:
            dist.destroy_process_group()

    def _connect(self) -> None:
        self._ranks = accept_ranks(self._store, self._place, self._processes)
        for rank in self._ranks:
            rank.heard_at = self._now()
            threading.Thread(target=self._listen, args=(rank,), daemon=True).start()
        if self._ranks:
            threading.Thread(target=self._watch, daemon=True).start()

    def _join(self, device: str) -> None:
        self.device = rank_device(device, self._place)
        if self._processes:  # else each rank checks its own host
            rank_device(device, replace(self._place, rank=self.ranks - 1, local_rank=self.ranks - 1))
        _, answers = self.call(
            "join",
            lambda: join_process_group(self._store, self._place, self.device, timeout_s=self._timeout_s),
            facts={"device": device, "timeout_s": self._timeout_s},
        )
        hosts = sorted({answer.facts["host"] for answer in answers} | {socket.gethostname()})
        log.info("ranks_joined", ranks=self.ranks, hosts=hosts, device=str(self.device))

    def _begin(self, queue: str) -> int:
        """Returns the number of a new call. Raises: Unavailable when a rank is lost: a collective would not return."""
        with self._changed:
            if any(rank.loss for rank in self._ranks):
                raise self._lost()
            self._number += 1
            self._calls[self._number] = queue
            return self._number

    def _end(self, number: int) -> None:
        """Ends a call and discards its answers, also those that arrive later."""
        with self._changed:
            del self._calls[number]
            for rank in self._ranks:
                rank.answers.pop(number, None)
            self._changed.notify_all()

    def _send(self, number: int, command: str, messages: Sequence[Message], queue: str) -> None:
        for rank, message in zip(self._ranks, messages, strict=True):
            facts = {**message.facts, "command": command, "queue": queue, "number": number}
            try:
                rank.channel.send(Message(facts=facts, arrays=message.arrays))
            except Unavailable as problem:
                self._lose(rank, rank.exit_text())
                raise self._lost() from problem

    def _answers(self, number: int, command: str, *, limit_s: float | None) -> list[Message]:
        """Waits for all answers. A rank that is alive but does not answer within the limit is lost too."""
        deadline = self._now() + (float("inf") if limit_s is None else limit_s)
        with self._changed:
            while any(number not in rank.answers for rank in self._ranks):
                self._raise_failure(number)
                if any(rank.loss for rank in self._ranks):
                    raise self._lost()
                if not self._changed.wait(min(1.0, max(0.0, deadline - self._now()))) and self._now() >= deadline:
                    for rank in self._ranks:
                        if number not in rank.answers:
                            rank.loss = rank.loss or f"gave no answer to {command!r} for {self._timeout_s:g} s"
                    raise self._lost()
            self._raise_failure(number)
            answers = [rank.answers[number] for rank in self._ranks]
        return [Message(facts=answer.facts["facts"], arrays=answer.arrays) for answer in answers]

    def _raise_failure(self, number: int) -> None:
        """Raises the error of the first rank that answered with one."""
        for rank in self._ranks:
            error = rank.answers[number].facts.get("error") if number in rank.answers else None
            if error:
                problem = decode_error(rank.number, error)
                if isinstance(problem, Unavailable):  # the rank ends
                    self._is_reported = True
                raise problem

    def _raise_cause(self, number: int, own_calls: int, *, waited_s: float) -> None:
        """Raises what made a collective fail on this rank, if it is another rank's failure or loss."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(rank.loss or number in rank.answers for rank in self._ranks), timeout=4 * BEAT_S
            )
            self._raise_failure(number)
            if waited_s >= 0.9 * self._timeout_s and not any(rank.loss for rank in self._ranks):
                self._name_hung_rank(number, own_calls)
            if any(rank.loss for rank in self._ranks):
                raise self._lost()

    def _name_hung_rank(self, number: int, own_calls: int) -> None:
        """Records the rank for which a collective has waited as lost: a silent rank, otherwise a rank that is
        behind."""
        now = self._now()
        working = [rank for rank in self._ranks if number not in rank.answers]
        for rank in working:
            if now - rank.heard_at > 4 * BEAT_S:
                rank.loss = f"sent nothing for {now - rank.heard_at:.0f} s"
                return
        slowest = min(working, key=lambda rank: rank.calls, default=None)
        if slowest is not None and slowest.calls < own_calls:
            slowest.loss = f"did not take part in a collective operation for {self._timeout_s:g} s"

    def _lost(self) -> Unavailable:
        """Returns the error for a caller, to whom it reports the lost ranks."""
        with self._changed:
            self._is_reported = True
        lost = "; ".join(f"rank {rank.number} {rank.loss}" for rank in self._ranks if rank.loss)
        return Unavailable(
            f"cannot go on training: {lost}; restart the trainer, as its launcher does by itself: it resumes from its "
            "checkpoint",
            code="trainer.rank_lost",
        )

    def _listen(self, rank: RankLink) -> None:
        """Receives the messages of a rank until its connection closes."""
        try:
            while True:
                message = rank.channel.receive()
                with self._changed:
                    rank.heard_at = self._now()
                    if (number := message.facts.get("answer")) in self._calls:
                        rank.answers[number] = message
                    elif number is None:  # else the call has ended before its answer
                        rank.calls = message.facts["beat"]
                    self._changed.notify_all()
        except AstraFlowError as problem:
            if not self._closing.is_set():
                self._lose(rank, rank.exit_text() or str(problem))

    def _watch(self) -> None:
        """Records silent ranks as lost; ends the process when no call reports a lost rank in time, or when a call of
        the main queue does not return in time: another queue's report does not free a collective."""
        while not self._closing.wait(BEAT_S):
            for rank in self._silent_ranks():
                self._lose(rank, f"sent nothing for {self._timeout_s:g} s")
            if any(rank.loss for rank in self._ranks):
                break
        with self._changed:
            if not any(rank.loss for rank in self._ranks) or self._changed.wait_for(self._is_handled, REPORT_S):
                return
        print_error(self._lost())
        os._exit(EXIT_FAILED)

    def _silent_ranks(self) -> list[RankLink]:
        with self._changed:
            return [rank for rank in self._ranks if self._now() - rank.heard_at > self._timeout_s]

    def _now(self) -> float:
        with self._changed:
            return self._clock.now()

    def _is_handled(self) -> bool:
        """Returns whether the owner knows of a loss and no call of the main queue waits for a rank."""
        return (self._is_reported or self._closing.is_set()) and "main" not in self._calls.values()

    def _lose(self, rank: RankLink, why: str) -> None:
        with self._changed:
            rank.loss = rank.loss or why
            self._changed.notify_all()
        log.error("rank_lost", rank=rank.number, why=why)


def decode_error(rank: int, error: Mapping[str, Any]) -> Exception:
    """Returns the error that a rank sent: of its own type if it is one of ours or of the operating system."""
    text = f"rank {rank}: {error['message']}"
    if error["errno"] is not None:
        return OSError(error["errno"], text)
    kind = getattr(errors, error["type"], None)
    if isinstance(kind, type) and issubclass(kind, AstraFlowError):
        return kind(text, code=error["code"])
    return Unavailable(
        f"cannot go on training: rank {rank} failed: {error['type']}: {error['message']}; its traceback is in the log",
        code="trainer.rank_failed",
    )
