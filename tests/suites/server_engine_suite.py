"""Contract tests of engines that are servers in processes of their own."""

import asyncio
import json
import os
import random
import signal
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from astraflow.contract.errors import Unavailable
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.request_groups import MAX_TOKENS
from astraflow.runtime.processes.supervised import mapped_shared_memory
from tests.errors import raises_code
from tests.suites.serving import Weights, check, text_of, until, within

Expected = Callable[[int, Int32Array, int], Float32Array]
"""Logprobs of `tokens[scored_from:]` with the weights of a version, by another program than the engine."""
BuildServer = Callable[..., ServerEngine]
"""Builds an engine with options."""


@pytest.mark.anyio
class ServerEngineSuite:
    """Tests to inherit. Fixtures to provide: `served` (a started engine, which tests share), `build_server`, `weights`
    and `delta` (of a version, from the previous one), `expected`, `prompt`, and `long` (a sampling that takes a
    noticeable fraction of a second)."""

    head_start_s = 0.1
    """Seconds in which the engine has generated the first tokens of a request."""
    gap = 1e-4
    """Largest accepted difference of a logprob, in nats."""
    patches = True
    """Whether changes are written in place."""
    aborted_within_s = 3.0
    """Seconds in which an aborted request must have left the server; less than it would take to its end."""
    updates = 20
    """Weight updates under traffic."""
    losses: int | None = None
    """Processes to lose, one after another, in the test of a signal; None: every process."""

    async def test_a_running_request_is_recomputed_with_the_new_weights(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, long: Sampling, expected: Expected
    ) -> None:
        await served.load(weights(0))
        running = await self.begun(served, "a", prompt, long)
        await within(served.load(weights(1)))
        self.release()
        generation = await within(running)

        assert [span.version for span in generation.spans] == [0, 1]
        self.check_logprobs(prompt, generation, expected)

    async def test_a_request_during_a_load_has_the_new_version(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, expected: Expected
    ) -> None:
        """A token that a paused server generates would have the new weights and the old version."""
        await served.load(weights(0))
        await served.pause(PauseMode.KEEP)
        client, sampling = served.servers[0].client, Sampling(max_new_tokens=8)
        running = asyncio.create_task(served.dialect.generate(client, ["arrives#0"], prompt, sampling))
        await asyncio.sleep(self.head_start_s)
        await within(served.load(weights(1)))
        await asyncio.sleep(self.head_start_s)
        assert not running.done()
        await served.resume()
        (generation,) = await within(running)

        assert [span.version for span in generation.spans] == [1]
        self.check_logprobs(prompt, generation, expected)

    async def test_a_cached_prompt_is_recomputed_with_the_new_weights(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, expected: Expected
    ) -> None:
        tokens = np.tile(prompt, 8)
        for version in (0, 1, 2):
            await within(served.load(weights(version)))
            generation = await within(served.generate("a", tokens, Sampling(max_new_tokens=4)))
            scores = await within(served.score(tokens, len(tokens) - 4))

            self.check_logprobs(tokens, generation, expected)
            np.testing.assert_allclose(scores, expected(version, tokens, len(tokens) - 4), atol=self.gap)

    async def test_weight_updates_under_traffic_lose_no_request(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, long: Sampling, expected: Expected
    ) -> None:
        """Long requests are interrupted by updates; brief ones arrive during them. A refused one ends the block."""
        await served.load(weights(0))
        brief = replace(long, max_new_tokens=4)
        async with Load(served, prompt, long, requests=8) as load, Load(served, prompt, brief, requests=8) as arrivals:
            for version in range(1, self.updates + 1):
                await within(served.load(weights(version % 4)))
                await asyncio.sleep(0.02)

        assert served.version == self.updates % 4
        assert len(load.generations) >= 8
        assert len(arrivals.generations) > self.updates
        for sampling, generations in ((long, load.generations), (brief, arrivals.generations)):
            assert {generation.finish for generation in generations} == {Finish.LENGTH}
            assert {len(generation.tokens) for generation in generations} == {sampling.max_new_tokens}
            for generation in generations[:: max(1, len(generations) // 16)]:
                self.check_logprobs(prompt, generation, expected)

    async def test_an_aborted_request_ends_in_the_server(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        await served.load(weights(0))
        running = await self.begun(served, "a", prompt, long)
        await until(lambda: served.gauges().running == 1)
        await served.abort("a")
        generation = await within(running)
        async with asyncio.timeout(self.aborted_within_s):
            await until(lambda: served.gauges().running == 0)

        assert generation.finish is Finish.ABORT
        assert 0 < len(generation.tokens) < long.max_new_tokens

    async def test_equal_short_requests_each_get_a_sample_of_their_own(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, expected: Expected
    ) -> None:
        await served.load(weights(0))
        sampling = Sampling(max_new_tokens=8)
        generations = await within(
            asyncio.gather(*(served.generate(f"member-{number}", prompt, sampling) for number in range(8)))
        )

        assert len({generation.tokens.tobytes() for generation in generations}) > 1
        for generation in generations:
            check(generation, sampling)
            self.check_logprobs(prompt, generation, expected)

    async def test_an_abort_ends_one_of_equal_short_requests(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, long: Sampling, expected: Expected
    ) -> None:
        await served.load(weights(0))
        before = await self.begun(served, "a", prompt, long)
        sampling = Sampling(max_new_tokens=MAX_TOKENS)
        members = [asyncio.create_task(served.generate(f"member-{n}", prompt, sampling)) for n in range(4)]
        await asyncio.sleep(self.head_start_s)
        await served.abort("member-1")
        self.release()
        generations = await within(asyncio.gather(*members))
        await served.abort("a")
        await within(before)

        assert [generation.finish for generation in generations if generation.finish is not Finish.ABORT] == (
            3 * [Finish.LENGTH]
        )
        for generation in generations:
            self.check_logprobs(prompt, generation, expected)

    @pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
    async def test_the_loss_of_any_process_causes_only_a_restart(
        self,
        served: ServerEngine,
        weights: Weights,
        prompt: Int32Array,
        long: Sampling,
        expected: Expected,
        sent: signal.Signals,
    ) -> None:
        await served.load(weights(0))
        await served.load(weights(2))
        (server,) = served.servers
        needed = [number for number, pid in enumerate(server.pids) if not is_tracker(pid)]
        assert len(needed) > 1
        for number in random.sample(needed, self.losses or len(needed)):
            before = [psutil.Process(pid) for pid in server.pids]
            files = {path for process in before for path in mapped_shared_memory(process.pid)}
            restarts = server.restarts
            async with Load(served, prompt, long, requests=4) as load:
                await asyncio.sleep(self.head_start_s)
                before[number].send_signal(sent)
                await self.until_restarted(served, restarts)

            assert served.version == 2
            assert server.restarts == restarts + 1
            assert not [process for process in before if is_alive(process)]
            assert not [path for path in files if Path(path).exists()]
            for generation in load.generations:
                check(generation, long)
                assert generation.finish is Finish.LENGTH
                self.check_logprobs(prompt, generation, expected)

    async def test_a_server_lost_during_a_load_serves_the_new_version_after_its_restart(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, long: Sampling, expected: Expected
    ) -> None:
        await served.load(weights(0))
        (server,) = served.servers
        pids, restarts = server.pids, server.restarts
        os.kill(pids[-1], signal.SIGKILL)
        await within(served.load(weights(3)))
        generation = await within(served.generate("a", prompt, Sampling(max_new_tokens=8)))

        assert served.version == 3
        assert server.restarts == restarts + 1
        assert [span.version for span in generation.spans] == [3]
        self.check_logprobs(prompt, generation, expected)

    async def test_a_used_up_restart_budget_fails_the_engine(
        self, build_server: BuildServer, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        engine = build_server(restarts=0)
        try:
            await engine.load(weights(0))
            running = await self.begun(engine, "a", prompt, long)
            os.kill(engine.servers[0].pids[0], signal.SIGKILL)
            reason = await within(engine.wait_failed())

            assert "restarts = 0" in reason
            with raises_code(Unavailable, "engine.failed"):
                await within(running)
            with raises_code(Unavailable, "engine.failed"):
                await within(engine.generate("b", prompt, long))
        finally:
            await engine.close()

    async def test_a_patched_version_equals_a_reloaded_one(
        self, served: ServerEngine, weights: Weights, delta: Weights, prompt: Int32Array, expected: Expected
    ) -> None:
        if not self.patches:
            pytest.skip("the engine does not patch in place on this device")
        await served.load(weights(0))
        before = served.patches
        await served.load(delta(1))
        assert served.patches == before + 1
        patched = await self.checksum(served)
        generation = await within(served.generate("a", prompt, Sampling(max_new_tokens=8)))
        await served.load(weights(1))

        assert patched == await self.checksum(served)
        assert served.patches == before + 1
        self.check_logprobs(prompt, generation, expected)

    async def test_a_version_from_another_base_is_reloaded(
        self, served: ServerEngine, weights: Weights, delta: Weights, prompt: Int32Array, expected: Expected
    ) -> None:
        await served.load(weights(3))
        before = served.patches
        await served.load(delta(1))
        generation = await within(served.generate("a", prompt, Sampling(max_new_tokens=8)))

        assert served.patches == before
        self.check_logprobs(prompt, generation, expected)

    async def test_closing_ends_running_requests(
        self, build_server: BuildServer, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        engine = build_server()
        await engine.load(weights(0))
        processes = [psutil.Process(pid) for pid in engine.servers[0].pids]
        folder = engine.folder
        assert folder is not None
        files = {str(folder.path), str((folder.path / "model.safetensors").resolve())}
        files |= {path for process in processes for path in mapped_shared_memory(process.pid)}
        running = await self.begun(engine, "a", prompt, long)
        await within(engine.close())

        assert (await within(running)).finish is Finish.ABORT
        assert len(processes) > 1
        assert not [process for process in processes if is_alive(process)]
        assert not [path for path in files if Path(path).exists()]

    async def test_a_stop_string_ends_a_generation_and_is_part_of_it(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array, long: Sampling
    ) -> None:
        stops = tuple(string.ascii_uppercase)  # no random text lacks them all, no special token has any
        await served.load(weights(0))
        generation = await within(served.generate("a", prompt, replace(long, stop_strings=stops)))

        check(generation, long)
        text = text_of(generation.tokens)
        assert generation.finish is Finish.STOP
        assert text.endswith(stops)
        assert not any(stop in text[:-1] for stop in stops)

    async def test_a_structured_output_matches_its_structure(
        self, served: ServerEngine, weights: Weights, prompt: Int32Array
    ) -> None:
        await served.load(weights(0))
        by_regex = await within(served.generate("a", prompt, Sampling(max_new_tokens=20, regex="[ab]{3}")))
        schema = json.dumps({"enum": ["yes", "no"]})
        by_schema = await within(served.generate("b", prompt, Sampling(max_new_tokens=20, json_schema=schema)))

        assert len(text_of(by_regex.tokens)) == 3
        assert set(text_of(by_regex.tokens)) <= {"a", "b"}
        assert json.loads(text_of(by_schema.tokens)) in ("yes", "no")

    def check_logprobs(self, prompt: Int32Array, generation: Generation, expected: Expected) -> None:
        """Checks that each token has the logprob of its version over the whole prefix."""
        tokens = np.concatenate([prompt, generation.tokens])
        begin = 0
        for span in generation.spans:
            part = slice(begin, begin + span.length)
            wanted = expected(span.version, tokens, len(prompt))[part]
            np.testing.assert_allclose(generation.logprobs[part], wanted, atol=self.gap)
            begin += span.length

    async def begun(
        self, engine: ServerEngine, request_id: str, prompt: Int32Array, sampling: Sampling
    ) -> "asyncio.Task[Generation]":
        """Starts a request and waits a moment, so that the engine has generated some tokens. An engine may hold it
        then, so that it cannot end before `release`."""
        task = asyncio.create_task(engine.generate(request_id, prompt, sampling))
        await asyncio.sleep(self.head_start_s)  # real engines generate in real time: there is no clock to advance
        return task

    def release(self) -> None:
        """Lets begun requests go on, in an engine that can hold them."""

    async def until_restarted(self, engine: ServerEngine, restarts: int) -> None:
        """Waits until the first server has restarted once more and serves."""
        await until(lambda: has_restarted(engine, restarts))

    async def checksum(self, engine: ServerEngine) -> str:
        """Returns the checksum of the weights in the first server."""
        return await engine.dialect.checksum(engine.servers[0].client)


class Load:
    """Requests without an end: each one that is complete is followed by another. Use as a context manager, whose end
    waits for the last ones."""

    def __init__(self, engine: ServerEngine, prompt: Int32Array, sampling: Sampling, *, requests: int) -> None:
        self._engine, self._prompt, self._sampling, self._requests = engine, prompt, sampling, requests
        self._ids = count()
        self._is_over = False
        self._group: asyncio.Future[Any] | None = None
        self.generations: list[Generation] = []
        """Complete generations. An error of any ends the block with that error."""

    async def __aenter__(self) -> "Load":
        self._group = asyncio.gather(*(self._repeat() for _ in range(self._requests)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._group is not None
        self._is_over = True
        if kind is not None:
            self._group.cancel()
            with suppress(asyncio.CancelledError):
                await self._group
            return
        await within(self._group)

    async def _repeat(self) -> None:
        while True:
            request_id = f"load-{id(self)}-{next(self._ids)}"
            self.generations.append(await self._engine.generate(request_id, self._prompt, self._sampling))
            if self._is_over:
                return


def has_restarted(engine: ServerEngine, restarts: int) -> bool:
    """Returns whether the first server has restarted once more than `restarts` times, and serves."""
    return engine.servers[0].restarts > restarts and engine.servers[0].serving.is_set()


def is_tracker(pid: int) -> bool:
    """Returns whether the process only cleans up after multiprocessing: a server serves on without it."""
    return any("resource_tracker" in argument for argument in psutil.Process(pid).cmdline())


def is_alive(process: psutil.Process) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
