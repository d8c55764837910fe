"""Thread that owns the model: runs requested calls between two decode steps."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from astraflow.contract.errors import Unavailable
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.engines.local.batcher import Batcher, EndedSequence
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.runtime.logs import get_logger

T = TypeVar("T")
log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult(Generic[T]):
    """Result of a weight swap, and the time without token generation in seconds."""

    result: T
    pause_s: float
    apply_s: float
    ended_at: float
    """`time.perf_counter` after the swap."""
    resumed_at: "Future[float]"
    """`time.perf_counter` when the first interrupted sequence was computed again, or when there was none."""


class Worker:
    """Runs a batcher in a separate thread. Only that thread uses the model, so no lock is needed.

    Public methods of the first group may be called from any thread; the others only within `call`, which runs them in
    the worker's thread between two steps.

        queued ──admit──► running ──► answered        paused: only scoring runs; other requests wait in the queue
          ▲                  │
          └──────evict───────┘  (a weight swap, a pause)
    """

    def __init__(self, batcher: Batcher, *, threads: int, max_admission_wait_steps: int) -> None:
        self.version: Version | None = None
        self._batcher = batcher
        self._threads = threads
        self._max_admission_wait_steps = max_admission_wait_steps
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
        """Starts the thread; `close` ends it."""
        self._thread.start()

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queues sequences; their replies are set in their own event loops. Raises: Unavailable after `close`."""
        with self._wake:
            self._check_not_closing()
            self._arrived.extend(sequences)
            self._wake.notify()

    def gauges(self) -> EngineGauges:
        """Returns the load; the numbers may be of different steps."""
        waiting = len(self._queued) + len(self._arrived) + len(self._scoring)
        gauges = EngineGauges(running=len(self._batcher.running), waiting=waiting, cache_used=self._batcher.cache_used)
        speculation = self._batcher.speculation
        if speculation is None:
            return gauges
        return replace(
            gauges,
            drafts=speculation.counts.drafts,
            drafted_tokens=speculation.counts.drafted,
            accepted_tokens=speculation.counts.accepted,
            accepted_drafts=tuple(speculation.counts.accepted_at),
            speculation_gain=speculation.gain,
        )

    def call(self, work: Callable[[], T]) -> "Future[T]":
        """Runs `work` in the worker's thread between two steps. Raises: Unavailable after `close`."""
        reply: Future[T] = Future()
        with self._wake:
            self._check_not_closing()
            self._calls.append(lambda: _fulfil(reply, work))
            self._wake.notify()
        return reply

    def close(self) -> None:
        """Ends all requests with `Finish.ABORT` and waits for the thread to end. A second call does nothing."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    # Only within `call`.

    def use(self, batcher: Batcher) -> None:
        """Replaces the batcher, before the first request is admitted."""
        self._batcher = batcher

    def pause(self, *, is_abort: bool) -> None:
        """Stops generation: running requests end now, or return to the queue to continue later."""
        self._is_paused = True
        self._evict()
        if is_abort:
            self._answer([EndedSequence(sequence=sequence, finish=Finish.ABORT) for sequence in self._queued])
            self._queued.clear()

    def resume(self) -> None:
        """Admits queued requests again."""
        self._is_paused = False

    def swap_weights(self, version: Version, swap: Callable[[], T]) -> "SwapResult[T]":
        """Swaps the weights and discards the cache: running sequences are computed again with the new weights.

        After an error of `swap` the weights are unknown: `version` is None, and all requests fail.
        """
        began = time.perf_counter()
        self._evict()
        evicted = time.perf_counter()
        self.version = None
        swapped = swap()
        self.version = version
        resumed: Future[float] = Future()
        self._resuming.append(resumed)
        ended = time.perf_counter()
        return SwapResult(
            result=swapped, pause_s=evicted - began, apply_s=ended - evicted, ended_at=ended, resumed_at=resumed
        )

    def abort(self, matches: Callable[[Sequence], bool]) -> None:
        """Ends the matching requests at once."""
        aborted = self._batcher.remove(matches)
        for queue in (self._queued, self._scoring):
            matching = [sequence for sequence in queue if matches(sequence)]
            for sequence in matching:
                queue.remove(sequence)
            aborted += matching
        self._answer([EndedSequence(sequence=sequence, finish=Finish.ABORT) for sequence in aborted])

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while self._run_step():
            pass
        self._evict()
        self._note_resumed()
        self._answer([EndedSequence(sequence=s, finish=Finish.ABORT) for s in (*self._scoring, *self._queued)])

    def _run_step(self) -> bool:
        """Handles arrived requests and calls, then runs one step; returns False on closing."""
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
        if self.version is None:
            self._fail_waiting()
        try:
            for ended in self._admit():
                self._answer(ended)
            self._note_resumed()
            self._answer(self._batcher.step())
        except Exception as problem:  # an error of the model or its memory fails all running requests
            log.exception("engine_step_failed", sequences=len(self._batcher.running))
            self._fail(problem)
        self._note_resumed()
        return True

    def _has_work(self) -> bool:
        is_idle = not (self._batcher.running or self._scoring or (self._queued and not self._is_paused))
        return bool(self._calls or self._arrived or self._is_closing) or not is_idle

    def _admit(self) -> Iterable[list[EndedSequence]]:
        """Admits queued sequences; yields those that ended at once.

        A prefill delays all running sequences, so a few new sequences wait for more.
        """
        if self._scoring:
            return self._batcher.admit(self._scoring)
        if self._is_paused or not self._queued:
            return []
        self._waited_steps += 1
        is_worth_it = 4 * len(self._queued) >= len(self._batcher.running)
        if not is_worth_it and self._waited_steps <= self._max_admission_wait_steps:
            return []
        self._waited_steps = 0
        return self._batcher.admit(self._queued)

    def _evict(self) -> None:
        """Moves the running sequences to the front of their queue, to be prefilled again."""
        for sequence in reversed(self._batcher.evict()):
            if sequence.forced is None:
                self._close_span(sequence)
                self._queued.appendleft(sequence)
            else:
                sequence.reset()
                self._scoring.appendleft(sequence)

    def _note_resumed(self) -> None:
        resuming, self._resuming = self._resuming, []
        for resumed in resuming:
            resumed.set_result(time.perf_counter())

    def _close_span(self, sequence: Sequence) -> None:
        if self.version is not None:
            sequence.close_span(self.version)

    def _answer(self, ended: list[EndedSequence]) -> None:
        settled: list[tuple[asyncio.Future[Generation], Generation | Exception]] = []
        for end in ended:
            self._close_span(end.sequence)
            settled.append((end.sequence.reply, end.sequence.generation(end.finish)))
        _deliver(settled)

    def _fail(self, problem: Exception) -> None:
        _deliver([(sequence.reply, problem) for sequence in self._batcher.evict()])

    def _fail_waiting(self) -> None:
        problem = Unavailable(
            "cannot continue the request: the weights of the engine are unknown after a failed load; load a version",
            code="engine.no_weights",
        )
        _deliver([(sequence.reply, problem) for sequence in (*self._queued, *self._scoring)])
        self._queued.clear()
        self._scoring.clear()

    def _check_not_closing(self) -> None:
        if self._is_closing:
            raise Unavailable(
                "cannot run the request: the engine is closed; send it to another engine", code="engine.closed"
            )


def _fulfil(reply: "Future[T]", work: Callable[[], T]) -> None:
    if not reply.set_running_or_notify_cancel():
        return
    try:
        reply.set_result(work())
    except Exception as problem:
        reply.set_exception(problem)


def _deliver(replies: list[tuple[asyncio.Future[Generation], Generation | Exception]]) -> None:
    """Delivers results to the event loops that wait for them; wakes each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Generation], Generation | Exception]]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    for loop, results in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_results, results)
        except RuntimeError:  # the loop was closed, so no caller waits
            log.info("results_discarded", count=len(results))


def _set_results(replies: list[tuple[asyncio.Future[Generation], Generation | Exception]]) -> None:
    for future, outcome in replies:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
