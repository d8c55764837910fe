"""Follows the load and the failures of a node's engines."""

import asyncio
from collections.abc import Callable, Mapping

from astraflow.contract.ids import PolicyId
from astraflow.contract.node_metrics import DRAFT_POSITIONS
from astraflow.raas.counters import NodeCounters
from astraflow.raas.drain_state import DrainState
from astraflow.raas.engines.base import Engine, EngineGauges
from astraflow.raas.tasks.capacity import Capacity
from astraflow.raas.tasks.lease_limit import LeaseLimit, LoadSample
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic

log = get_logger()

EVERY_S = 1.0
_TOTALS = {
    "engine_restarts": "restarts",
    "prompt_tokens": "prompt_tokens",
    "prompt_tokens_cached": "cached_tokens",
    "drafts": "drafts",
    "tokens_drafted": "drafted_tokens",
    "tokens_drafted_accepted": "accepted_tokens",
    "prefix_moves": "prefix_moves",
    "prefix_tokens_lost": "lost_prefix_tokens",
}
"""Fields of the gauges that only grow, by the counter of the node that follows them."""


class EngineMonitor:
    """Sets the limit of concurrent episodes and the gauges from the engines' load, and drains the node when an engine
    has failed.

    After a failure the node hands its tasks back at once: without the engine it cannot finish them.
    """

    def __init__(
        self,
        engines: Mapping[PolicyId, Engine],
        pinned_engines: Callable[[], Mapping[PolicyId, Engine]],
        *,
        limit: LeaseLimit,
        capacity: Capacity,
        counters: NodeCounters,
        drain_state: DrainState,
        on_limit: Callable[[], None],
        clock: Clock,
    ) -> None:
        """pinned_engines: returns the engines for pinned tasks that exist now. on_limit: called after a raise."""
        self._engines = engines
        self._pinned_engines = pinned_engines
        self._limit = limit
        self._capacity = capacity
        self._counters = counters
        self._drain_state = drain_state
        self._on_limit = on_limit
        self._clock = clock
        self._reported: Mapping[str, EngineGauges] = {}
        """Gauges of each engine whose totals were counted last."""

    async def run(self) -> None:
        """Observes the load every second until cancelled."""
        await periodic(self.observe, every_s=EVERY_S, clock=self._clock)

    async def observe(self) -> None:
        """Updates limit, gauges and counters once."""
        engines = {f"{policy}": engine.gauges() for policy, engine in self._engines.items()}
        engines |= {f"{policy}, pinned": engine.gauges() for policy, engine in self._pinned_engines().items()}
        before = self._capacity.slots
        peak, ended = self._capacity.take_use()
        sample = LoadSample(episodes=self._capacity.used_slots, peak=peak, ended=ended, engines=engines)
        self._capacity.set_slots(self._limit.observe(sample))
        if self._capacity.slots > before:
            self._on_limit()
        self._counters.set_gauge("lease_limit", self._capacity.slots)
        self._counters.set_gauge("engine_running", sum(gauges.running for gauges in engines.values()))
        self._counters.set_gauge("engine_waiting", sum(gauges.waiting for gauges in engines.values()))
        self._counters.set_gauge("engine_cache_used", max(gauges.cache_used for gauges in engines.values()))
        for gauges in engines.values():
            if gauges.speculation_gain is not None:
                self._counters.set_gauge("speculation_gain", gauges.speculation_gain)
            if gauges.reply_length is not None:
                self._counters.set_gauge("simulated_reply_length", gauges.reply_length)
        for name, gauges in engines.items():
            before_gauges = self._reported.get(name, EngineGauges())
            totals_before = _totals(before_gauges)
            for counter, total in _totals(gauges).items():
                increase = total - totals_before.get(counter, 0)
                self._counters.add(counter, max(0, increase))  # a restarted server counts from 0
        self._reported = engines

    async def drain_after_failure(self) -> None:
        """Waits until an engine cannot be kept running, and drains the node with the reason."""
        waits = {asyncio.create_task(engine.wait_failed()): policy for policy, engine in self._engines.items()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        failed = done.pop()
        reason = f"the engine of {waits[failed]!r} has failed: {failed.result()}"
        log.error("engine_failed", policy=waits[failed], reason=reason)
        self._counters.note_error(reason)
        self._drain_state.finish_within(0, reason)


def _totals(gauges: EngineGauges) -> Mapping[str, int]:
    """Returns what an engine has counted, by the name of the node's counter."""
    accepted = gauges.accepted_drafts
    positions = {f"drafts_accepted_{n}": accepted[n - 1] for n in DRAFT_POSITIONS if n <= len(accepted)}
    return {counter: getattr(gauges, attribute) for counter, attribute in _TOTALS.items()} | positions
