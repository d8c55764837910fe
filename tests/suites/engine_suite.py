"""What every engine must do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.generation import Finish, Generation, Sampling, joined
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Int32Array
from astraflow.raas.engines.base import Engine, PauseMode
from astraflow.weights.tensors import VerifiedWeights

Build = Callable[[], Engine]
Weights = Callable[[int], VerifiedWeights]

GIVE_UP_S = 40.0


@pytest.mark.anyio
class EngineSuite:
    """Inherit, and provide the fixtures `build` (a fresh engine), `weights` (those of a version), `prompt`, and `long`:
    a sampling that takes a noticeable fraction of a second."""

    async def test_before_the_first_load_there_is_no_version(
        self, build: Build, prompt: Int32Array, long: Sampling
    ) -> None:
        engine = build()
        assert engine.version is None
        with pytest.raises(AstraFlowError, match="load"):
            await engine.generate("a", prompt, long)
        await engine.close()

    async def test_a_generation_is_complete_and_of_the_version_served(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(3)) as engine:
            generation = await within(engine.generate("a", prompt, long))

            assert engine.version == 3
            check(generation, long)
            assert generation.finish in (Finish.STOP, Finish.LENGTH)
            assert [span.version for span in generation.spans] == [3]

    async def test_many_run_at_once(self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling) -> None:
        async with serving(build, weights(0)) as engine:
            generations = await within(
                asyncio.gather(*(engine.generate(f"request-{number}", prompt, long) for number in range(20)))
            )

            for generation in generations:
                check(generation, long)
                assert generation.finish is not Finish.ABORT

    async def test_what_is_kept_through_a_load_shows_both_versions(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await begun(engine, "a", prompt, long)
            await engine.pause(PauseMode.KEEP)
            loaded = await within(engine.load(weights(2)))
            assert not running.done()
            await engine.resume()
            generation = await within(running)

            assert min(loaded.stage_s, loaded.pause_s, loaded.apply_s, loaded.resume_s) >= 0
            assert loaded.stopped_s == loaded.pause_s + loaded.apply_s + loaded.resume_s
            assert engine.version == 2
            check(generation, long)
            assert [span.version for span in generation.spans] == [0, 2]

    async def test_a_load_without_a_pause_loses_nothing(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await begun(engine, "a", prompt, long)
            await within(engine.load(weights(1)))
            generation = await within(running)

            check(generation, long)
            assert [span.version for span in generation.spans] == [0, 1]

    async def test_a_pause_that_aborts_returns_what_was_written(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await begun(engine, "a", prompt, long)
            await engine.pause(PauseMode.ABORT)
            generation = await within(running)

            check(generation, long)
            assert generation.finish is Finish.ABORT
            assert len(generation.tokens) < long.max_new_tokens

    async def test_what_was_cut_short_is_continued_from_its_prompt_and_beginning(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await begun(engine, "a", prompt, long)
            await engine.abort("a")
            beginning = await within(running)
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
            running = await begun(engine, "a", prompt, long)
            assert not running.done()
            await engine.resume()

            assert (await within(running)).finish is not Finish.ABORT

    async def test_an_abort_ends_one_request_and_no_other(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            doomed, other = await begun(engine, "a", prompt, long), await begun(engine, "b", prompt, long)
            await engine.abort("a")
            await engine.abort("nobody")

            assert (await within(doomed)).finish is Finish.ABORT
            assert (await within(other)).finish is not Finish.ABORT

    async def test_a_caller_that_gives_up_leaves_the_engine_working(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await begun(engine, "a", prompt, long)
            running.cancel()
            await asyncio.wait({running})

            assert running.cancelled()
            assert (await within(engine.generate("a", prompt, long))).finish is not Finish.ABORT

    async def test_scores_are_as_many_as_asked_for_also_while_paused(
        self, build: Build, weights: Weights, prompt: Int32Array
    ) -> None:
        async with serving(build, weights(0)) as engine:
            await engine.pause(PauseMode.KEEP)
            scores = await within(engine.score(prompt, 1))

            assert scores.dtype == np.float32
            assert len(scores) == len(prompt) - 1
            assert (scores <= 0).all()

    async def test_closing_ends_what_runs(
        self, build: Build, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        async with serving(build, weights(0)) as engine:
            running = await begun(engine, "a", prompt, long)
            await within(engine.close())

            assert (await within(running)).finish is Finish.ABORT


@asynccontextmanager
async def serving(build: Build, weights: VerifiedWeights) -> AsyncIterator[Engine]:
    """A fresh engine that serves these weights; closed at the end."""
    engine = build()
    try:
        await engine.load(weights)
        yield engine
    finally:
        await engine.close()


async def begun(engine: Engine, request_id: str, prompt: Int32Array, sampling: Sampling) -> "asyncio.Task[Generation]":
    """A request that the engine has had a moment to write some of: what follows interrupts it."""
    task = asyncio.create_task(engine.generate(request_id, prompt, sampling))
    await asyncio.sleep(0.1)  # real engines write in their own time: there is no clock to advance
    return task


async def within(work: Any) -> Any:
    """The result of `work`, which must not take for ever."""
    return await asyncio.wait_for(work, GIVE_UP_S)


def check(generation: Generation, sampling: Sampling) -> None:
    """What holds for every generation."""
    assert generation.tokens.dtype == np.int32
    assert generation.logprobs.dtype == np.float32
    assert len(generation.tokens) <= sampling.max_new_tokens
    assert np.isfinite(generation.logprobs).all()
    assert (generation.logprobs <= 0).all()
    assert all(span.length > 0 for span in generation.spans)
    assert [span.version for span in generation.spans] == sorted({Version(span.version) for span in generation.spans})
