"""Promises of the engine interface as checks that run on any engine, such as a plugin or a server of another party.

Each check is an async function of a `Subject`; it returns when the promise holds, and raises `Broken` or `Unsupported`
otherwise. `run_checks` runs them all on one engine, because a server takes long to start.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TypeVar

import numpy as np

from astraflow.conformance.promises import Broken, Unsupported, require, result_of
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.plugins import CheckResult, Outcome
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, joined
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.base import Engine, PauseMode
from astraflow.raas.engines.logprob_mismatch import compare_logprobs, measure_logprob_mismatch
from astraflow.weights.tensors import VerifiedWeights

_T = TypeVar("_T")

CHECK_S = 120.0
"""Time limit of a check. Seconds."""
MOMENT_S = 0.15
"""Time for a request to generate some tokens. Seconds."""
PAUSED_SCORE_S = 10.0
"""Time in which a paused engine scores, if it does. Seconds."""
CONCURRENT = 20
MAX_ARRIVALS = 256
"""Requests that arrive during a load, at most: one each millisecond. Count."""


@dataclass(slots=True, kw_only=True)
class Subject:
    """Engine to check, and what the checks need."""

    engine: Engine
    """Built and not started."""
    weights: Callable[[int], VerifiedWeights]
    """Returns a version of the model's weights, if possible with a probe."""
    prompt: Int32Array
    """Valid prompt, int32 `[n]`, n ≥ 2."""
    sampling: Sampling
    """Sampling that takes a noticeable fraction of a second."""
    can_load: bool = True
    """False when the versions cannot be changed from here, because another party refreshes the server."""
    version: int = 0
    """Version loaded last."""
    requests: int = 0

    async def load_next(self) -> VerifiedWeights:
        """Loads the next version. Raises: Unsupported when versions cannot be changed."""
        if not self.can_load:
            raise Unsupported("the weights of this server are refreshed by another party")
        weights = self.weights(self.version + 1)
        await self.engine.load(weights)
        self.version += 1
        return weights

    def generate(self, sampling: Sampling | None = None, prompt: Int32Array | None = None) -> Awaitable[Generation]:
        """Returns a request with an id of its own."""
        return self.engine.generate(self.new_id(), self.prompt if prompt is None else prompt, sampling or self.sampling)

    def new_id(self) -> str:
        """Returns an unused request id."""
        self.requests += 1
        return f"check-{self.requests}"

    async def begin(self, request_id: str = "") -> "asyncio.Task[Generation]":
        """Starts a request and waits a moment, so that it has some tokens."""
        task = asyncio.create_task(self.engine.generate(request_id or self.new_id(), self.prompt, self.sampling))
        await asyncio.sleep(MOMENT_S)
        return task


Check = Callable[[Subject], Awaitable[str | None]]
"""Returns a measured value, if there is one. Raises: Broken, Unsupported, and any error of the engine."""


async def run_checks(subject: Subject) -> AsyncIterator[CheckResult]:
    try:
        for promise, check in CHECKS.items():
            result = await result_of(promise, partial(check, subject), limit_s=CHECK_S)
            with suppress(Exception):  # the next check shows whether the engine still works
                await subject.engine.resume()
            yield result
            if check is engine_starts and result.outcome is Outcome.FAILED:
                return
    finally:
        await subject.engine.close()


async def engine_starts(subject: Subject) -> None:
    """`start` returns, also when called twice."""
    await subject.engine.start()


async def nothing_is_generated_before_the_first_load(subject: Subject) -> None:
    """`version` is None and `generate` raises an AstraFlowError."""
    require(subject.engine.version is None, f"version is {subject.engine.version}, expected None")
    try:
        await subject.generate()
    except AstraFlowError:
        return
    raise Broken("generate returned tokens of unknown weights")


async def weights_load(subject: Subject) -> str:
    """A load sets the version."""
    loaded = await subject.engine.load(subject.weights(subject.version))
    require(subject.engine.version == subject.version, f"version is {subject.engine.version} after the load")
    return f"{loaded.stopped_s:.3g} s without generation"


async def generation_is_complete(subject: Subject) -> str:
    """Token ids, one logprob each, spans of the version in service, and a reason for the end."""
    generation = await subject.generate()
    check_generation(generation, subject.sampling)
    require(generation.finish is not Finish.ABORT, "an undisturbed request ended with ABORT")
    versions = [span.version for span in generation.spans]
    require(versions == [subject.version], f"spans hold versions {versions}, expected {subject.version}")
    return f"{len(generation.tokens)} tokens"


async def logprobs_are_those_of_the_trainer(subject: Subject) -> str:
    """The probe of the version agrees within the engine's tolerance."""
    if not subject.can_load:
        raise Unsupported("no trainer here; each version of a run is compared by its probe")
    mismatch = await measure_logprob_mismatch(subject.engine, subject.weights(subject.version).manifest)
    if mismatch is None:
        raise Unsupported("the engine is simulated, or the version has no probe")
    excess = mismatch.excess(subject.engine.logprob_tolerance)
    require(not excess, f"the mismatch to the probe is {excess}")
    return f"largest difference {mismatch.max:.2g} nats over {mismatch.tokens} tokens"


async def sampled_logprobs_equal_scores(subject: Subject) -> str:
    """The logprobs of sampled tokens are those of the distribution that they were sampled from."""
    generation = await subject.generate()
    return await _compare_with_scores(subject, generation, len(generation.tokens))


async def scores_come_also_while_paused(subject: Subject) -> None:
    """`score` returns one logprob per token, at most 0, while generation is paused."""
    await subject.engine.pause(PauseMode.KEEP)
    try:
        scores = await asyncio.wait_for(subject.engine.score(subject.prompt, 1), PAUSED_SCORE_S)
    except TimeoutError:
        raise Unsupported("scores wait until generation resumes") from None
    require(scores.dtype == np.float32, f"scores are {scores.dtype}, expected float32")
    require(len(scores) == len(subject.prompt) - 1, f"{len(scores)} scores of {len(subject.prompt) - 1} tokens")
    require(bool((scores <= 0).all()), "a logprob is above 0")


async def requests_run_at_once(subject: Subject) -> str:
    """Many requests run at once and none disturbs another."""
    began_at = perf_counter()
    for generation in await asyncio.gather(*(subject.generate() for _ in range(CONCURRENT))):
        check_generation(generation, subject.sampling)
        require(generation.finish is not Finish.ABORT, "an undisturbed request ended with ABORT")
    return f"{CONCURRENT} requests in {perf_counter() - began_at:.2g} s"


async def request_to_a_paused_engine_waits(subject: Subject) -> None:
    """A request during a pause is generated after it."""
    await subject.engine.pause(PauseMode.KEEP)
    running = await subject.begin()
    require(not running.done(), "the paused engine answered")
    await subject.engine.resume()
    require((await running).finish is not Finish.ABORT, "the request ended with ABORT")


async def load_in_flight_loses_nothing(subject: Subject) -> None:
    """A request that runs during a load continues with the new version."""
    if not subject.can_load:
        raise Unsupported(
            "the weights of this server are refreshed by another party; the request fails and is repeated"
        )
    before = subject.version
    running = await subject.begin()
    await subject.load_next()
    generation = await running
    check_generation(generation, subject.sampling)
    versions = [span.version for span in generation.spans]
    if versions == [before]:
        raise Unsupported("the request ended before the load")
    require(versions == [before, subject.version], f"spans hold versions {versions}")
    require(generation.finish is not Finish.ABORT, "the request ended with ABORT")


async def requests_during_a_load_wait(subject: Subject) -> str:
    """Requests that arrive during a load are answered after it."""
    if not subject.can_load:
        raise Unsupported("the weights of this server are refreshed by another party")
    short = replace(subject.sampling, max_new_tokens=1)
    loading = asyncio.create_task(subject.load_next())
    arrived: list[asyncio.Future[Generation]] = []
    while not loading.done() and len(arrived) < MAX_ARRIVALS:
        arrived.append(asyncio.ensure_future(subject.generate(short)))
        await asyncio.sleep(0.001)
    await loading
    for generation in await asyncio.gather(*arrived):
        check_generation(generation, short)
    return f"{len(arrived)} requests"


async def kept_requests_are_computed_again(subject: Subject) -> str:
    """After a load during `PauseMode.KEEP` the logprobs are those of the new version over the whole prefix."""
    if not subject.can_load:
        raise Unsupported(
            "the weights of this server are refreshed by another party; the request fails and is repeated"
        )
    running = await subject.begin()
    await subject.engine.pause(PauseMode.KEEP)
    await subject.load_next()
    is_held = not running.done()
    await subject.engine.resume()
    generation = await running
    if len(generation.spans) < 2 and not is_held:
        raise Unsupported("the request ended before the pause")
    require(len(generation.spans) == 2, f"{len(generation.spans)} spans, expected 2")
    return await _compare_with_scores(subject, generation, generation.spans[-1].length)


async def aborting_pause_returns_what_was_written(subject: Subject) -> None:
    """`PauseMode.ABORT` ends requests at once, with their tokens so far."""
    running = await subject.begin()
    await subject.engine.pause(PauseMode.ABORT)
    generation = await asyncio.wait_for(running, 10.0)
    _check_aborted(generation, subject)


async def abort_ends_one_request(subject: Subject) -> None:
    """`abort` ends one request and no other, and ignores unknown ids."""
    doomed_id = subject.new_id()
    doomed, other = await asyncio.gather(subject.begin(doomed_id), subject.begin())
    await subject.engine.abort(doomed_id)
    await subject.engine.abort("unknown")
    generation = await asyncio.wait_for(doomed, 10.0)
    require((await other).finish is not Finish.ABORT, "another request was aborted too")
    _check_aborted(generation, subject)


async def aborted_request_can_be_continued(subject: Subject) -> None:
    """The tokens of an aborted request and a request for the rest give a whole generation."""
    request_id = subject.new_id()
    running = await subject.begin(request_id)
    await subject.engine.abort(request_id)
    begun = await running
    if begun.finish is not Finish.ABORT:
        raise Unsupported("the request ended before the abort")
    if not len(begun.tokens):
        raise Unsupported("an aborted request returns no tokens; its work is lost")
    left = replace(subject.sampling, max_new_tokens=subject.sampling.max_new_tokens - len(begun.tokens))
    rest = await subject.generate(left, np.concatenate([subject.prompt, begun.tokens]))
    check_generation(joined(begun, rest), subject.sampling)
    require(rest.finish is not Finish.ABORT, "the rest ended with ABORT")


async def caller_that_gives_up_leaves_the_engine_working(subject: Subject) -> None:
    """Cancelling `generate` ends the request; its id can be used again."""
    request_id = subject.new_id()
    running = await subject.begin(request_id)
    running.cancel()
    await asyncio.wait({running})
    generation = await subject.engine.generate(request_id, subject.prompt, subject.sampling)
    check_generation(generation, subject.sampling)


async def gauges_show_the_load(subject: Subject) -> str:
    """`gauges` returns counts and a share."""
    running = await subject.begin()
    gauges = subject.engine.gauges()
    await running
    is_valid = gauges.running >= 0 and gauges.waiting >= 0 and 0 <= gauges.cache_used <= 1
    require(is_valid, f"{gauges}")
    return f"running {gauges.running}, waiting {gauges.waiting}, cache {gauges.cache_used:.0%}"


async def top_k_is_kept_or_refused(subject: Subject) -> None:
    """`top_k = 1` gives the most likely tokens, with the logprob 0 of the sampled distribution."""
    generation = await _or_unsupported(subject.generate(replace(subject.sampling, top_k=1, max_new_tokens=8)))
    if subject.engine.is_simulated:
        raise Unsupported("the engine is simulated")
    again = await subject.generate(replace(subject.sampling, top_k=1, max_new_tokens=8))
    require(generation.tokens.tolist() == again.tokens.tolist(), "two requests with top_k = 1 differ")


async def kept_sets_are_complete(subject: Subject) -> None:
    """An engine that records kept sets returns the set of each token, with the sampled token, of `top_k` at most."""
    if TokenColumn.SUPPORT not in subject.engine.records:
        raise Unsupported("the engine records no kept sets")
    sampling = replace(subject.sampling, top_p=0.9, top_k=7, with_support=True, max_new_tokens=8)
    generation = await subject.generate(sampling)  # which checks that the sampled tokens are in their sets
    require(generation.has_support, "a token has no kept set")
    width = (generation.columns[TokenColumn.SUPPORT] >= 0).sum(1).max()
    require(width <= sampling.top_k, f"a kept set has {width} tokens with top_k = {sampling.top_k}")


async def seed_repeats_or_is_refused(subject: Subject) -> None:
    """Requests with the same seed give the same tokens."""
    sampling = replace(subject.sampling, seed=7, max_new_tokens=16)
    first = await _or_unsupported(subject.generate(sampling))
    if subject.engine.is_simulated:
        raise Unsupported("the engine is simulated")
    second = await subject.generate(sampling)
    require(first.tokens.tolist() == second.tokens.tolist(), "two requests with one seed differ")


async def closing_ends_requests(subject: Subject) -> None:
    """`close` returns, and requests in flight end with ABORT."""
    running = await subject.begin()
    await subject.engine.close()
    generation = await asyncio.wait_for(running, 10.0)
    _check_aborted(generation, subject)


CHECKS: dict[str, Check] = {
    "starts": engine_starts,
    "generates nothing before the first load": nothing_is_generated_before_the_first_load,
    "loads verified weights": weights_load,
    "returns token ids, logprobs and version spans": generation_is_complete,
    "agrees with the trainer's logprobs": logprobs_are_those_of_the_trainer,
    "returns the logprobs that it sampled with": sampled_logprobs_equal_scores,
    "scores while paused": scores_come_also_while_paused,
    "runs many requests at once": requests_run_at_once,
    "holds requests back while paused": request_to_a_paused_engine_waits,
    "loses no request to a load": load_in_flight_loses_nothing,
    "answers requests that arrive during a load": requests_during_a_load_wait,
    "computes kept requests again on new weights": kept_requests_are_computed_again,
    "agrees with the trainer after several loads": logprobs_are_those_of_the_trainer,
    "aborts on a pause": aborting_pause_returns_what_was_written,
    "aborts one request": abort_ends_one_request,
    "returns the tokens of an aborted request": aborted_request_can_be_continued,
    "survives a caller that gives up": caller_that_gives_up_leaves_the_engine_working,
    "shows its load": gauges_show_the_load,
    "samples with top_k": top_k_is_kept_or_refused,
    "records kept sets": kept_sets_are_complete,
    "samples with a seed": seed_repeats_or_is_refused,
    "ends requests when closed": closing_ends_requests,
}
"""Checks by promise, in the order in which they run."""


def check_generation(generation: Generation, sampling: Sampling) -> None:
    """Checks the invariants of every generation. Raises: Broken."""
    tokens, logprobs = generation.tokens, generation.logprobs
    require(tokens.dtype == np.int32, f"tokens are {tokens.dtype}, expected int32")
    require(logprobs.dtype == np.float32, f"logprobs are {logprobs.dtype}, expected float32")
    require(len(tokens) <= sampling.max_new_tokens, f"{len(tokens)} tokens, at most {sampling.max_new_tokens} wanted")
    require(bool(np.isfinite(logprobs).all()), "a logprob is not finite")
    require(bool((logprobs <= 0).all()), "a logprob is above 0")
    require(all(span.length > 0 for span in generation.spans), "a span is empty")
    versions = [span.version for span in generation.spans]
    require(versions == sorted(set(versions)), f"spans hold versions {versions}, expected ascending ones")


async def _compare_with_scores(subject: Subject, generation: Generation, length: int) -> str:
    """Compares the logprobs of the last `length` tokens with their scores."""
    if subject.engine.is_simulated:
        raise Unsupported("the engine is simulated")
    tokens = np.concatenate([subject.prompt, generation.tokens])
    scores = await subject.engine.score(tokens, len(tokens) - length)
    mismatch = compare_logprobs(scores, generation.logprobs[-length:])
    excess = mismatch.excess(subject.engine.logprob_tolerance)
    require(not excess, f"logprobs and scores of the same tokens differ by {excess}")
    return f"largest difference {mismatch.max:.2g} nats over {mismatch.tokens} tokens"


async def _or_unsupported(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except InvalidInput as refusal:
        raise Unsupported(f"refused ({refusal.code})") from None


def _check_aborted(generation: Generation, subject: Subject) -> None:
    check_generation(generation, subject.sampling)
    if generation.finish is not Finish.ABORT:
        raise Unsupported("the request ended before it could be aborted; use a longer one")
    require(len(generation.tokens) < subject.sampling.max_new_tokens, "the aborted request has all of its tokens")
