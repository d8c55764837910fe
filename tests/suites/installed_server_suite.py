"""Contract tests of the engines of installed server programs, real and simulated, on servers that tests share."""

import asyncio
import json
import os
import signal
import sys
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch

from astraflow.client.model_server import ServerClient
from astraflow.conformance.engines import Subject
from astraflow.contract.errors import Unavailable
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.local.sampling import log_distribution
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.raas.engines.server.model_folder import ModelFolder
from astraflow.raas.engines.server.replica import free_port
from astraflow.runtime.folders.run_folders import HOME
from astraflow.runtime.processes.supervised import mapped_shared_memory
from astraflow.testing.plugins import EngineSuite
from astraflow.weights.tensors import VerifiedWeights
from tests.suites.server_engine_suite import BuildServer, Expected, ServerEngineSuite, is_alive
from tests.suites.serving import Weights, until, within

FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5},
    {"temperature": 0.0},
    {"top_p": 0.6},
    {"top_k": 5, "temperature": 2.0},
    {"min_p": 0.3},
    {"top_p": 0.6, "top_k": 128, "with_support": True},
    {"top_k": 5, "with_support": True, "top_tokens": 0},
)
KILLED_NODE = """
import asyncio, json, sys
from pathlib import Path
from astraflow.raas.engines.server.process import ServerProcess

async def main():
    argv, variables, log_file = json.loads(sys.argv[1])
    process = await ServerProcess.start(argv, variables, Path(log_file))
    await process.wait()

asyncio.run(main())
"""
"""Node that starts a server and does nothing else; without the engine, whose imports take seconds."""


class InstalledServerSuite(ServerEngineSuite, EngineSuite):
    """Tests to inherit, with those of every engine of servers, and their fixtures. Most tests of a class share one
    engine."""

    kind: ClassVar[str]
    """Engine: `sglang` or `vllm`."""
    prompt_tokens: ClassVar[Int32Array]
    long_tokens: ClassVar[int]
    """Tokens of a request that still runs after several head starts."""
    checked_tokens: ClassVar[int]
    """Tokens of a request of the checks of an engine."""

    @abstractmethod
    def install(self) -> None:
        """Installs the server program below `$ASTRAFLOW_HOME`, which is empty."""

    @abstractmethod
    def server(self, **options: Any) -> ServerEngine:
        """Returns an engine that is not started."""

    @staticmethod
    @abstractmethod
    def version(number: int) -> VerifiedWeights:
        """Returns a version; each has other weights."""

    @staticmethod
    @abstractmethod
    def delta_to(number: int) -> VerifiedWeights:
        """Returns a version as a delta from the previous one."""

    @staticmethod
    @abstractmethod
    def logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]` with a version, by another program than the server."""

    @staticmethod
    @abstractmethod
    def adapters(number: int) -> VerifiedWeights:
        """Returns a version of adapters on version 0."""

    @staticmethod
    @abstractmethod
    def adapted_logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
        """Returns the logprobs of `tokens[scored_from:]` with a version of the adapters on version 0."""

    @staticmethod
    @abstractmethod
    def next_logits(number: int, tokens: Int32Array) -> Float32Array:
        """Returns the logits after `tokens` with a version, `[vocabulary]`, by another program than the server."""

    @pytest.fixture(scope="class")
    async def shared(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerEngine]:
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv(HOME, str(tmp_path_factory.mktemp("shared-home")))
            self.install()
            engine = self.server()
            await engine.start()
        try:
            await engine.load(self.version(0))
            first = Sampling(max_new_tokens=20)  # takes seconds in a real server
            await engine.generate("first", self.prompt_tokens, first)
            yield engine
        finally:
            await engine.close()

    @pytest.fixture
    async def served(self, shared: ServerEngine) -> AsyncIterator[ServerEngine]:
        yield shared
        await shared.pause(PauseMode.ABORT)
        await shared.resume()

    @pytest.fixture
    def build_server(self, own_home: Path) -> BuildServer:
        self.install()
        return self.server

    @pytest.fixture
    def subject(self, build_server: BuildServer, weights: Weights, prompt: Int32Array) -> Subject:
        sampling = Sampling(max_new_tokens=self.checked_tokens)
        return Subject(engine=build_server(), weights=weights, prompt=prompt, sampling=sampling)

    @pytest.fixture
    def weights(self) -> Weights:
        return self.version

    @pytest.fixture
    def delta(self) -> Weights:
        return self.delta_to

    @pytest.fixture
    def expected(self) -> Expected:
        return self.logprobs

    @pytest.fixture
    def prompt(self) -> Int32Array:
        return self.prompt_tokens

    @pytest.fixture
    def long(self) -> Sampling:
        return Sampling(max_new_tokens=self.long_tokens)

    async def test_adapters_are_loaded_beside_their_base(
        self, build_server: BuildServer, prompt: Int32Array, long: Sampling
    ) -> None:
        engine = build_server(lora=True)
        try:
            await engine.load(self.adapters(0))
            running = await self.begun(engine, "a", prompt, long)
            await within(engine.load(self.adapters(1)))
            self.release()
            generation = await within(running)
            self.check_logprobs(prompt, generation, self.adapted_logprobs)
            await within(engine.load(self.adapters(2)))
            os.kill(engine.servers[0].pids[-1], signal.SIGKILL)
            await self.until_restarted(engine, 0)
            after = await within(engine.generate("b", prompt, Sampling(max_new_tokens=20)))
            scores = await within(engine.score(prompt, 1))

            assert [span.version for span in generation.spans] == [0, 1]
            assert [span.version for span in after.spans] == [2]
            self.check_logprobs(prompt, after, self.adapted_logprobs)
            np.testing.assert_allclose(scores, self.adapted_logprobs(2, prompt, 1), atol=self.gap)
        finally:
            await engine.close()

    async def test_the_most_likely_tokens_are_those_of_the_sampled_distribution(
        self, served: ServerEngine, prompt: Int32Array
    ) -> None:
        await served.load(self.version(0))
        samplings = [Sampling(**{"max_new_tokens": 4, "top_tokens": 8, **values}) for values in FILTERS]
        requests = (served.generate(str(number), prompt, sampling) for number, sampling in enumerate(samplings))
        for sampling, generation in zip(samplings, await within(asyncio.gather(*requests)), strict=True):
            for row, token in enumerate(generation.tokens.tolist()):
                expected = self._distribution(np.append(prompt, generation.tokens[:row]), sampling)
                np.testing.assert_allclose(generation.logprobs[row], expected[token], atol=self.gap)
                if sampling.with_support:
                    kept = generation.columns[TokenColumn.SUPPORT][row]
                    assert sorted(kept[kept >= 0]) == np.flatnonzero(np.isfinite(expected)).tolist()
                if not sampling.top_tokens:
                    continue
                ids = generation.columns[TokenColumn.TOP_TOKENS]
                values = generation.columns[TokenColumn.TOP_LOGPROBS]
                likely = np.sort(expected)[::-1][: sampling.top_tokens]
                np.testing.assert_allclose(np.sort(values[row])[::-1], likely[: values.shape[1]], atol=1e-2)
                assert not np.isfinite(likely[values.shape[1] :]).any(), "narrower columns hold all tokens"
                recorded = np.isfinite(values[row])
                assert ((ids[row] >= 0) == recorded).all()
                np.testing.assert_allclose(values[row][recorded], expected[ids[row][recorded]], atol=1e-2)

    @pytest.mark.parametrize("filters", [{}, {"top_p": 0.6}], ids=["whole", "filtered"])
    async def test_an_aborted_request_has_the_most_likely_tokens_of_what_it_wrote(
        self, served: ServerEngine, prompt: Int32Array, long: Sampling, filters: dict[str, Any]
    ) -> None:
        await served.load(self.version(0))
        running = await self.begun(served, "aborted", prompt, replace(long, top_tokens=8, **filters))
        await served.abort("aborted")
        generation = await within(running)

        assert generation.finish is Finish.ABORT
        assert 0 < len(generation.tokens) == len(generation.columns[TokenColumn.TOP_TOKENS])

    def _distribution(self, tokens: Int32Array, sampling: Sampling) -> Float32Array:
        """Returns the logprobs of the sampled distribution of version 0, as `local_torch` computes them."""
        logits = torch.from_numpy(self.next_logits(0, tokens))[None]
        filters = (torch.tensor([value]) for value in (sampling.temperature, sampling.top_p))
        cuts = {"top_k": torch.tensor([sampling.top_k]), "min_p": torch.tensor([sampling.min_p])}
        return np.asarray(log_distribution(logits, *filters, **cuts)[0].numpy(), dtype=np.float32)

    async def test_nothing_outlives_a_killed_node(self, build_server: BuildServer, tmp_path: Path) -> None:
        engine, port, key = build_server(), free_port(), "key"
        folder = ModelFolder(engine.model)
        launch = engine.dialect.launch(
            engine.environment, engine.options, model=folder.path, port=port, key=key, devices="0"
        )
        variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **launch.variables}
        start = json.dumps([launch.argv, variables, str(tmp_path / "server.log")])
        node = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_NODE, start)
        client = ServerClient(f"http://127.0.0.1:{port}", key=key)
        try:
            await within(self.until_up(engine, client))
            processes = psutil.Process(node.pid).children(recursive=True)
            files = {path for process in processes for path in mapped_shared_memory(process.pid)}
            node.kill()
            await node.wait()

            assert len(processes) > 2  # the supervisor, the server, and those below it
            await until(lambda: not any(is_alive(process) for process in processes))
            assert not [path for path in files if Path(path).exists()]
        finally:
            await client.close()
            folder.close()

    async def until_up(self, engine: ServerEngine, client: ServerClient) -> None:
        """Waits until a server answers."""
        while True:
            with suppress(Unavailable, TimeoutError):
                await engine.dialect.is_up(client)
                return
            await asyncio.sleep(0.1)
