"""Real SGLang and vLLM servers pass the suites of engines and of servers: `make engines`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
import torch

from astraflow.algorithms.config import TeacherEndpointConfig
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models import build_tokenizer
from astraflow.raas.engines.server.dialect import MODEL_NAME
from astraflow.raas.engines.server.engine import ServerEngine
from astraflow.runtime.folders.run_folders import home
from astraflow.trainer.step.teacher_endpoint import TeacherEndpoint
from astraflow.weights.tensors import VerifiedWeights
from tests import make_torch
from tests.engines.real import MODEL, adapted, adapters, delta_to, server, version
from tests.suites import serving
from tests.suites.installed_server_suite import InstalledServerSuite
from tests.suites.server_engine_suite import BuildServer
from tests.suites.serving import within
from tests.trainer.backends.test_local import batch

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

INSTALLED = home() / "engines"
"""Environments of this machine; tests have a home of their own."""


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Gives real servers time to start again, and leaves them a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(serving, "GIVE_UP_S", 150.0)
        yield
    torch.set_num_threads(threads)


class RealServerSuite(InstalledServerSuite):
    """Suites with real servers. A missing environment fails the tests."""

    prompt_tokens = np.array([2, 34, 32, 18, 31, 100, 5, 6, 76, 7, 8, 84, 3, 100, 2, 14], dtype=np.int32)
    long_tokens = checked_tokens = 300
    head_start_s = 0.4
    losses = 1
    updates = 200

    def install(self) -> None:
        (home() / "engines").symlink_to(INSTALLED)

    def server(self, **options: Any) -> ServerEngine:
        return server(self.kind, **options)

    @staticmethod
    def version(number: int) -> VerifiedWeights:
        return version(number)

    @staticmethod
    def delta_to(number: int) -> VerifiedWeights:
        return delta_to(number)

    @staticmethod
    def adapters(number: int) -> VerifiedWeights:
        return adapters(number)

    @staticmethod
    def logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
        values = make_torch.logprobs(make_torch.model(number, MODEL), tokens, scored_from)
        return np.asarray(values, dtype=np.float32)

    @staticmethod
    def next_logits(number: int, tokens: Int32Array) -> Float32Array:
        with torch.inference_mode():
            logits = make_torch.model(number, MODEL)(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0, -1]
        return np.asarray(logits.numpy(), dtype=np.float32)

    @staticmethod
    def adapted_logprobs(number: int, tokens: Int32Array, scored_from: int) -> Float32Array:
        return np.asarray(make_torch.logprobs(adapted(number), tokens, scored_from), dtype=np.float32)

    async def test_no_route_answers_without_the_key(self, served: ServerEngine) -> None:
        client = served.servers[0].client
        document = orjson.loads(await client.get("/openapi.json", limit_s=20.0))
        routes = [(method, path) for path, methods in document["paths"].items() for method in methods]
        routes += [("get", path) for path in ("/openapi.json", "/docs", "/metrics", "/health", "/absent")]
        assert len(routes) > 20
        async with aiohttp.ClientSession(client.base_url) as stranger:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                for method, path in routes:
                    async with stranger.request(
                        method, path.replace("{", "").replace("}", ""), headers=headers
                    ) as answer:
                        assert answer.status == 401, (method, path)

    async def test_a_trainer_distills_from_the_server_as_from_the_same_model_of_its_own(
        self, served: ServerEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await served.load(version(0))  # tests before it load others
        client = served.servers[0].client
        key = client._session.headers["Authorization"].removeprefix("Bearer ")
        monkeypatch.setenv("ASTRAFLOW_TEACHER_KEY", key)
        config = TeacherEndpointConfig(base_url=client.base_url, model=MODEL_NAME, key_variable="ASTRAFLOW_TEACHER_KEY")
        teacher = TeacherEndpoint(config, vocabulary=make_torch.model(0, MODEL).config.vocab_size)
        rows = dict(enumerate(row.trajectory for row in batch().rows))
        await asyncio.to_thread(teacher.check, build_tokenizer(MODEL), top=4)
        scores = await asyncio.to_thread(teacher.scores, rows, top=4)
        for number, row in rows.items():
            written = np.flatnonzero(row.loss_mask())
            expected = self.logprobs(0, row.tokens, int(written[0]))[written - written[0]]
            np.testing.assert_allclose(scores[number].logprobs, expected, atol=1e-4)
            assert (scores[number].top_logprobs[:, 0] >= scores[number].logprobs - 1e-4).all()
            is_own = scores[number].top_tokens == row.tokens[written][:, None]
            np.testing.assert_allclose(scores[number].top_logprobs[is_own], expected[is_own.any(1)], atol=1e-4)


class TestSglang(RealServerSuite):
    kind = "sglang"


class TestVllm(RealServerSuite):
    kind = "vllm"
    patches = False
    """On a CPU it packs its weights."""

    async def test_each_version_is_rounded_to_fp8_at_its_load(
        self, build_server: BuildServer, prompt: Int32Array
    ) -> None:
        engine = build_server(weights="fp8")
        try:
            for number in (0, 1):
                await within(engine.load(version(number)))
                scores = await within(engine.score(prompt, 1))
                gaps = [np.abs(scores - self.logprobs(other, prompt, 1)).mean() for other in (number, 1 - number)]
                assert 1e-4 < gaps[0] < min(0.2, gaps[1] / 3), "rounded, but of this version"
            assert engine.gauges().restarts == 0
        finally:
            await engine.close()
