"""Limit of concurrent episodes of a node, derived from the load of its engines."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor

from astraflow.raas.engines.base import EngineGauges

FIRST_LIMIT = 32
"""Limit before the first measurement."""
GROWTH = 2.0
"""Growth of the limit in each evaluation, until a queue or a full cache was seen for the first time."""
LATER_GROWTH = 1.1
"""Growth of the limit in each evaluation after that."""
MAX_UNUSED = 2.0
"""Largest limit that growth leads to, over the episodes that ran at once."""
GROW_QUEUE = 0.05
"""Waiting over running requests up to which an engine counts as having no queue."""
TARGET_QUEUE = 0.1
"""Waiting over running requests at the limit: the next request is at hand when one ends."""
SHRINK_QUEUE = 0.5
"""Waiting over running requests from which the limit shrinks. `local_torch` queues up to a quarter on purpose."""
CACHE_TARGET = 0.9
"""Used share of the key-value cache that the limit may lead to."""
CACHE_FULL = 0.95
"""Used share of the key-value cache from which the limit shrinks."""
_GROW_SAMPLES = 2
_SHRINK_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """Load of a node at one time."""

    episodes: int
    """Running episodes."""
    peak: int
    """Most episodes that ran at once since the sample before."""
    ended: int = 0
    """Episodes that ended since the sample before."""
    engines: Mapping[str, EngineGauges]
    """Load of each engine, by any stable name."""


class LeaseLimit:
    """Decides the limit from one load sample per evaluation (once a second).

    - The limit starts low and doubles, up to twice the episodes that ran at once, while no engine has a queue and the
      cache use scaled to the larger limit stays below `CACHE_TARGET`. A slow engine shows its queue before it holds
      many episodes. A limit that is not used does not grow: its engine was not tested at that load.
    - The limit shrinks when requests wait in every one of three samples, or the cache is full. One sample means
      nothing: a batching engine queues new requests between two steps. The sample with the shortest queue counts.
    - An episode does not use its engine all the time: tools and environments take time too. Its share of requests is
      measured: `(running + waiting) / episodes`. If the engine runs `running` of them, then
      `episodes * running / (running + waiting)` episodes keep it busy, plus a short queue. The excess episodes finish
      in the meantime; they do not shrink the limit further, because the formula gives the same limit for them.
    - After the first queue or full cache the limit grows slowly, so that it stays near the measured one, and follows
      when answers become shorter.
    - Without a running request and without an episode that ended nothing changes: the engines load weights or restart,
      or all episodes use tools.
    - Of several engines, the most loaded engine decides. The limit is at least 1 and at most `capacity`.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: upper limit, set by the operator."""
        self.capacity = capacity
        self.limit = min(capacity, FIRST_LIMIT)
        """Limit in effect. Episodes."""
        self._samples: deque[LoadSample] = deque(maxlen=_SHRINK_SAMPLES)
        self._has_been_full = False

    def observe(self, sample: LoadSample) -> int:
        """Returns the limit after this sample."""
        self._samples.append(sample)
        is_running = any(gauges.running for load_sample in self._samples for gauges in load_sample.engines.values())
        if not is_running and not sample.ended:
            return self.limit
        sustained = min((self._sustained_episodes(name) for name in sample.engines), default=None)
        if sustained is not None and sustained < self.limit:
            self._has_been_full = True
            self.limit = max(1, floor(sustained))
        elif self._has_no_queue():
            growth = LATER_GROWTH if self._has_been_full else GROWTH
            unused_limit = ceil(MAX_UNUSED * max(load_sample.peak for load_sample in self._samples))
            grown = min(self.capacity, ceil(self.limit * growth), unused_limit, self._cache_limit(sample))
            self.limit = max(self.limit, grown)
        return self.limit

    def _sustained_episodes(self, name: str) -> float:
        """Returns the episodes that keep an engine busy without a long queue; infinite unless it is overloaded."""
        loads = [
            (load_sample.episodes, load_sample.engines[name])
            for load_sample in self._samples
            if name in load_sample.engines
        ]
        loads = [(episodes, gauges) for episodes, gauges in loads if gauges.running]
        if len(loads) < _SHRINK_SAMPLES:
            return float("inf")
        limits = [float("inf")]
        episodes, shortest = min(loads, key=lambda load: _queue(load[1]))
        if _queue(shortest) > SHRINK_QUEUE:
            limits.append(episodes * (1 + TARGET_QUEUE) / (1 + _queue(shortest)))
        episodes, emptiest = min(loads, key=lambda load: load[1].cache_used)
        if emptiest.cache_used > CACHE_FULL:
            limits.append(episodes * CACHE_TARGET / emptiest.cache_used)
        return min(limits)

    def _has_no_queue(self) -> bool:
        latest = list(self._samples)[-_GROW_SAMPLES:]
        queues = [
            min(_queue(load_sample.engines[name]) for load_sample in latest if name in load_sample.engines)
            for name in latest[-1].engines
        ]
        return all(queue <= GROW_QUEUE for queue in queues)

    def _cache_limit(self, sample: LoadSample) -> int:
        """Returns the episodes that would fill the fullest cache up to its target."""
        cache_used = max((gauges.cache_used for gauges in sample.engines.values()), default=0.0)
        if cache_used * self.capacity <= sample.episodes * CACHE_TARGET:  # also without a cache, or a value near 0
            return self.capacity
        return floor(sample.episodes * CACHE_TARGET / cache_used)


def _queue(gauges: EngineGauges) -> float:
    """Returns waiting over running requests; 0 without a running request."""
    return gauges.waiting / gauges.running if gauges.running else 0.0
