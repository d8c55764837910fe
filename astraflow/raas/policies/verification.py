"""Verification of loaded weights by their effect: the logprobs that an engine computes with them."""

from astraflow.contract.ids import Version
from astraflow.contract.nodes import EvaluationMode
from astraflow.contract.weights import Manifest
from astraflow.raas.counters import NodeCounters
from astraflow.raas.engines.base import LoadTimings
from astraflow.raas.engines.logprob_mismatch import (
    JUMP_FACTOR,
    LogprobMismatch,
    MismatchHistory,
    measure_logprob_mismatch,
    mismatch_message,
)
from astraflow.raas.policies.reprefill_check import ReprefillSample
from astraflow.raas.policies.served_policies import ServedPolicy
from astraflow.runtime.logs import get_logger
from astraflow.weights.adapters import MAX_LOST

log = get_logger()


class MismatchGauges:
    """Logprob mismatches of all policies as gauges of the node, in nats."""

    def __init__(self, counters: NodeCounters) -> None:
        self._counters = counters
        self._latest: dict[str, float] = {}
        self._largest = 0.0
        self._reprefills: dict[str, float] = {}

    def record(self, policy: str, mismatch: float) -> None:
        """Records the measured mismatch of a policy."""
        self._latest[policy] = mismatch
        self._largest = max(self._largest, mismatch)
        self._counters.set_gauge("logprob_mismatch", max(self._latest.values()))
        self._counters.set_gauge("logprob_mismatch_max", self._largest)

    def record_reprefill(self, policy: str, mismatch: float) -> None:
        """Records the mismatch of a request that was in flight during a swap."""
        self._reprefills[policy] = mismatch
        self._counters.set_gauge("reprefill_mismatch", max(self._reprefills.values()))


class WeightVerification:
    """Checks of the versions of one policy, which count and report what they find.

    After each load the engine scores the probe of the version. Once per version it scores a request again that was in
    flight during the load (`ReprefillCheck`): if the engine continued on the cache of the old weights, its logprobs
    differ.
    """

    def __init__(self, served: ServedPolicy, *, gauges: MismatchGauges, counters: NodeCounters) -> None:
        self._served = served
        self._gauges = gauges
        self._counters = counters
        self._manifest: Manifest | None = None
        """Manifest of the version that was loaded last."""
        self._history = MismatchHistory()
        self._is_mismatch_too_large = False
        """True after a failed probe; a version without a probe does not reset it."""
        self._has_warned_of_rounding = False

    async def accepts(self, manifest: Manifest, *, is_patch: bool) -> bool:
        """Scores the probe of a loaded version; returns whether engine and trainer agree.

        A jump after a patch is not accepted, so that the whole version is loaded and measured again.
        """
        self._manifest = manifest
        mismatch = await measure_logprob_mismatch(self._served.engine, manifest)
        if mismatch is None:
            return not self._is_mismatch_too_large
        self._gauges.record(manifest.policy, mismatch.max)
        excess = mismatch.excess(self._served.engine.logprob_tolerance)
        self._is_mismatch_too_large = bool(excess)
        if excess:
            self._note("logprob_mismatch_failures", mismatch_message(manifest, excess), version=manifest.version)
            return False
        if self._history.is_jump(mismatch):
            self._note_jump(manifest, mismatch, is_patch=is_patch)
            if is_patch:
                return False
        self._history.add(mismatch)
        return True

    async def held_problem(self) -> str:
        """Returns why the held version is not served any more; empty while it is."""
        if not self._served.is_serving:
            return f"cannot hold a version of {self._served.policy!r}: it is not served; see the errors of the node"
        if self._served.engine.evaluation_mode is not EvaluationMode.SERVED_VERSION:
            return ""
        assert self._manifest is not None  # noqa: S101 (a served version was loaded)
        mismatch = await measure_logprob_mismatch(self._served.engine, self._manifest)
        excess = "" if mismatch is None else mismatch.excess(self._served.engine.logprob_tolerance)
        if not excess:
            return ""
        return (
            f"cannot hold version {self._manifest.version} of {self._served.policy!r}: its logprobs now differ by "
            f"{excess}, so the server was refreshed; keep its weights while an evaluation runs"
        )

    async def next_stale_version(self) -> Version:
        """Waits for a version on which requests in flight continued with the cache of the version before."""
        while True:
            sample = await self._served.reprefill.next_sample()
            if excess := await self._reprefill_excess(sample):
                message = (
                    f"cannot trust requests of {self._served.policy!r} that were in flight when version "
                    f"{sample.version} was loaded: scored again, their logprobs differ by {excess}; the engine "
                    "continued on the key-value cache of the old weights: use an engine that computes it again at "
                    "each load (docs/how-to/engines.md)"
                )
                self._note("reprefill_mismatch_failures", message, version=sample.version)
                return sample.version

    def note_rounding(self, loaded: LoadTimings) -> None:
        """Warns once when the served policy lacks most of what was trained."""
        share = loaded.rounded_away
        if share <= MAX_LOST or self._has_warned_of_rounding:
            return
        self._has_warned_of_rounding = True
        self._counters.note_error(
            f"{self._served.policy}: {share:.0%} of the adapters' change is lost by rounding its sum with the base; "
            "serve adapters unmerged (docs/how-to/adapters.md)"
        )
        log.warning("adapters_rounded_away", policy=self._served.policy, share=round(share, 3))

    async def _reprefill_excess(self, sample: ReprefillSample) -> str:
        """Returns the excess of a request that is scored again; empty when it is within the tolerance or unknown."""
        try:
            mismatch = await self._served.reprefill.measure(sample)
        except Exception as problem:
            self._counters.note_error(
                f"{self._served.policy}: cannot check a request after a swap: {type(problem).__name__}: {problem}"
            )
            log.warning("reprefill_check_failed", policy=self._served.policy, problem=str(problem))
            return ""
        if mismatch is None:
            return ""
        self._gauges.record_reprefill(self._served.policy, mismatch.max)
        return mismatch.excess(self._served.engine.logprob_tolerance)

    def _note_jump(self, manifest: Manifest, mismatch: LogprobMismatch, *, is_patch: bool) -> None:
        log.warning("logprob_mismatch_jumped", policy=manifest.policy, version=manifest.version, mismatch=mismatch.mean)
        if not is_patch:
            self._counters.add("logprob_mismatch_jumps")
            self._counters.note_error(
                f"{manifest.policy}: the mean logprob mismatch of version {manifest.version} is {mismatch.mean:.3g} "
                f"nats, more than {JUMP_FACTOR:g} times the usual one"
            )

    def _note(self, counter: str, message: str, *, version: Version) -> None:
        """Counts and reports a failed check."""
        self._counters.add(counter)
        self._counters.note_error(message)
        log.error("weight_check_failed", check=counter, policy=self._served.policy, version=version, message=message)
