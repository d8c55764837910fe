"""Real SGLang and vLLM servers pass the suites of engines and of servers: `make engines`."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from astraflow.contract.generation import Sampling
from astraflow.contract.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.runtime.home import HOME, home
from tests import make_torch
from tests.engines.real import MODEL, adapted, adapters, delta_to, server, version
from tests.suites import engine_suite
from tests.suites.engine_suite import Build, Weights, until, within
from tests.suites.server_engine_suite import BuildServer, Expected, ServerEngineSuite
from tests.suites.shared_engine import SharedEngine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

INSTALLED = home() / "engines"
"""Environments of this machine; tests have a home of their own."""
PROMPT = np.array([2, 34, 32, 18, 31, 100, 5, 6, 76, 7, 8, 84, 3, 100, 2, 14], dtype=np.int32)


def logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
    found = make_torch.logprobs(make_torch.model(number, MODEL), tokens, scored_from)
    return np.asarray(found, dtype=np.float32)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Selects asyncio, for fixtures that tests share."""
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Gives real servers time to start again, and leaves them a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(engine_suite, "GIVE_UP_S", 150.0)
        yield
    torch.set_num_threads(threads)


class RealServerSuite(ServerEngineSuite):
    """Suites with real servers. A missing environment fails the tests."""

    kind = ""
    head_start_s = 0.4
    long_tokens = 1000
    """Tokens of a request that still runs after several head starts."""
    losses = 1

    @pytest.fixture(scope="class")
    async def shared(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerEngine]:
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv(HOME, str(INSTALLED.parent))
            engine = server(self.kind)
            changed.setenv(HOME, str(tmp_path_factory.mktemp("shared-home")))
            await engine.start()
        try:
            await engine.load(version(0))
            await engine.generate("first", PROMPT, Sampling(max_new_tokens=20))  # the first request takes seconds
            yield engine
        finally:
            await engine.close()

    @pytest.fixture
    async def served(self, shared: ServerEngine) -> AsyncIterator[ServerEngine]:
        yield shared
        await SharedEngine(shared).close()

    @pytest.fixture
    def build(self, shared: ServerEngine) -> Build:
        return lambda: SharedEngine(shared)

    @pytest.fixture
    def build_server(self, own_home: Path) -> BuildServer:
        (own_home / "engines").symlink_to(INSTALLED)
        return lambda **options: server(self.kind, **options)

    @pytest.fixture
    def build_new(self, build_server: BuildServer) -> Build:
        return build_server

    @pytest.fixture
    def weights(self) -> Weights:
        return version

    @pytest.fixture
    def delta(self) -> Weights:
        return delta_to

    @pytest.fixture
    def expected(self) -> Expected:
        return logprobs

    @pytest.fixture
    def prompt(self) -> Int32Array:
        return PROMPT

    @pytest.fixture
    def long(self) -> Sampling:
        return Sampling(max_new_tokens=self.long_tokens)

    async def test_adapters_are_loaded_beside_their_base(self, build_server: BuildServer, prompt: Int32Array) -> None:
        engine = build_server(lora=True)
        try:
            await engine.load(adapters(0))
            running = await self.begun(engine, "a", prompt, Sampling(max_new_tokens=self.long_tokens))
            await within(engine.load(adapters(1)))
            self.check_logprobs(prompt, await within(running), adapted_logprobs)
            await within(engine.load(adapters(2)))
            os.kill(engine.servers[0].pids[-1], signal.SIGKILL)
            await until(lambda: engine.servers[0].restarts == 1)
            after = await within(engine.generate("b", prompt, Sampling(max_new_tokens=20)))

            assert [span.version for span in running.result().spans] == [0, 1]
            assert [span.version for span in after.spans] == [2]
            self.check_logprobs(prompt, after, adapted_logprobs)
        finally:
            await engine.close()


def adapted_logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
    return np.asarray(make_torch.logprobs(adapted(number), tokens, scored_from), dtype=np.float32)


class TestSglang(RealServerSuite):
    kind = "sglang"
    supported = RealServerSuite.supported - {"seed"}
    """SGLang uses seeds only with deterministic kernels, which do not exist for CPUs."""


class TestVllm(RealServerSuite):
    kind = "vllm"
    patches = False
    """On a CPU it packs its weights."""
