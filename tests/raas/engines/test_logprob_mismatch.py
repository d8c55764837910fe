import asyncio

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.contract.weights import Probe
from astraflow.raas.engines import logprob_mismatch as logprob_mismatch_module
from astraflow.raas.engines.base import EXACT, ROUNDED, UNLIMITED, EngineGauges, LogprobTolerance
from astraflow.raas.engines.logprob_mismatch import LogprobMismatch, MismatchHistory, compare_logprobs, logprob_mismatch
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio


class Echo(FakeEngine):
    """Reports minus the token as its logprob."""

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        return -tokens[scored_from:].astype(np.float32)


def probe(logprobs: list[float], *, lengths: tuple[int, ...] = (3, 4), scored_from: tuple[int, ...] = (1, 2)) -> Probe:
    return Probe(
        tokens=np.arange(7, dtype="<i4").tobytes(),
        lengths=lengths,
        scored_from=scored_from,
        logprobs=np.array(logprobs, dtype="<f4").tobytes(),
    )


async def test_the_mismatch_is_the_largest_difference_over_all_sequences() -> None:
    assert (await logprob_mismatch(Echo(), probe([-1, -2, -5, -6]))).max == 0
    mismatch = await logprob_mismatch(Echo(), probe([-1, -2.25, -5, -5.875]))
    assert (mismatch.max, mismatch.mean, mismatch.tokens) == (0.25, 0.09375, 4)
    assert (await logprob_mismatch(Echo(), probe([-5, -6], scored_from=(3, 2)))).max == 0


async def test_a_logprob_that_is_not_a_number_is_an_infinite_mismatch() -> None:
    mismatch = await logprob_mismatch(Echo(), probe([-1, float("nan"), -5, -6]))
    assert (mismatch.max, mismatch.mean, mismatch.p99) == (np.inf, np.inf, np.inf)


@pytest.mark.parametrize(
    ("differences", "tolerance", "is_accepted"),
    [
        ([9e-4] * 4, EXACT, True),
        ([0.0, 2e-3], EXACT, False),
        ([0.015] * 300, ROUNDED, True),
        ([0.025] * 300, ROUNDED, False),
        ([0.0] * 298 + [0.9] * 2, ROUNDED, True),
        ([0.0] * 290 + [0.3] * 10, ROUNDED, False),
        ([0.0] * 99 + [0.4], ROUNDED, True),
        ([0.0] * 99 + [0.6], ROUNDED, False),
        ([1e6] * 300, UNLIMITED, True),
    ],
)
def test_the_tolerance_depends_on_precision_and_probe_size(
    differences: list[float], tolerance: LogprobTolerance, is_accepted: bool
) -> None:
    measured = np.array(differences, dtype=np.float32)
    mismatch = compare_logprobs(measured, np.zeros_like(measured))

    assert (mismatch.excess(tolerance) == "") is is_accepted


def test_a_mean_mismatch_of_three_times_the_usual_one_is_a_jump() -> None:
    history = MismatchHistory()
    for mean in (0.01, 0.012, 0.008, 0.011, 0.009):
        assert not history.is_jump(mismatch_of(0.5)), "too few versions to compare with"
        history.add(mismatch_of(mean))

    assert not history.is_jump(mismatch_of(0.029))
    assert history.is_jump(mismatch_of(0.031))


def mismatch_of(mean: float) -> LogprobMismatch:
    return LogprobMismatch(max=1.0, mean=mean, p99=0.1, tokens=300)


async def test_an_inconsistent_probe_is_refused() -> None:
    for bad in (probe([-1]), probe([-1, -2, -5, -6], lengths=(3, 3)), probe([], scored_from=(4, 5))):
        with pytest.raises(CorruptData) as caught:
            await logprob_mismatch(Echo(), bad)
        assert caught.value.code == "weights.invalid_probe"


class Slow(Echo):
    """Scores in steps of half the longest time without progress; `shows_steps`: its gauges change with each step."""

    def __init__(self, *, shows_steps: bool) -> None:
        super().__init__()
        self._shows_steps = shows_steps

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        for step in range(1, 5):
            await asyncio.sleep(logprob_mismatch_module.STALL_S / 2)
            if self._shows_steps:
                self.load_now = EngineGauges(running=1, cache_used=step / 100)
        return await super().score(tokens, scored_from)


async def test_the_measurement_waits_for_an_engine_as_long_as_it_makes_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logprob_mismatch_module, "STALL_S", 0.2)
    monkeypatch.setattr(logprob_mismatch_module, "_POLL_S", 0.01)

    assert (await logprob_mismatch(Slow(shows_steps=True), probe([-1, -2, -5, -6]))).max == 0
    with pytest.raises(TimeoutError):
        await logprob_mismatch(Slow(shows_steps=False), probe([-1, -2, -5, -6]))
    monkeypatch.setattr(logprob_mismatch_module, "TIMEOUT_S", 0.3)
    with pytest.raises(TimeoutError):
        await logprob_mismatch(Slow(shows_steps=True), probe([-1, -2, -5, -6]))
