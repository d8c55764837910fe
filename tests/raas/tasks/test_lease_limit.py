from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.tasks.lease_limit import CACHE_FULL, FIRST_LIMIT, LeaseLimit, LoadSample


def sample(episodes: int, **engines: EngineGauges) -> LoadSample:
    return LoadSample(episodes=episodes, peak=episodes, engines=engines)


@dataclass(kw_only=True)
class SimulatedEngine:
    """Engine that generates for at most `slots` requests, and queues the others."""

    slots: int = 10**6
    cache_requests: float = float("inf")
    """Requests that fill the cache."""
    requests_per_episode: float = 1.0

    def load(self, episodes: int) -> EngineGauges:
        requests = round(episodes * self.requests_per_episode)
        running = int(min(requests, self.slots, self.cache_requests))
        return EngineGauges(
            running=running, waiting=requests - running, cache_used=min(1.0, requests / self.cache_requests)
        )


def settled(limit: LeaseLimit, engine: SimulatedEngine, *, seconds: int = 120, episodes: int | None = None) -> int:
    """Returns the limit after a time in which all of it is used, or `episodes` of it."""
    for _ in range(seconds):
        used = limit.limit if episodes is None else min(episodes, limit.limit)
        limit.observe(sample(used, solver=engine.load(used)))
    return limit.limit


def test_the_limit_doubles_up_to_the_capacity_while_the_engine_has_no_queue() -> None:
    limit = LeaseLimit(capacity=200)
    engine = SimulatedEngine()

    limits = [limit.observe(sample(limit.limit, solver=engine.load(limit.limit))) for _ in range(4)]

    assert limits == [2 * FIRST_LIMIT, 4 * FIRST_LIMIT, 200, 200]
    assert LeaseLimit(capacity=3).limit == 3


def test_an_unused_limit_does_not_grow() -> None:
    assert settled(LeaseLimit(capacity=1000), SimulatedEngine(), episodes=FIRST_LIMIT // 2) == FIRST_LIMIT
    assert settled(LeaseLimit(capacity=1000), SimulatedEngine(), episodes=20) == 40


def test_episodes_that_end_between_samples_count_as_use() -> None:
    limit = LeaseLimit(capacity=100)
    for _ in range(4):
        limit.observe(LoadSample(episodes=0, peak=limit.limit, ended=500, engines={"solver": EngineGauges()}))

    assert limit.limit == 100


def test_the_limit_settles_slightly_above_the_engines_batch_size() -> None:
    assert 64 <= settled(LeaseLimit(capacity=4096), SimulatedEngine(slots=64)) <= 80
    assert 5 <= settled(LeaseLimit(capacity=4096), SimulatedEngine(slots=5)) <= 7


def test_the_limit_counts_engine_requests_instead_of_episodes() -> None:
    engine = SimulatedEngine(slots=64, requests_per_episode=0.25)

    assert 256 <= settled(LeaseLimit(capacity=4096), engine) <= 320


def test_the_limit_leaves_room_in_the_cache() -> None:
    assert 80 <= settled(LeaseLimit(capacity=4096), SimulatedEngine(cache_requests=100)) <= 90


def test_a_full_cache_lowers_the_limit() -> None:
    limit = LeaseLimit(capacity=4096)
    settled(limit, SimulatedEngine(cache_requests=100))
    for _ in range(3):
        limit.observe(sample(80, solver=EngineGauges(running=80, cache_used=CACHE_FULL + 0.02)))

    assert limit.limit == int(80 * 0.9 / (CACHE_FULL + 0.02))


def test_running_excess_episodes_do_not_lower_the_limit_further() -> None:
    limit = LeaseLimit(capacity=4096)
    settled(limit, SimulatedEngine(), episodes=500)
    limits = [limit.observe(sample(500, solver=EngineGauges(running=64, waiting=436))) for _ in range(60)]

    assert limits[-1] in range(64, 72)
    assert limits[3:] == limits[3:4] * 57


def test_a_short_queue_between_engine_steps_does_not_change_the_limit() -> None:
    limit = LeaseLimit(capacity=4096)
    settled(limit, SimulatedEngine(slots=64))
    before = limit.limit
    for second in range(60):
        waiting = 40 if second % 3 else 4
        limit.observe(sample(before, solver=EngineGauges(running=before - waiting, waiting=waiting)))

    assert limit.limit == before


def test_the_limit_follows_a_slower_or_faster_engine() -> None:
    limit = LeaseLimit(capacity=4096)
    settled(limit, SimulatedEngine(slots=200))
    assert 20 <= settled(limit, SimulatedEngine(slots=20)) <= 25
    assert 200 <= settled(limit, SimulatedEngine(slots=200), seconds=60) <= 250


def test_the_limit_does_not_fall_while_no_request_runs() -> None:
    limit = LeaseLimit(capacity=4096)
    settled(limit, SimulatedEngine(slots=64))
    before = limit.limit
    for _ in range(10):
        limit.observe(sample(before, solver=EngineGauges(running=0, waiting=before)))

    assert limit.limit in range(before, round(before * 1.25)), "an engine that loads weights or restarts"


def test_the_most_loaded_engine_determines_the_limit() -> None:
    limit = LeaseLimit(capacity=4096)
    fast, slow = SimulatedEngine(), SimulatedEngine(slots=10)
    for _ in range(120):
        limit.observe(sample(limit.limit, solver=fast.load(limit.limit), verifier=slow.load(limit.limit)))

    assert 10 <= limit.limit <= 13


@pytest.mark.long
@given(
    st.integers(1, 4096),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1)), max_size=50),
)
def test_the_limit_stays_between_one_and_the_capacity(capacity: int, loads: list[tuple[int, int, int, float]]) -> None:
    limit = LeaseLimit(capacity)
    for episodes, running, waiting, cache_used in loads:
        gauges = EngineGauges(running=running, waiting=waiting, cache_used=cache_used)
        assert 1 <= limit.observe(sample(episodes, solver=gauges)) <= capacity
