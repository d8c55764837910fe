"""Logprob mismatch: differences between the logprobs of engine and trainer for the same tokens."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.rollouts.trajectories import Float32Array
from astraflow.contract.weights import Manifest, Probe
from astraflow.raas.engines.base import MIN_P99_TOKENS, Engine, LogprobTolerance

STALL_S = 60.0
"""Time without progress of the engine after which the measurement fails. Progress is a change of its gauges."""
TIMEOUT_S = 1800.0
"""Longest measurement on a busy machine."""
_POLL_S = 1.0

JUMP_FACTOR = 3.0
JUMP_FLOOR = 1e-4
"""Mean mismatch in nats below which a jump is rounding."""
_JUMP_WINDOW = 21
_MIN_JUMP_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobMismatch:
    """Absolute differences over the tokens of a probe, in nats; infinite if any logprob is not finite."""

    max: float
    mean: float
    p99: float
    tokens: int
    """Compared tokens. Count."""

    def excess(self, tolerance: LogprobTolerance) -> str:
        """Returns what exceeds the tolerance, for a message; empty when nothing does."""
        if self.max > tolerance.max:
            return f"at most {self.max:.3g} nats, above {tolerance.max:.3g}"
        if self.mean > tolerance.mean:
            return f"{self.mean:.3g} nats on average, above {tolerance.mean:.3g}"
        if self.tokens >= MIN_P99_TOKENS and self.p99 > tolerance.p99:
            return f"{self.p99:.3g} nats at the 99th percentile, above {tolerance.p99:.3g}"
        if self.tokens < MIN_P99_TOKENS and self.max > 2 * tolerance.p99:
            return f"at most {self.max:.3g} nats over {self.tokens} tokens, above {2 * tolerance.p99:.3g}"
        return ""


class MismatchHistory:
    """Mean mismatches of the latest versions, to detect a jump, as of a reload that leaves some state old."""

    def __init__(self) -> None:
        self._means: deque[float] = deque(maxlen=_JUMP_WINDOW)

    def is_jump(self, mismatch: LogprobMismatch) -> bool:
        """Returns whether the mean is more than three times the median of the versions before."""
        if len(self._means) < _MIN_JUMP_SAMPLES:
            return False
        return mismatch.mean > max(JUMP_FLOOR, JUMP_FACTOR * median(self._means))

    def add(self, mismatch: LogprobMismatch) -> None:
        """Records the mismatch of a served version."""
        self._means.append(mismatch.mean)


async def measure_logprob_mismatch(engine: Engine, manifest: Manifest) -> LogprobMismatch | None:
    """Measures the mismatch to the trainer after a load; None without a probe or for a simulated engine.

    Raises: the errors of `logprob_mismatch`.
    """
    if manifest.probe is None or engine.is_simulated:
        return None
    return await logprob_mismatch(engine, manifest.probe)


def mismatch_message(manifest: Manifest, excess: str) -> str:
    """Returns the message for a mismatch above the tolerance. excess: as from `LogprobMismatch.excess`."""
    return (
        f"cannot serve {manifest.policy!r} version {manifest.version}: the logprobs of engine and trainer differ by "
        f"{excess}; give node and trainer the same model spec"
    )


async def logprob_mismatch(engine: Engine, probe: Probe) -> LogprobMismatch:
    """Returns the absolute differences over all scored tokens.

    Raises: CorruptData for a probe with inconsistent lengths, TimeoutError when the engine makes no progress for
    `STALL_S`, and any error of the engine.
    """
    tokens = np.frombuffer(probe.tokens, dtype="<i4").astype(np.int32, copy=False)
    expected = np.frombuffer(probe.logprobs, dtype="<f4").astype(np.float32, copy=False)
    scored = [length - start for length, start in zip(probe.lengths, probe.scored_from, strict=True)]
    if sum(probe.lengths) != len(tokens) or sum(scored) != len(expected) or any(count < 0 for count in scored):
        raise CorruptData(
            "cannot measure the logprob mismatch: the lengths of the probe in the manifest do not cover its tokens; "
            "publish the version again",
            code="weights.invalid_probe",
        )
    ends = list(accumulate(probe.lengths, initial=0))
    async with _while_progressing(engine):
        measured = await asyncio.gather(
            *(
                engine.score(tokens[begin:end], start)
                for (begin, end), start in zip(pairwise(ends), probe.scored_from, strict=True)
                if begin + start < end
            )
        )
    return compare_logprobs(np.concatenate(measured) if measured else np.empty(0, np.float32), expected)


@asynccontextmanager
async def _while_progressing(engine: Engine) -> AsyncIterator[None]:
    """Runs the block while the engine makes progress. Raises: TimeoutError."""
    now = asyncio.get_running_loop().time
    ends_at = now() + TIMEOUT_S

    async def extend(limit: asyncio.Timeout) -> None:
        gauges = engine.gauges()
        while True:
            await asyncio.sleep(_POLL_S)
            if engine.gauges() != gauges:
                gauges = engine.gauges()
                limit.reschedule(min(now() + STALL_S, ends_at))

    async with asyncio.timeout(STALL_S) as limit:
        watch = asyncio.create_task(extend(limit))
        try:
            yield
        finally:
            watch.cancel()


def compare_logprobs(measured: Float32Array, expected: Float32Array) -> LogprobMismatch:
    """Returns the mismatch between two arrays of logprobs, float32 `[n]`."""
    differences = np.abs(measured - expected) if len(measured) == len(expected) else np.full(1, np.inf)
    if not len(differences):
        return LogprobMismatch(max=0.0, mean=0.0, p99=0.0, tokens=0)
    if not np.isfinite(differences).all():
        return LogprobMismatch(max=np.inf, mean=np.inf, p99=np.inf, tokens=len(differences))
    return LogprobMismatch(
        max=float(differences.max()),
        mean=float(differences.mean()),
        p99=float(np.quantile(differences, 0.99)),
        tokens=len(differences),
    )
