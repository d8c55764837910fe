"""Contract tests of every engine."""

import asyncio
import json
import string
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, joined
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.base import Engine, PauseMode
from astraflow.weights.tensors import VerifiedWeights

Build = Callable[[], Engine]
Weights = Callable[[int], VerifiedWeights]

GIVE_UP_S = 40.0


@pytest.mark.anyio
class EngineSuite:
    """Tests to inherit. Fixtures to provide: `build` (an engine without requests in flight), `weights` (of a version),
    `prompt`, and `long` (a sampling that takes a noticeable fraction of a second)."""

    supported: frozenset[str] = frozenset()
    """Sampling options that the engine has: `truncation` (top-k and min-p), `stop_strings`, `seed`, `structure`. Texts
    are those of models of kind `tiny`."""
    head_start_s: float = 0.1
    """Seconds in which the engine has generated the first tokens of a request."""

    @pytest.fixture
    def build_new(self, build: Build) -> Build:
        """Builds an engine that no other test has used."""
        return build

    async def test_before_the_first_load_there_is_no_version(
        self, build_new: Build, prompt: Int32Array, long: Sampling
    ) -> None:
        engine = build_new()
        assert engine.version is None
        with pytest.raises(AstraFlowError, match="load"):
            await engine.generate("a", prompt, long)
        await engine.close()

    async def test_a_generation_is_complete_and_has_the_served_version(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(3)) as engine:
            generation = await within(engine.generate("a", prompt, long))

            assert engine.version == 3
            check(generation, long)
            assert generation.finish in (Finish.STOP, Finish.LENGTH)
            assert [span.version for span in generation.spans] == [3]

    async def test_many_requests_run_concurrently(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            generations = await within(
                asyncio.gather(*(engine.generate(f"request-{number}", prompt, long) for number in range(20)))
            )

            for generation in generations:
                check(generation, long)
                assert generation.finish is not Finish.ABORT

    async def test_a_generation_kept_through_a_load_has_both_versions(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await self.begun(engine, "a", prompt, long)
            await engine.pause(PauseMode.KEEP)
            loaded = await within(engine.load(weights(2)))
            assert not running.done()
            await engine.resume()
            self.release()
            generation = await within(running)

            assert min(loaded.stage_s, loaded.pause_s, loaded.apply_s, loaded.resume_s) >= 0
            assert loaded.stopped_s == loaded.pause_s + loaded.apply_s + loaded.resume_s
            assert engine.version == 2
            check(generation, long)
            assert [span.version for span in generation.spans] == [0, 2]

    async def test_a_load_without_a_pause_loses_no_request(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await self.begun(engine, "a", prompt, long)
            await within(engine.load(weights(1)))
            self.release()
            generation = await within(running)

            check(generation, long)
            assert [span.version for span in generation.spans] == [0, 1], generation.spans

    async def test_an_aborting_pause_returns_the_generated_tokens(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await self.begun(engine, "a", prompt, long)
            await engine.pause(PauseMode.ABORT)
            generation = await within(running)

            check(generation, long)
            assert generation.finish is Finish.ABORT
            assert len(generation.tokens) < long.max_new_tokens

    async def test_an_aborted_generation_can_be_continued_from_its_tokens(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await self.begun(engine, "a", prompt, long)
            await engine.abort("a")
            beginning = await within(running)
        self.release()
        async with serving(build, weights(1)) as another:
            left = replace(long, max_new_tokens=long.max_new_tokens - len(beginning.tokens))
            rest = await within(another.generate("a+", np.concatenate([prompt, beginning.tokens]), left))

            assert len(beginning.tokens) > 0
            assert rest.finish in (Finish.STOP, Finish.LENGTH)
            check(joined(beginning, rest), long)
            assert [span.version for span in joined(beginning, rest).spans] == [0, 1]

    async def test_a_request_to_a_paused_engine_waits(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            await engine.pause(PauseMode.KEEP)
            running = asyncio.create_task(engine.generate("a", prompt, long))
            await asyncio.sleep(self.head_start_s)
            assert not running.done()
            await engine.resume()

            assert (await within(running)).finish is not Finish.ABORT

    async def test_an_abort_ends_only_its_request(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            doomed, other = await self.begun(engine, "a", prompt, long), await self.begun(engine, "b", prompt, long)
            await engine.abort("a")
            await engine.abort("unknown")
            self.release()

            assert (await within(doomed)).finish is Finish.ABORT
            assert (await within(other)).finish is not Finish.ABORT

    async def test_a_cancelled_request_does_not_affect_the_engine(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await self.begun(engine, "a", prompt, long)
            running.cancel()
            await asyncio.wait({running})
            self.release()

            assert running.cancelled()
            assert (await within(engine.generate("a", prompt, long))).finish is not Finish.ABORT

    async def test_scores_have_the_requested_length(self, build: Build, weights: Weights, prompt: Int32Array) -> None:
        async with serving(build, weights(0)) as engine:
            scores = await within(engine.score(prompt, 2))

            assert scores.dtype == np.float32
            assert len(scores) == len(prompt) - 2
            assert (scores <= 0).all()

    async def test_a_score_during_a_pause_completes_after_it(
        self, build: Build, weights: Weights, prompt: Int32Array
    ) -> None:
        async with serving(build, weights(0)) as engine:
            await engine.pause(PauseMode.KEEP)
            scoring = asyncio.create_task(engine.score(prompt, 1))
            await asyncio.sleep(0.1)
            await engine.resume()

            assert len(await within(scoring)) == len(prompt) - 1

    async def test_scores_are_the_logprobs_of_a_generation(
        self, build: Build, weights: Weights, prompt: Int32Array
    ) -> None:
        async with serving(build, weights(0)) as engine:
            generation = await within(engine.generate("a", prompt, Sampling(max_new_tokens=12)))
            scores = await within(engine.score(np.concatenate([prompt, generation.tokens]), len(prompt)))

            np.testing.assert_allclose(scores, generation.logprobs, atol=min(1e3, engine.logprob_tolerance.max))

    async def test_the_gauges_follow_the_load(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = [await self.begun(engine, f"request-{number}", prompt, long) for number in range(3)]
            await until(lambda: engine.gauges().running + engine.gauges().waiting == 3)
            assert 0 <= engine.gauges().cache_used <= 1
            for number in range(3):
                await engine.abort(f"request-{number}")
            await within(asyncio.gather(*running))
            await until(lambda: engine.gauges().running == engine.gauges().waiting == 0)

    async def test_a_serving_engine_has_not_failed(self, build: Build, weights: Weights) -> None:
        async with serving(build, weights(0)) as engine:
            failing = asyncio.create_task(engine.wait_failed())
            done, _ = await asyncio.wait({failing}, timeout=0.1)
            failing.cancel()
            await asyncio.wait({failing})

            assert not done

    async def test_the_most_likely_tokens_are_repeatable(
        self, build: Build, weights: Weights, prompt: Int32Array
    ) -> None:
        self.needs("truncation")
        async with serving(build, weights(0)) as engine:
            narrow = [Sampling(max_new_tokens=8, top_k=1)] * 2 + [Sampling(max_new_tokens=8, min_p=1.0)]
            generations = [
                await within(engine.generate(f"request-{number}", prompt, sampling))
                for number, sampling in enumerate(narrow)
            ]

            assert generations[0].tokens.tolist() == generations[1].tokens.tolist() == generations[2].tokens.tolist()

    async def test_a_seed_makes_a_generation_repeatable(
        self, build: Build, weights: Weights, prompt: Int32Array
    ) -> None:
        self.needs("seed")
        async with serving(build, weights(0)) as engine:
            tokens = [
                (await within(engine.generate(name, prompt, Sampling(max_new_tokens=12, seed=seed)))).tokens.tolist()
                for name, seed in (("a", 3), ("b", 3), ("c", 4))
            ]

            assert tokens[0] == tokens[1] != tokens[2]

    async def test_a_stop_string_ends_a_generation_and_is_part_of_it(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        self.needs("stop_strings")
        stops = tuple(string.ascii_uppercase)  # no random text lacks them all, no special token has any
        async with serving(build, weights(0)) as engine:
            generation = await within(engine.generate("a", prompt, replace(long, stop_strings=stops)))

            check(generation, long)
            text = text_of(generation.tokens)
            assert generation.finish is Finish.STOP
            assert text.endswith(stops)
            assert not any(stop in text[:-1] for stop in stops)

    async def test_a_structured_output_matches_its_structure(
        self, build: Build, weights: Weights, prompt: Int32Array
    ) -> None:
        self.needs("structure")
        async with serving(build, weights(0)) as engine:
            by_regex = await within(engine.generate("a", prompt, Sampling(max_new_tokens=20, regex="[ab]{3}")))
            schema = json.dumps({"enum": ["yes", "no"]})
            by_schema = await within(engine.generate("b", prompt, Sampling(max_new_tokens=20, json_schema=schema)))

            assert len(text_of(by_regex.tokens)) == 3
            assert set(text_of(by_regex.tokens)) <= {"a", "b"}
            assert json.loads(text_of(by_schema.tokens)) in ("yes", "no")

    async def test_closing_ends_running_requests(
        self, build_new: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build_new, weights(0)) as engine:
            running = await self.begun(engine, "a", prompt, long)
            await within(engine.close())

            assert (await within(running)).finish is Finish.ABORT

    def needs(self, option: str) -> None:
        """Skips the test of a sampling option that the engine does not have."""
        if option not in self.supported:
            pytest.skip(f"the engine has no {option}")

    async def begun(
        self, engine: Engine, request_id: str, prompt: Int32Array, sampling: Sampling
    ) -> "asyncio.Task[Generation]":
        """Starts a request and waits a moment, so that the engine has generated some tokens. An engine may hold it
        then, so that it cannot end before `release`."""
        task = asyncio.create_task(engine.generate(request_id, prompt, sampling))
        await asyncio.sleep(self.head_start_s)  # real engines generate in real time: there is no clock to advance
        return task

    def release(self) -> None:
        """Lets begun requests go on, in an engine that can hold them."""


@asynccontextmanager
async def serving(build: Build, weights: VerifiedWeights) -> AsyncIterator[Engine]:
    """Yields a fresh engine that serves these weights; closes it at the end."""
    engine = build()
    try:
        await engine.start()
        await engine.load(weights)
        yield engine
    finally:
        await engine.close()


async def within(work: Any) -> Any:
    """Returns the result of `work`, with a timeout."""
    return await asyncio.wait_for(work, GIVE_UP_S)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until `holds()` is true. Raises: TimeoutError."""
    async with asyncio.timeout(GIVE_UP_S):
        while not holds():  # noqa: ASYNC110 (what is observed runs in other processes)
            await asyncio.sleep(0.02)


def text_of(tokens: Int32Array) -> str:
    """Returns the text of a model of kind `tiny`, without special tokens."""
    first = 4
    return "".join(string.printable[token - first] for token in tokens if first <= token < first + 100)


def check(generation: Generation, sampling: Sampling) -> None:
    """Checks the invariants of every generation."""
    assert generation.tokens.dtype == np.int32
    assert generation.logprobs.dtype == np.float32
    assert len(generation.tokens) <= sampling.max_new_tokens
    assert np.isfinite(generation.logprobs).all()
    assert (generation.logprobs <= 0).all()
    assert all(span.length > 0 for span in generation.spans)
    assert [span.version for span in generation.spans] == sorted({Version(span.version) for span in generation.spans})
