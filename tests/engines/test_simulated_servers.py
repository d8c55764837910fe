"""The engine with simulated servers of both protocols passes the suites of engines and of servers."""

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.client.model_server import ServerClient, ServerRefused
from astraflow.conformance import engines
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import EngineGauges, PauseMode
from astraflow.raas.engines.server import replica
from astraflow.raas.engines.server.dialect import Dialect, ServerLoad
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.options import ServerOptions
from astraflow.raas.engines.server.sglang import SglangDialect, SglangOptions
from astraflow.raas.engines.server.vllm import VllmDialect, VllmOptions
from astraflow.weights.tensors import VerifiedWeights
from tests import make_torch
from tests.engines.real import adapters_on
from tests.errors import raises_code
from tests.fakes.clock import JumpingClock
from tests.fakes.engine_server import token_model
from tests.fakes.engine_server.environment import FakeEnvironment
from tests.suites.installed_server_suite import InstalledServerSuite
from tests.suites.server_engine_suite import Load, has_restarted
from tests.suites.serving import GIVE_UP_S, until, within

PROMPT = np.array([5, 6, 7, 8, 9], dtype=np.int32)
LONG = Sampling(max_new_tokens=60)
HELD_TOKENS = 10
"""Tokens at which a begun request waits."""
HANG_S = 60.0
"""Jump of the clock while a server hangs, longer than its limits. The limits are long in real time, so that a busy
machine is not taken for a hang."""
KINDS: dict[str, tuple[type[Dialect], type[ServerOptions]]] = {
    "sglang": (SglangDialect, SglangOptions),
    "vllm": (VllmDialect, VllmOptions),
}


@cache
def version(number: int) -> VerifiedWeights:
    return make_torch.published(make_torch.model(seed=number), number)


@cache
def delta_to(number: int) -> VerifiedWeights:
    return make_torch.published(make_torch.model(seed=number), number, base=version(number - 1))


@cache
def adapters(number: int) -> VerifiedWeights:
    return adapters_on(version(0), make_torch.model(seed=0), number)


def identity_of(weights: VerifiedWeights, *, prefix: str = "") -> bytes:
    bits = weights.buffer.tobytes()
    return token_model.identity(
        {prefix + spec.name: bits[spec.offset : spec.offset + spec.size_bytes] for spec in weights.manifest.tensors}
    )


def logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
    values = token_model.logprobs(identity_of(version(number)), tokens.tolist(), scored_from)
    return np.array(values, dtype=np.float32)


def adapted_logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
    adapter = identity_of(adapters(number), prefix="base_model.model.")
    identity = token_model.adapted(identity_of(version(0)), adapter)
    return np.array(token_model.logprobs(identity, tokens.tolist(), scored_from), dtype=np.float32)


def server(kind: str, **options: Any) -> ServerEngine:
    dialect, options_type = KINDS[kind]
    parsed = options_type.model_validate({"restarts": 1000, **options})
    return ServerEngine(dialect(), parsed, make_torch.TINY, clock=JumpingClock())


async def begun(engine: ServerEngine, request_id: str = "a", sampling: Sampling = LONG) -> "asyncio.Task[Generation]":
    """Starts a request and waits until it has some tokens. It waits then until the environment releases it."""
    client = engine.servers[0].client
    FakeEnvironment.of(engine).hold(HELD_TOKENS)
    before = (await engine.dialect.load(client)).tokens_total
    task = asyncio.create_task(engine.generate(request_id, PROMPT, sampling))
    async with asyncio.timeout(GIVE_UP_S):
        while (await engine.dialect.load(client)).tokens_total < before + HELD_TOKENS:  # noqa: ASYNC110 (in a process)
            await asyncio.sleep(0.01)
    return task


def release(engine: ServerEngine) -> None:
    """Lets begun requests go on."""
    FakeEnvironment.of(engine).release()


async def until_restarted(engine: ServerEngine, restarts: int) -> None:
    """Waits until the first server has restarted once more and serves; lets time pass until its loss is noticed."""
    server, clock = engine.servers[0], engine._clock
    assert isinstance(clock, JumpingClock)
    async with asyncio.timeout(GIVE_UP_S):
        while not has_restarted(engine, restarts):
            if server.serving.is_set():
                clock.jump(HANG_S)
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module", autouse=True)
def quick_gauges() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(replica, "GAUGES_EVERY_S", 0.1)
        changed.setattr(engines, "PAUSED_SCORE_S", 0.3)  # the servers score after the pause
        yield


class SimulatedServerSuite(InstalledServerSuite):
    """Suites with simulated servers."""

    prompt_tokens = PROMPT
    long_tokens = LONG.max_new_tokens
    checked_tokens = 150
    aborted_within_s = GIVE_UP_S
    """An aborted request is held and would never end."""

    def install(self) -> None:
        FakeEnvironment(self.kind)

    def server(self, **options: Any) -> ServerEngine:
        return server(self.kind, **options)

    @staticmethod
    def version(number: int) -> VerifiedWeights:
        return version(number)

    @staticmethod
    def delta_to(number: int) -> VerifiedWeights:
        return delta_to(number)

    @staticmethod
    def logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
        return logprobs(number, tokens, scored_from)

    @staticmethod
    def next_logits(number: int, tokens: Int32Array) -> Float32Array:
        identity = identity_of(version(number))
        state = token_model.extended(token_model.empty(identity), tokens.tolist(), identity)
        return np.array(token_model.logits(state), dtype=np.float32)

    @staticmethod
    def adapters(number: int) -> VerifiedWeights:
        return adapters(number)

    @staticmethod
    def adapted_logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
        return adapted_logprobs(number, tokens, scored_from)

    @pytest.fixture(autouse=True)
    def released(self) -> Iterator[None]:
        """Leaves no request of a shared server on hold."""
        self._holding: list[ServerEngine] = []
        yield
        self.release()

    async def begun(
        self, engine: ServerEngine, request_id: str, prompt: Int32Array, sampling: Sampling
    ) -> "asyncio.Task[Generation]":
        assert prompt is PROMPT
        self._holding.append(engine)
        return await begun(engine, request_id, sampling)

    def release(self) -> None:
        for engine in self._holding:
            release(engine)

    async def until_restarted(self, engine: ServerEngine, restarts: int) -> None:
        await until_restarted(engine, restarts)


class TestSglangServer(SimulatedServerSuite):
    kind = "sglang"


class TestVllmServer(SimulatedServerSuite):
    kind = "vllm"
    patches = False


RELOAD = {"sglang": "/update_weights_from_disk", "vllm": "/collective_rpc"}
"""Route that reloads all weights, without the weight mapping."""
PATCH = {"sglang": "/astraflow/update", "vllm": "/collective_rpc"}
"""Route that patches, and reloads with the weight mapping."""
GENERATE = {"sglang": "/generate", "vllm": "/inference/v1/generate"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_served(
    engine: ServerEngine, number: int, served_logprobs: Float32Array, tokens: Int32Array, start: int
) -> None:
    """Checks that these are the logprobs of a version."""
    assert engine.version == number
    np.testing.assert_allclose(served_logprobs, logprobs(number, tokens, start), atol=1e-5)


@pytest.mark.anyio
async def test_a_failed_load_restarts_the_server_with_the_staged_version(kind: str) -> None:
    environment = FakeEnvironment(kind)
    engine = server(kind, patch="off")
    try:
        await engine.load(version(0))
        environment.fail(RELOAD[kind], status=500)
        async with Load(engine, PROMPT, LONG, requests=2) as load:
            await within(engine.load(version(1)))

        assert engine.servers[0].restarts == 1
        assert all(generation.finish is Finish.LENGTH for generation in load.generations)
        assert_served(engine, 1, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_load_that_fails_after_the_weights_changed_does_not_serve_the_old_version() -> None:
    environment = FakeEnvironment("sglang")
    engine = server("sglang", patch="off")
    try:
        await engine.load(version(0))
        failure = {"success": False, "message": "Cache flush failed after updating weights", "num_paused_requests": 0}
        environment.fail(RELOAD["sglang"], status=200, after=True, answer=failure)
        await within(engine.load(version(1)))

        assert engine.servers[0].restarts == 1
        assert_served(engine, 1, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_a_refused_patch_is_followed_by_a_reload(kind: str) -> None:
    environment = FakeEnvironment(kind, device="cuda")  # vLLM patches on a GPU only
    engine = server(kind)
    try:
        await engine.load(version(0))
        environment.fail(PATCH[kind], status=400 if kind == "sglang" else 500)
        await within(engine.load(delta_to(1)))

        assert engine.servers[0].restarts == 0
        assert_served(engine, 1, await engine.score(PROMPT, 1), PROMPT, 1)
        await within(engine.load(delta_to(2)))
        assert_served(engine, 2, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_patches_are_compared_with_a_reload(kind: str) -> None:
    FakeEnvironment(kind, device="cuda")
    engine = server(kind, patch_check_every=2)
    try:
        await engine.load(version(0))
        for number in (1, 2, 3):
            await within(engine.load(delta_to(number)))
            assert_served(engine, number, await engine.score(PROMPT, 1), PROMPT, 1)

        assert engine.patches == 3
        assert engine._can_patch
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_servers_share_the_requests_and_survive_the_loss_of_one(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind, servers=2)
    try:
        await engine.load(version(0))
        first, second = engine.servers
        FakeEnvironment.of(engine).hold(HELD_TOKENS)
        async with Load(engine, PROMPT, LONG, requests=6) as load:
            await until(lambda: first.in_flight + second.in_flight == 6)
            assert (first.in_flight, second.in_flight) == (3, 3)
            os.kill(second.pids[0], signal.SIGKILL)
            await within(engine.load(version(1)))
            await within(second.serving.wait())
            release(engine)

        assert (first.restarts, second.restarts) == (0, 1)
        assert {generation.finish for generation in load.generations} == {Finish.LENGTH}
        for _ in engine.servers:
            assert_served(engine, 1, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_a_request_whose_server_was_not_lost_raises_its_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.raas.engines.server.request_router.LOSS_DETECTION_S", 0.2)
    environment = FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        environment.fail(GENERATE[kind], status=500)
        with raises_code(ServerRefused, "engine.server_refused", "500"):
            await engine.generate("a", PROMPT, LONG)

        assert len((await engine.generate("a", PROMPT, LONG)).tokens) == LONG.max_new_tokens
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_control_requests_survive_a_connection_that_the_server_closed(kind: str) -> None:
    environment = FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        environment.fail("/pause_generation" if kind == "sglang" else "/pause", drop=True)
        await within(engine.load(version(1)))

        assert engine.servers[0].restarts == 0
        assert_served(engine, 1, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_a_prompt_beyond_the_context_is_refused(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind, context_tokens=16)
    try:
        await engine.load(version(0))
        with raises_code(ServerRefused, "engine.server_refused", "400"):
            await engine.generate("a", np.tile(PROMPT, 4), LONG)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_an_exit_at_the_start_is_reported_with_the_last_log_lines(kind: str) -> None:
    FakeEnvironment(kind).fail_start(exit=3)
    engine = server(kind)
    with raises_code(Unavailable, "engine.not_started", "code 3", "RuntimeError: injected exit"):
        await engine.start()
    await engine.close()


@pytest.mark.anyio
async def test_a_server_that_does_not_start_in_time_is_killed(kind: str) -> None:
    FakeEnvironment(kind).fail_start(delay_s=30)
    engine = server(kind, start_timeout_s=0.3)
    with raises_code(Unavailable, "engine.not_started", "0.3 s"):
        await engine.start()

    assert engine.servers[0].pids == []
    await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_starting_waits_for_a_slow_server(kind: str) -> None:
    FakeEnvironment(kind).fail_start(delay_s=0.5)
    engine = server(kind)
    try:
        await engine.load(version(0))

        assert engine.servers[0].restarts == 0
        assert_served(engine, 0, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_server_that_answers_everything_but_generations_is_restarted(kind: str) -> None:
    environment = FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        environment.fail(GENERATE[kind], hang_s=3600, times=1000)
        await until_restarted(engine, 0)
        environment.heal()

        assert_served(engine, 0, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_a_server_that_generates_may_miss_more_probes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEnvironment(kind)
    engine = server(kind)
    clock, probes, generated = engine._clock, 0, 0.0
    assert isinstance(clock, JumpingClock)

    async def misses_probe(*_: object, **__: object) -> None:
        nonlocal probes
        probes += 1
        raise TimeoutError("starved")

    async def generates(*_: object) -> ServerLoad:
        nonlocal generated
        generated += 1
        return ServerLoad(gauges=EngineGauges(), tokens_total=generated)

    async def generates_nothing(*_: object) -> ServerLoad:
        return ServerLoad(gauges=EngineGauges(), tokens_total=generated)

    try:
        await engine.load(version(0))
        monkeypatch.setattr(engine.dialect, "score", misses_probe)
        monkeypatch.setattr(engine.dialect, "load", generates)
        async with asyncio.timeout(GIVE_UP_S):
            while not engine.servers[0].restarts:
                clock.jump(HANG_S)
                await asyncio.sleep(0.05)
            assert probes == replica.MISSES_WHILE_GENERATING

            await until(engine.servers[0].serving.is_set)
            monkeypatch.setattr(engine.dialect, "load", generates_nothing)
            while engine.servers[0].restarts < 2:
                clock.jump(HANG_S)
                await asyncio.sleep(0.05)
            assert probes <= replica.MISSES_WHILE_GENERATING + 2 * replica.MISSES
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_failed_restarts_count_against_the_budget(kind: str) -> None:
    environment = FakeEnvironment(kind)
    engine = server(kind, restarts=2)
    try:
        await engine.load(version(0))
        environment.fail_start(exit=3)
        os.kill(engine.servers[0].pids[0], signal.SIGKILL)
        reason = await within(engine.wait_failed())

        assert "restarts = 2" in reason
        assert engine.servers[0].restarts == 2
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_a_load_during_a_restart_waits_for_it(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        os.kill(engine.servers[0].pids[0], signal.SIGKILL)
        await until(lambda: engine.servers[0].is_restarting)
        await within(engine.load(version(1)))

        assert engine.servers[0].restarts == 1
        assert_served(engine, 1, await engine.score(PROMPT, 1), PROMPT, 1)
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_os_errors_at_a_restart_count_against_the_budget(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEnvironment(kind)
    engine = server(kind, restarts=1)
    try:
        await engine.load(version(0))

        async def fail(*_: object, **__: object) -> None:
            raise OSError("too many open files")

        monkeypatch.setattr("astraflow.raas.engines.server.process.ServerProcess.start", fail)
        os.kill(engine.servers[0].pids[0], signal.SIGKILL)

        assert "restarts = 1" in await within(engine.wait_failed())
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_a_paused_engine_stays_paused_over_a_restart(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        await engine.pause(PauseMode.KEEP)
        os.kill(engine.servers[0].pids[0], signal.SIGKILL)
        await until_restarted(engine, 0)
        running = asyncio.create_task(engine.generate("a", PROMPT, LONG))
        await asyncio.sleep(0.1)
        assert not running.done()
        await engine.resume()

        assert (await within(running)).finish is Finish.LENGTH
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_the_suite_detects_a_weight_update_on_the_old_cache(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the suites see the error which `PauseMode.KEEP` avoids."""
    FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        running = await begun(engine)
        client, folder = engine.servers[0].client, engine.folder
        assert folder is not None
        folder.stage(version(1), with_patch=False)
        if kind == "sglang":
            await client.post("/pause_generation", {"mode": "in_place"}, limit_s=GIVE_UP_S)
            body = {"model_path": str(folder.path), "load_format": "auto", "weight_version": "1", "flush_cache": False}
            await client.post("/update_weights_from_disk", body, limit_s=GIVE_UP_S)
            await client.post("/continue_generation", {}, limit_s=GIVE_UP_S)
        else:
            await client.post("/pause", {}, query={"mode": "keep", "clear_cache": "false"}, limit_s=GIVE_UP_S)
            arguments = {"path": str(folder.path / "model.safetensors"), "learn": "0"}
            await client.post("/collective_rpc", {"method": "astraflow_load", "kwargs": arguments}, limit_s=GIVE_UP_S)
            await client.post("/update_weight_version", {"new_version": "1"}, limit_s=GIVE_UP_S)
            await client.post("/resume", {}, limit_s=GIVE_UP_S)
        release(engine)
        generation = await within(running)

        assert [span.version for span in generation.spans] == [0, 1]
        after = generation.spans[0].length
        wanted = logprobs(1, np.concatenate([PROMPT, generation.tokens]), len(PROMPT))
        assert np.abs(wanted[after:] - generation.logprobs[after:]).max() > 0.5
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_flush_beside_running_requests_fails_after_the_weights_changed() -> None:
    """SGLang's `in_place` with `flush_cache`, which the simulated server must reproduce."""
    FakeEnvironment("sglang")
    engine = server("sglang", patch="off")
    try:
        await engine.load(version(0))
        running = await begun(engine)
        client, folder = engine.servers[0].client, engine.folder
        assert folder is not None
        folder.stage(version(1), with_patch=False)
        await client.post("/pause_generation", {"mode": "in_place"}, limit_s=GIVE_UP_S)
        body = {"model_path": str(folder.path), "load_format": "auto", "weight_version": "1", "flush_cache": True}
        with raises_code(ServerRefused, "engine.server_refused", "400", "false"):
            await client.post("/update_weights_from_disk", body, limit_s=GIVE_UP_S)
        await client.post("/continue_generation", {}, limit_s=GIVE_UP_S)
        release(engine)

        assert [span.version for span in (await within(running)).spans] == [0, 1]
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_an_abort_needs_the_prefix_of_vllm() -> None:
    FakeEnvironment("vllm")
    engine = server("vllm")
    try:
        await engine.load(version(0))
        running = await begun(engine)
        (wire_id,) = engine._router.wire_ids
        answer = await engine.servers[0].client.post("/abort_requests", {"request_ids": [wire_id]}, limit_s=GIVE_UP_S)
        release(engine)

        assert answer == {"status": "aborted", "aborted": 1}
        assert (await within(running)).finish is Finish.LENGTH
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_request_that_ends_in_the_queue_has_no_tokens(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind, max_running=1)
    try:
        await engine.load(version(0))
        first = await begun(engine)
        second = asyncio.create_task(engine.generate("b", PROMPT, LONG))
        await until(lambda: engine.gauges().waiting == 1)
        await engine.abort("b")
        generation = await within(second)
        release(engine)

        assert generation.finish is Finish.ABORT
        assert len(generation.tokens) == 0
        assert (await within(first)).finish is Finish.LENGTH
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_the_key_of_a_server_is_only_known_to_the_node(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.load(version(0))
        key = engine.servers[0].client._session.headers["Authorization"].removeprefix("Bearer ")
        assert len(key) == 48
        for pid in engine.servers[0].pids:
            assert key not in Path(f"/proc/{pid}/cmdline").read_text()  # which all users can read
        stranger = ServerClient(engine.servers[0].client.base_url, key="another")
        try:
            for path in (GENERATE[kind], "/metrics", "/health", "/pause", "/collective_rpc", "/absent"):
                with raises_code(ServerRefused, "engine.server_refused", "401"):
                    await stranger.post(path, {}, limit_s=GIVE_UP_S)
        finally:
            await stranger.close()
    finally:
        await engine.close()


@pytest.mark.long
@pytest.mark.anyio
async def test_no_secret_of_the_node_reaches_a_server(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "value-of-a-secret")
    FakeEnvironment(kind)
    engine = server(kind)
    try:
        await engine.start()
        for pid in engine.servers[0].pids:
            assert "value-of-a-secret" not in Path(f"/proc/{pid}/environ").read_text()
    finally:
        await engine.close()


def test_a_missing_engine_is_refused_with_the_install_command(kind: str) -> None:
    with raises_code(InvalidInput, "engine.not_installed", kind, "astraflow engines install"):
        server(kind)


@pytest.mark.long
@pytest.mark.anyio
async def test_an_unknown_argument_ends_the_server(kind: str) -> None:
    FakeEnvironment(kind)
    engine = server(kind, arguments=("--no-such-flag", "1"))
    with raises_code(Unavailable, "engine.not_started", "--no-such-flag"):
        await engine.start()
    await engine.close()


@pytest.mark.anyio
async def test_all_options_are_accepted_by_the_server(kind: str) -> None:
    FakeEnvironment(kind, device="cuda")
    engine = server(
        kind,
        tensor_parallel=2,
        pipeline_parallel=2,
        expert_parallel=True,
        dtype="bfloat16",
        context_tokens=256,
        max_running=8,
        memory_share=0.5,
        lora=True,
        deterministic=kind == "sglang",
        devices=("4,5,6,7",),
    )
    try:
        await engine.start()
        environment = Path(f"/proc/{engine.servers[0].pids[0]}/environ").read_text()

        assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in environment
    finally:
        await engine.close()


@pytest.mark.anyio
async def test_adapters_are_merged_where_the_server_does_not_start_with_them(kind: str) -> None:
    FakeEnvironment(kind).fail_start(exit=1, with_argument="--enable-lora")
    engine = server(kind, lora=True)
    try:
        await engine.load(adapters(1))
        loaded = await engine.generate("a", PROMPT, Sampling(max_new_tokens=2))

        assert "--enable-lora" not in Path(f"/proc/{engine.servers[0].pids[0]}/cmdline").read_text()
        assert [span.version for span in loaded.spans] == [1]
    finally:
        await engine.close()
