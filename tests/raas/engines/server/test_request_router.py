"""Aborts of cancelled requests, and the continuation of requests that a server aborted."""

import asyncio
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from astraflow.client.model_server import ServerClient, ServerRefused
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.raas.engines.base import EngineGauges
from astraflow.raas.engines.server.dialect import Dialect
from astraflow.raas.engines.server.replica import Replica
from astraflow.raas.engines.server.request_groups import MAX_TOKENS
from astraflow.raas.engines.server.request_router import RequestRouter
from tests.errors import raises_code
from tests.fakes.clock import settle

pytestmark = pytest.mark.anyio

PADDING = 20 * "x"


class FakeClient:
    """Client of a server without adapters."""

    adapter = ""


class FakeReplica:
    """Server that runs."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.client = FakeClient()
        self.gauges = EngineGauges()
        self.in_flight = 0
        self.serving = asyncio.Event()
        self.serving.set()
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class FakeDialect:
    """Answers with texts in order; the last of them ends a request, the others are aborted. Waits without any."""

    def __init__(self, *texts: str, refusal: ServerRefused | None = None) -> None:
        self.aborted: list[str] = []
        self.asked: list[tuple[str, int]] = []
        """Prompt and length limit of each request."""
        self.clients: list[ServerClient] = []
        """Client of each request."""
        self._texts = list(texts)
        self._refusal = refusal

    async def generate(
        self, client: ServerClient, request_ids: Sequence[str], prompt: Int32Array, sampling: Sampling
    ) -> list[Generation]:
        self.asked.append((ByteTokenizer().decode(prompt), sampling.max_new_tokens))
        self.clients.append(client)
        if self._refusal is not None:
            raise self._refusal
        if not self._texts:
            await asyncio.Event().wait()
        tokens = ByteTokenizer().encode(self._texts.pop(0))
        generation = Generation(
            tokens=tokens,
            logprobs=np.zeros(len(tokens), dtype=np.float32),
            spans=(VersionSpan(version=Version(len(self.asked)), length=len(tokens)),),
            finish=Finish.ABORT if self._texts else Finish.STOP,
        )
        return [generation for _ in request_ids]

    async def abort(self, client: ServerClient, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids


def router(dialect: FakeDialect, *replicas: FakeReplica) -> RequestRouter:
    is_open = asyncio.Event()
    is_open.set()
    servers = [cast("Replica", replica) for replica in replicas or (FakeReplica(),)]
    return RequestRouter(cast("Dialect", dialect), servers, is_open=is_open, decode=ByteTokenizer().decode)


async def generated(dialect: FakeDialect, sampling: Sampling) -> str:
    generation = await router(dialect).generate("a", ByteTokenizer().encode("ask:"), sampling)
    return ByteTokenizer().decode(generation.tokens)


@pytest.mark.parametrize("length", [MAX_TOKENS, MAX_TOKENS + 1], ids=["in a group", "alone"])
async def test_a_cancelled_request_is_aborted_at_its_server_once(length: int) -> None:
    dialect = FakeDialect()
    requests = router(dialect)
    request = asyncio.create_task(
        requests.generate("a", ByteTokenizer().encode("ask"), Sampling(max_new_tokens=length))
    )
    await settle()
    (wire_id,) = requests.wire_ids
    assert dialect.asked

    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await requests.abort("a")  # as its caller does

    assert request.cancelled()
    assert dialect.aborted == [wire_id]
    assert not requests.wire_ids


async def test_a_request_that_a_server_aborted_continues_after_its_tokens() -> None:
    dialect = FakeDialect(PADDING, "yz")
    assert await generated(dialect, Sampling(max_new_tokens=100)) == f"{PADDING}yz"
    assert dialect.asked == [("ask:", 100), (f"ask:{PADDING}", 80)]


@pytest.mark.parametrize("grammar", [{"json_schema": "{}"}, {"regex": "a+"}])
async def test_a_request_with_a_grammar_starts_anew(grammar: dict[str, str]) -> None:
    dialect = FakeDialect('{"a": ', '{"a": 1}')
    assert await generated(dialect, Sampling(max_new_tokens=100, **grammar)) == '{"a": 1}'  # type: ignore[arg-type]
    assert dialect.asked == [("ask:", 100)] * 2


async def test_a_grammar_that_a_server_refuses_is_the_mistake_of_the_caller() -> None:
    dialect = FakeDialect(refusal=ServerRefused("/generate", 400, "Failed to compile json grammar: no type"))
    with raises_code(InvalidInput, "engine.invalid_grammar"):
        await generated(dialect, Sampling(max_new_tokens=100, json_schema="{}"))
    with raises_code(ServerRefused, "engine.server_refused"):
        await generated(dialect, Sampling(max_new_tokens=100))


async def test_a_request_with_stop_strings_continues_where_none_has_begun() -> None:
    dialect = FakeDialect(f"{PADDING}<en", "d>")
    await generated(dialect, Sampling(max_new_tokens=100, stop_strings=("<end>",)))
    _, (prompt, length) = dialect.asked
    assert f"ask:{PADDING}".startswith(prompt), "no part of the stop string is in the prompt"
    assert len("ask:") < len(prompt)
    assert length == 100 - (len(prompt) - len("ask:"))


async def test_turns_follow_their_prefix_until_its_server_is_gone() -> None:
    dialect, servers = FakeDialect(), [FakeReplica(number) for number in range(2)]
    requests = router(dialect, *servers)
    servers[0].in_flight = 1
    prompt, sampling = ByteTokenizer().encode(16 * PADDING), Sampling(max_new_tokens=40)

    async def used(*, number: int) -> FakeClient:
        dialect._texts[:] = ["y"]
        await requests.generate(str(number), np.append(prompt, ByteTokenizer().encode(number * "z")), sampling)
        return cast("FakeClient", dialect.clients[-1])

    assert await used(number=0) is servers[1].client
    servers[0].in_flight = 0
    assert await used(number=1) is servers[1].client, "its prefix is there"
    servers[1].serving.clear()
    assert await used(number=2) is servers[0].client
    assert requests.affinity.moves == 1
    servers[1].serving.set()
    requests.affinity.forget(0)
    requests.affinity.forget(1)
    servers[0].in_flight = 1
    assert await used(number=3) is servers[1].client, "no cache holds anything, so the load decides"
