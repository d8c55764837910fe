"""Calls to SGLang whose answers do not mean what they say."""

from typing import Any, cast

import numpy as np
import pytest

from astraflow.client.model_server import ServerClient, ServerRefused
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.raas.engines.base import PauseMode
from astraflow.raas.engines.server import sglang
from tests.errors import raises_code

pytestmark = pytest.mark.anyio


class Client:
    """Client that refuses flushes, and records the routes."""

    adapter = ""

    def __init__(self, refusals: int = 0) -> None:
        self.routes: list[str] = []
        self._refusals = refusals

    async def post(self, path: str, body: Any, **_: Any) -> Any:
        self.routes.append(path)
        if path == "/flush_cache" and self._refusals:
            self._refusals -= 1
            raise ServerRefused(path, 400, "Flush cache failed.")


async def pause(client: Client) -> None:
    await sglang.SglangDialect().pause(cast("ServerClient", client), PauseMode.KEEP)


async def test_a_pause_is_complete_when_the_cache_is_empty() -> None:
    client = Client()
    await pause(client)

    assert client.routes == ["/pause_generation", "/flush_cache"]


async def test_a_pause_waits_while_a_request_uses_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "_FLUSH_RETRY_S", 0.0)
    client = Client(refusals=2)
    await pause(client)

    assert client.routes == [
        *(2 * ["/pause_generation", "/flush_cache", "/continue_generation"]),
        "/pause_generation",
        "/flush_cache",
    ]


async def test_a_pause_fails_when_the_cache_is_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "_FLUSH_RETRY_S", 0.0)
    with raises_code(ServerRefused, "engine.server_refused", "400"):
        await pause(Client(refusals=1000))


async def test_an_aborting_pause_waits_for_the_end_of_requests() -> None:
    client = Client(refusals=1)
    await sglang.SglangDialect().pause(cast("ServerClient", client), PauseMode.ABORT)

    assert client.routes == ["/abort_request", "/flush_cache", "/flush_cache", "/pause_generation"]


async def test_a_seed_that_the_server_would_ignore_is_refused() -> None:
    client, prompt = Client(), np.array([1], dtype=np.int32)
    with raises_code(InvalidInput, "engine.unsupported_sampling", "deterministic"):
        await sglang.SglangDialect().generate(
            cast("ServerClient", client), "a", prompt, Sampling(max_new_tokens=1, seed=3)
        )

    assert not client.routes
