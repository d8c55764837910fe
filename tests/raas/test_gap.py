import numpy as np
import pytest

from astraflow.contract.errors import CorruptData
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.contract.weights import Probe
from astraflow.raas.gap import logprob_gap
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio


class Echo(FakeEngine):
    """The logprob of a token is minus the token."""

    async def score(self, tokens: Int32Array, scored_from: int) -> Float32Array:
        return -tokens[scored_from:].astype(np.float32)


def probe(logprobs: list[float], *, lengths: tuple[int, ...] = (3, 4), scored_from: tuple[int, ...] = (1, 2)) -> Probe:
    return Probe(
        tokens=np.arange(7, dtype="<i4").tobytes(),
        lengths=lengths,
        scored_from=scored_from,
        logprobs=np.array(logprobs, dtype="<f4").tobytes(),
    )


async def test_the_largest_difference_over_all_sequences_counts() -> None:
    assert await logprob_gap(Echo(), probe([-1, -2, -5, -6])) == 0
    assert await logprob_gap(Echo(), probe([-1, -2.25, -5, -5.9])) == 0.25
    assert await logprob_gap(Echo(), probe([-5, -6], scored_from=(3, 2))) == 0


async def test_what_is_no_number_is_an_infinite_gap() -> None:
    assert await logprob_gap(Echo(), probe([-1, float("nan"), -5, -6])) == float("inf")


async def test_a_probe_that_does_not_fit_together_is_refused() -> None:
    for bad in (probe([-1]), probe([-1, -2, -5, -6], lengths=(3, 3)), probe([], scored_from=(4, 5))):
        with pytest.raises(CorruptData, match="does not fit together"):
            await logprob_gap(Echo(), bad)
