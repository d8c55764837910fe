import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from astraflow.contract.errors import (
    Conflict,
    CorruptData,
    InvalidInput,
    NotAuthenticated,
    RateLimited,
    Unavailable,
)
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.contract.weights import Probe
from astraflow.raas.engines import engines
from astraflow.raas.engines.base import EXACT, ROUNDED, EngineGauges, PauseMode
from astraflow.raas.engines.logprob_mismatch import measure_logprob_mismatch
from astraflow.raas.engines.server.openai_tokens import OpenAITokensEngine, OpenAITokensOptions
from astraflow.weights.tensors import VerifiedWeights
from tests import make
from tests.errors import raises_code
from tests.fakes.completions_server import CompletionsServer

pytestmark = pytest.mark.anyio

PROMPT = np.array([1, 2, 3], dtype=np.int32)
SHORT = Sampling(max_new_tokens=5, stop_tokens=(99,))


def weights(server: CompletionsServer, version: int) -> VerifiedWeights:
    return make.verified_weights(version, probe=server.probe(version))


@asynccontextmanager
async def connected(server: CompletionsServer, *, load: int | None = 0, **options: Any) -> AsyncIterator[Any]:
    defaults = {"refresh_timeout_s": 0.3, "refresh_poll_s": 0.02, "max_backoff_s": 0.02, "dtype": "float32"}
    async with server.serving():
        chosen = OpenAITokensOptions(base_url=f"{server.url}/v1", model="policy", **{**defaults, **options})
        engine = OpenAITokensEngine(chosen, {})
        try:
            if load is not None:
                await engine.load(weights(server, load))
            yield engine
        finally:
            await engine.close()


async def test_a_generation_has_token_ids_logprobs_and_the_version_in_service() -> None:
    server = CompletionsServer(version=2)
    async with connected(server, load=2) as engine:
        generation = await engine.generate("a", PROMPT, SHORT)
        scores = await engine.score(np.concatenate([PROMPT, generation.tokens]), len(PROMPT))

    assert engine.version == 2
    assert generation.tokens.dtype == np.int32
    assert generation.logprobs == pytest.approx(scores)
    assert [(span.version, span.length) for span in generation.spans] == [(2, 5)]
    assert generation.finish is Finish.LENGTH
    sent = server.requests[-2]
    assert (sent["prompt"], sent["logprobs"], sent["return_token_ids"]) == ([1, 2, 3], 0, True)
    assert (sent["stop_token_ids"], sent["ignore_eos"]) == ([99], False)


async def test_scores_come_from_an_echo_where_prompt_logprobs_are_unknown() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        expected = await engine.score(PROMPT, 1)
    server.fields = ("token_ids", "logprobs")
    async with connected(server) as engine:
        assert (await engine.score(PROMPT, 1)).tolist() == expected.tolist()
        assert server.requests[-1]["echo"]


async def test_a_version_without_a_probe_is_refused_and_leaves_the_version_in_service() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        with pytest.raises(InvalidInput) as refused:
            await engine.load(make.verified_weights(1))
        assert refused.value.code == "engine.probe_required"
        assert engine.version == 0


async def test_a_load_waits_for_the_server_and_delays_requests() -> None:
    server = CompletionsServer()
    async with connected(server, refresh_timeout_s=30.0) as engine:
        loading = asyncio.create_task(engine.load(weights(server, 1)))
        await asyncio.sleep(0.1)
        generating = asyncio.create_task(engine.generate("a", PROMPT, SHORT))
        await asyncio.sleep(0.05)
        assert not loading.done() and not generating.done()
        server.version = 1
        await loading
        assert [span.version for span in (await generating).spans] == [1]
        assert engine.version == 1


async def test_a_server_with_old_weights_has_a_logprob_mismatch() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        await engine.load(weights(server, 1))
        mismatch = await measure_logprob_mismatch(engine, weights(server, 1).manifest)

    assert mismatch is not None
    assert mismatch.excess(engine.logprob_tolerance)


async def test_a_generation_that_overlaps_a_version_change_fails() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        server.gate.clear()
        generating = asyncio.create_task(engine.generate("a", PROMPT, SHORT))
        await asyncio.sleep(0.05)
        server.version = 1
        await engine.load(weights(server, 1))
        server.gate.set()
        with pytest.raises(Unavailable) as failed:
            await generating
        assert failed.value.code == "engine.version_changed"


async def test_an_abort_closes_the_connection_of_one_request() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        server.gate.clear()
        doomed, other = (asyncio.create_task(engine.generate(name, PROMPT, SHORT)) for name in "ab")
        await asyncio.sleep(0.05)
        with pytest.raises(Conflict):
            await engine.generate("a", PROMPT, SHORT)
        await engine.abort("a")
        await engine.abort("unknown")
        assert (await doomed).finish is Finish.ABORT
        server.gate.set()
        assert (await other).finish is Finish.LENGTH
        await asyncio.sleep(0.05)
        assert server.cut == 1


async def test_a_pause_delays_new_requests_and_completes_running_ones() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        server.gate.clear()
        running = asyncio.create_task(engine.generate("a", PROMPT, SHORT))
        await asyncio.sleep(0.05)
        pausing = asyncio.create_task(engine.pause(PauseMode.KEEP))
        await asyncio.sleep(0.02)
        assert not pausing.done()
        server.gate.set()
        await pausing
        assert (await running).finish is Finish.LENGTH
        held = asyncio.create_task(engine.generate("b", PROMPT, SHORT))
        await asyncio.sleep(0.05)
        assert len(await engine.score(PROMPT, 1)) == 2
        assert not held.done()
        await engine.resume()
        assert (await held).finish is Finish.LENGTH


async def test_an_aborting_pause_and_closing_end_requests() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        server.gate.clear()
        running = asyncio.create_task(engine.generate("a", PROMPT, SHORT))
        await asyncio.sleep(0.05)
        await engine.pause(PauseMode.ABORT)
        assert (await running).finish is Finish.ABORT
        held = asyncio.create_task(engine.generate("b", PROMPT, SHORT))
        await asyncio.sleep(0.02)
        await engine.close()
        assert (await held).finish is Finish.ABORT


@pytest.mark.parametrize("missing", ["token_ids", "logprobs"])
async def test_an_answer_without_token_ids_or_logprobs_is_refused(missing: str) -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        server.fields = tuple(field for field in server.fields if field != missing)
        with pytest.raises(CorruptData) as failed:
            await engine.generate("a", PROMPT, SHORT)
        assert failed.value.code == "engine.invalid_completion"
        assert missing in str(failed.value)


async def test_a_wrong_key_is_refused_and_not_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = CompletionsServer()
    server.key = "right"
    monkeypatch.setenv("ASTRAFLOW_ENGINE_KEY", "wrong")
    async with connected(server, load=None, key_variable="ASTRAFLOW_ENGINE_KEY") as engine:
        with pytest.raises(NotAuthenticated) as failed:
            await engine.start()
        assert failed.value.code == "engine.key_refused"
        assert "wrong" not in str(failed.value)
    monkeypatch.setenv("ASTRAFLOW_ENGINE_KEY", "right")
    async with connected(server, key_variable="ASTRAFLOW_ENGINE_KEY") as engine:
        assert (await engine.generate("a", PROMPT, SHORT)).finish is Finish.LENGTH


async def test_an_overloaded_server_is_retried_after_its_retry_after_header() -> None:
    def busy(request: web.Request) -> Any:
        return asyncio.sleep(0, web.Response(status=429, headers={"Retry-After": "0"}))

    server = CompletionsServer()
    async with connected(server, attempts=3) as engine:
        server.faults.extend([busy, busy])
        assert (await engine.generate("a", PROMPT, SHORT)).finish is Finish.LENGTH
        server.faults.extend([busy, busy, busy])
        with pytest.raises(RateLimited) as failed:
            await engine.generate("b", PROMPT, SHORT)
        assert failed.value.code == "engine.overloaded"
        assert not server.faults


async def test_a_closed_connection_is_retried_and_a_lost_server_fails() -> None:
    async def cut(request: web.Request) -> Any:
        assert request.transport is not None
        request.transport.abort()
        await asyncio.sleep(1)

    server = CompletionsServer()
    async with connected(server, attempts=2) as engine:
        server.faults.append(cut)
        assert (await engine.generate("a", PROMPT, SHORT)).finish is Finish.LENGTH
        server.faults.extend([cut, cut])
        with pytest.raises(Unavailable) as failed:
            await engine.generate("b", PROMPT, SHORT)
        assert failed.value.code == "engine.unreachable"


async def test_a_refused_request_is_not_retried() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        server.faults.append(lambda request: asyncio.sleep(0, web.Response(status=400, text="too long")))
        with raises_code(InvalidInput, "engine.request_refused") as failed:
            await engine.generate("a", PROMPT, SHORT)
        assert failed.value.code == "engine.request_refused"


async def test_sampling_that_changes_logprobs_is_refused_without_processed_logprobs() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        for sampling in (replace(SHORT, temperature=0.5), replace(SHORT, top_p=0.9), replace(SHORT, top_k=5)):
            with pytest.raises(InvalidInput) as failed:
                await engine.generate("a", PROMPT, sampling)
            assert failed.value.code == "engine.raw_logprobs"
    async with connected(server, processed_logprobs=True) as engine:
        await engine.generate("a", PROMPT, replace(SHORT, top_k=5, min_p=0.1, seed=7, json_schema='{"type":"object"}'))
        sent = server.requests[-1]
        assert (sent["top_k"], sent["min_p"], sent["seed"]) == (5, 0.1, 7)
        assert sent["structured_outputs"] == {"json": '{"type":"object"}'}


async def test_gauges_come_from_the_server_or_from_the_own_requests() -> None:
    server = CompletionsServer()
    async with connected(server) as engine:
        await asyncio.sleep(0.05)
        assert engine.gauges() == EngineGauges(running=3, waiting=2)
    server.metrics = None
    async with connected(server) as engine:
        server.gate.clear()
        running = asyncio.create_task(engine.generate("a", PROMPT, SHORT))
        await asyncio.sleep(0.05)
        assert engine.gauges() == EngineGauges(running=1)
        server.gate.set()
        await running


async def test_no_request_is_sent_before_the_first_load_and_the_model_must_be_served() -> None:
    server = CompletionsServer()
    async with connected(server, load=None) as engine:
        with raises_code(Unavailable, "engine.no_weights", "load"):
            await engine.generate("a", PROMPT, SHORT)
        await engine.start()
        await engine.start()
    async with server.serving():
        unknown = OpenAITokensEngine(OpenAITokensOptions(base_url=server.url, model="other"), {})
        with pytest.raises(InvalidInput) as failed:
            await unknown.start()
        assert failed.value.code == "engine.unknown_model"
        await unknown.close()


def test_tolerances_follow_the_dtype_of_the_weights() -> None:
    options = {"base_url": "http://127.0.0.1:1", "model": "m"}
    assert OpenAITokensEngine(OpenAITokensOptions(**options, dtype="float32"), {}).logprob_tolerance is EXACT
    assert OpenAITokensEngine(OpenAITokensOptions(**options), {}).logprob_tolerance is ROUNDED


@pytest.mark.parametrize("variable", ["HOME", "AWS_SECRET_ACCESS_KEY"])
def test_key_variables_other_than_those_of_engines_are_refused(variable: str) -> None:
    with raises_code(InvalidInput, "config.invalid", "key_variable"):
        engines.check({"kind": "openai_tokens", "base_url": "http://h:1", "model": "m", "key_variable": variable})


def test_a_missing_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_ENGINE_KEY", raising=False)
    options = OpenAITokensOptions(base_url="http://h:1", model="m", key_variable="ASTRAFLOW_ENGINE_KEY")
    with pytest.raises(InvalidInput) as failed:
        OpenAITokensEngine(options, {})
    assert failed.value.code == "engine.key_missing"


async def test_unknown_versions_stop_requests_after_a_failed_load() -> None:
    server = CompletionsServer()
    broken = Probe(tokens=b"\0" * 8, lengths=(9,), scored_from=(1,), logprobs=b"")
    async with connected(server) as engine:
        with pytest.raises(CorruptData):
            await engine.load(make.verified_weights(1, probe=broken))
        assert engine.version is None
        with pytest.raises(Unavailable):
            await engine.generate("a", PROMPT, SHORT)
        await engine.load(weights(server, Version(0)))
        assert (await engine.generate("b", PROMPT, SHORT)).finish is Finish.LENGTH
