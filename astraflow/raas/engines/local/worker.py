"""The thread that owns the model: between two decode steps it does what it is told, then it goes on."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from astraflow.contract.errors import Unavailable
from astraflow.contract.generation import Finish, Generation
from astraflow.contract.ids import Version
from astraflow.raas.engines.local.batcher import Batcher, Ended
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Generic[T]):
    """A change of weights, and how long nobody got a token for it."""

    swapped: T
    pause_s: float
    apply_s: float
    ended_at: float
    """`time.perf_counter` after the swap."""
    resumed_at: "Future[float]"
    """`time.perf_counter` when the first of what was interrupted had been computed anew, or nothing was to be."""


class Worker:
    """Runs a batcher in a thread of its own. The model is touched there and nowhere else, so nothing needs a lock.

    Public methods of the first group may be called from any thread; the others only inside `call`, which runs them in
    the worker's thread between two steps.

        queued ──admit──► running ──► answered        paused: only scoring runs; the rest waits in the queue
          ▲                  │
          └──────evict───────┘  (a weight swap, a pause)
    """

    def __init__(self, batcher: Batcher, *, threads: int, patience_steps: int) -> None:
        self.version: Version | None = None
        self._batcher = batcher
        self._threads = threads
        self._patience_steps = patience_steps
        self._waited_steps = 0
        self._is_paused = False
        self._queued: deque[Sequence] = deque()
        self._scoring: deque[Sequence] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._arrived: deque[Sequence] = deque()
        self._resuming: list[Future[float]] = []
        self._is_closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="local_torch", daemon=True)

    # From any thread.

    def start(self) -> None:
        """Start the thread; `close` ends it."""
        self._thread.start()

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue these; their replies are set in their own event loops. Raises: Unavailable after `close`."""
        with self._wake:
            self._refuse_when_closing()
            self._arrived.extend(sequences)
            self._wake.notify()

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` in the worker's thread, between two steps. Raises: Unavailable after `close`."""
        reply: Future[T] = Future()
        with self._wake:
            self._refuse_when_closing()
            self._calls.append(lambda: _fulfil(reply, work))
            self._wake.notify()
        return reply

    def close(self) -> None:
        """End everything with `Finish.ABORT` and wait for the thread to end. A second call does nothing."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    # Inside `call` only.

    def pause(self, *, is_abort: bool) -> None:
        """Stop generating: what runs ends now, or goes back into the queue to be continued."""
        self._is_paused = True
        self._evict()
        if is_abort:
            self._answer([Ended(sequence=sequence, finish=Finish.ABORT) for sequence in self._queued])
            self._queued.clear()

    def resume(self) -> None:
        """Take from the queue again."""
        self._is_paused = False

    def serve(self, version: Version, swap: Callable[[], T]) -> "Served[T]":
        """Change the weights. No cached key or value survives it: what runs is computed anew with the new ones."""
        began = time.perf_counter()
        self._evict()
        evicted = time.perf_counter()
        swapped = swap()
        self.version = version
        resumed: Future[float] = Future()
        self._resuming.append(resumed)
        ended = time.perf_counter()
        return Served(
            swapped=swapped, pause_s=evicted - began, apply_s=ended - evicted, ended_at=ended, resumed_at=resumed
        )

    def abort(self, is_meant: Callable[[Sequence], bool]) -> None:
        """End these requests now, if they are there."""
        aborted = self._batcher.remove(is_meant)
        for queue in (self._queued, self._scoring):
            found = [sequence for sequence in queue if is_meant(sequence)]
            for sequence in found:
                queue.remove(sequence)
            aborted += found
        self._answer([Ended(sequence=sequence, finish=Finish.ABORT) for sequence in aborted])

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while self._take_turn():
            pass
        self._evict()
        self._note_resumed()
        self._answer([Ended(sequence=s, finish=Finish.ABORT) for s in (*self._scoring, *self._queued)])

    def _take_turn(self) -> bool:
        """What arrived, then one step; False when it is time to end."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            calls, self._calls = self._calls, deque()
            arrived, self._arrived = self._arrived, deque()
            is_closing = self._is_closing
        for sequence in arrived:
            (self._queued if sequence.forced is None else self._scoring).append(sequence)
        for run in calls:
            run()
        if is_closing:
            return False
        try:
            self._answer(self._admit())
            self._note_resumed()
            self._answer(self._batcher.step())
        except Exception as problem:  # of the model or its memory: it belongs to the callers of all that ran
            log.exception("engine_step_failed", sequences=len(self._batcher.running))
            self._fail(problem)
        self._note_resumed()
        return True

    def _has_work(self) -> bool:
        is_idle = not (self._batcher.running or self._scoring or (self._queued and not self._is_paused))
        return bool(self._calls or self._arrived or self._is_closing) or not is_idle

    def _admit(self) -> list[Ended]:
        """Let some join. A prefill costs everybody a step, so a few newcomers wait for company, but not for long."""
        if self._scoring:
            return self._batcher.admit(self._scoring)
        if self._is_paused or not self._queued:
            return []
        self._waited_steps += 1
        is_worth_it = 4 * len(self._queued) >= len(self._batcher.running)
        if not is_worth_it and self._waited_steps <= self._patience_steps:
            return []
        self._waited_steps = 0
        return self._batcher.admit(self._queued)

    def _evict(self) -> None:
        """Everything that runs goes back to the front of its queue, to be prefilled again."""
        for sequence in reversed(self._batcher.evict()):
            if sequence.forced is None:
                self._close_span(sequence)
                self._queued.appendleft(sequence)
            else:
                sequence.start_over()
                self._scoring.appendleft(sequence)

    def _note_resumed(self) -> None:
        resuming, self._resuming = self._resuming, []
        for resumed in resuming:
            resumed.set_result(time.perf_counter())

    def _close_span(self, sequence: Sequence) -> None:
        if self.version is not None:
            sequence.close_span(self.version)

    def _answer(self, ended: list[Ended]) -> None:
        settled: list[tuple[asyncio.Future[Generation], Generation | Exception]] = []
        for end in ended:
            self._close_span(end.sequence)
            settled.append((end.sequence.reply, end.sequence.generation(end.finish)))
        _settle(settled)

    def _fail(self, problem: Exception) -> None:
        _settle([(sequence.reply, problem) for sequence in self._batcher.evict()])

    def _refuse_when_closing(self) -> None:
        if self._is_closing:
            raise Unavailable("the engine is closed")


def _fulfil(reply: "Future[T]", work: Callable[[], T]) -> None:
    if not reply.set_running_or_notify_cancel():
        return
    try:
        reply.set_result(work())
    except Exception as problem:
        reply.set_exception(problem)


def _settle(replies: list[tuple[asyncio.Future[Generation], Generation | Exception]]) -> None:
    """Hand answers to the event loops that wait for them, each loop woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Generation], Generation | Exception]]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set, own)
        except RuntimeError:  # the loop was closed: nobody waits any more
            log.info("answers_abandoned", count=len(own))


def _set(replies: list[tuple[asyncio.Future[Generation], Generation | Exception]]) -> None:
    for future, outcome in replies:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
