"""The proxy itself: secrets, sessions, records, limits and connections."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from astraflow.agents.proxy.server import AgentProxy, ProxyOptions
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, MAX_CALLS, CallOutcome
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from tests.fakes.agent_handlers import ScriptedHandler, eventually, text_reply

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
HELLO: Any = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def proxy() -> AsyncIterator[AgentProxy]:
    proxy = AgentProxy()
    await proxy.start()
    yield proxy
    await proxy.close()


async def test_the_secret_is_accepted_as_bearer_as_key_and_in_the_url(proxy: AgentProxy) -> None:
    async with proxy.session(ScriptedHandler()) as access, httpx.AsyncClient() as client:
        for url, headers in (
            (proxy.origin, {"authorization": f"Bearer {access.secret}"}),
            (proxy.origin, {"authorization": f"bearer {access.secret}"}),
            (proxy.origin, {"x-api-key": access.secret}),
            (proxy.origin, {"x-api-key": access.secret, "authorization": "Bearer other"}),
            (access.url, {}),
            (access.url, {"authorization": "Bearer EMPTY"}),
        ):
            answer = await client.post(url + CHAT, json=HELLO, headers=headers)
            assert answer.status_code == 200, headers
        assert len(access.record) == 6


async def test_unknown_secrets_are_refused_whatever_they_are(proxy: AgentProxy) -> None:
    async with proxy.session(ScriptedHandler()) as access, httpx.AsyncClient() as client:
        guesses = ["x", access.secret[:-1], access.secret + "x", access.secret.upper(), "sk-" + "A" * 43, "é"]
        for guess in guesses:
            for name, value in (("authorization", f"Bearer {guess}"), ("x-api-key", guess)):
                headers = [(name.encode(), value.encode())]
                answer = await client.post(proxy.origin + CHAT, json=HELLO, headers=headers)
                assert answer.status_code == 401
            answer = await client.post(f"{proxy.origin}/s/{guess}{CHAT}", json=HELLO)
            assert answer.status_code == 401
        for path in (
            "/",
            "/v1/models",
            f"/s/%00{CHAT}",
            f"/s//{access.secret}/v1/models",
            "/s/",
            "/s",
            f"/S/{access.secret}{CHAT}",
            f"/x{CHAT}",
        ):
            assert (await client.get(proxy.origin + path)).status_code == 401
        assert not access.record


async def test_secrets_are_long_random_and_different(proxy: AgentProxy) -> None:
    secrets = set()
    for _ in range(64):
        async with proxy.session(ScriptedHandler()) as access:
            secrets.add(access.secret)
    assert len(secrets) == 64
    assert all(len(secret) >= 3 + 43 for secret in secrets)


async def test_sessions_cannot_read_each_other(proxy: AgentProxy) -> None:
    mine, theirs = ScriptedHandler(), ScriptedHandler(lambda _: text_reply("private"))
    async with proxy.session(mine) as my, proxy.session(theirs) as their, httpx.AsyncClient() as client:
        created = await client.post(their.url + "/v1/responses", json={"input": "x"})
        identity = created.json()["id"]
        for url, headers in ((my.url, {}), (my.url, {"authorization": f"Bearer {my.secret}"})):
            answer = await client.get(f"{url}/v1/responses/{identity}", headers=headers)
            assert (answer.status_code, "private" in answer.text) == (404, False)
            body = {"input": "x", "previous_response_id": identity}
            assert (await client.post(url + "/v1/responses", json=body, headers=headers)).status_code == 404
        assert [call.outcome for call, _ in my.record] == [CallOutcome.REFUSED] * 2
        assert not mine.calls
        assert len(their.record) == 1


async def test_an_ended_session_is_refused_and_its_calls_are_cancelled(proxy: AgentProxy) -> None:
    async def wait(_: Any) -> Any:
        await asyncio.Event().wait()

    handler = ScriptedHandler(wait)
    async with httpx.AsyncClient() as client:
        async with proxy.session(handler) as access:
            calls = [asyncio.create_task(client.post(access.url + CHAT, json=HELLO)) for _ in range(3)]
            await eventually(lambda: handler.waiting == 3)
        assert handler.cancelled == 3
        late = await client.post(access.url + CHAT, json=HELLO)
        for answer in (*await asyncio.gather(*calls), late):
            assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
            assert answer.json()["error"]["code"] == "agent.ended"


async def test_a_record_has_bodies_without_secrets_and_cut(proxy: AgentProxy) -> None:
    handler = ScriptedHandler(lambda call: text_reply(call.messages[0].content))
    async with proxy.session(handler) as access, httpx.AsyncClient(base_url=access.url) as client:
        text = f"key {access.secret} " + "ö" * MAX_BODY_CHARACTERS
        body = {"model": access.secret, "messages": [{"role": "user", "content": text}], "stream": True}
        await client.post(CHAT, json=body)
        refused = await client.get(f"/v1/models/{access.secret}")
        await client.post(CHAT, json={"messages": [{"role": access.secret}]})
        (answered, reply_id), (wrong, no_id) = access.record
        secret = access.secret
    assert (answered.outcome, wrong.outcome, reply_id, no_id) == (CallOutcome.ANSWERED, CallOutcome.REFUSED, "r0", "")
    for text in (answered.request, answered.reply, answered.model, wrong.request, wrong.reply, refused.text):
        assert secret not in text
        assert "[secret]" in text
    assert len(answered.request) == len(answered.reply) == MAX_BODY_CHARACTERS
    assert answered.reply.startswith("{")
    assert answered.duration_s >= 0


async def test_a_record_is_bounded_and_can_be_left_out(proxy: AgentProxy) -> None:
    async with (
        proxy.session(ScriptedHandler()) as access,
        proxy.session(ScriptedHandler(), is_recorded=False) as unrecorded,
        httpx.AsyncClient() as client,
    ):
        for _ in range(MAX_CALLS + 2):
            await client.post(access.url + CHAT, json={})
        await client.post(unrecorded.url + CHAT, json={})
        assert (len(access.record), access.unrecorded_calls) == (MAX_CALLS, 2)
        assert (len(unrecorded.record), unrecorded.unrecorded_calls) == (0, 1)


async def test_a_defect_of_the_handler_is_an_error_500_in_each_dialect(proxy: AgentProxy) -> None:
    problem = RuntimeError("broken")

    def fail(call: Any) -> Any:
        raise problem

    handler = ScriptedHandler(fail)
    async with proxy.session(handler) as access, httpx.AsyncClient(base_url=access.url) as client:
        with capture_logs() as logs:
            chat = await client.post(CHAT, json=HELLO)
            responses = await client.post("/v1/responses", json={"input": "x"})
            messages = await client.post("/v1/messages", json=HELLO)
        assert access.failure is problem
    for answer in (chat, responses, messages):
        assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
        assert "broken" not in answer.text
    assert chat.json()["error"]["type"] == responses.json()["error"]["type"] == "server_error"
    assert messages.json()["error"]["type"] == "api_error"
    assert [entry["event"] for entry in logs] == ["agent_call_failed"] * 3
    assert access.secret not in str(logs)


async def test_a_failure_of_an_engine_is_reported_by_the_episode_and_not_logged(proxy: AgentProxy) -> None:
    failure = RolloutFailed("the engine stopped", boundary=Boundary.ENGINE, code="test.engine")

    def fail(_: Any) -> Any:
        raise failure

    async with proxy.session(ScriptedHandler(fail)) as access, httpx.AsyncClient(base_url=access.url) as client:
        with capture_logs() as logs:
            answer = await client.post(CHAT, json=HELLO)
        assert (answer.status_code, access.failure, logs) == (500, failure, [])


async def test_compressed_bodies_are_refused(proxy: AgentProxy) -> None:
    async with proxy.session(ScriptedHandler()) as access, httpx.AsyncClient(base_url=access.url) as client:
        answer = await client.post(CHAT, content=b"x", headers={"content-encoding": "zstd"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "agent.compressed_body")


async def test_other_routes_and_methods_are_not_found(proxy: AgentProxy) -> None:
    async with proxy.session(ScriptedHandler()) as access, httpx.AsyncClient(base_url=access.url) as client:
        for method, path in (
            ("GET", CHAT),
            ("PUT", CHAT),
            ("DELETE", "/v1/responses/resp_r0"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/chat/completions/"),
            ("GET", "/"),
            ("OPTIONS", CHAT),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "agent.unknown_route"
        answer = await client.post("/v1/complete", headers={"anthropic-version": "2023-06-01"})
        assert answer.json()["error"]["type"] == "not_found_error"


async def test_an_address_that_cannot_be_used_is_refused(proxy: AgentProxy) -> None:
    with pytest.raises(InvalidInput) as refused:
        await AgentProxy(ProxyOptions(port=proxy.port)).start()
    assert refused.value.code == "listen.address_unavailable"
    with pytest.raises(InvalidInput) as refused:
        async with AgentProxy().session(ScriptedHandler()):
            pass
    assert refused.value.code == "agent.proxy_not_started"


@pytest.mark.long
async def test_many_sessions_call_at_once(proxy: AgentProxy) -> None:
    async def call_session(number: int, client: httpx.AsyncClient) -> None:
        handler = ScriptedHandler(lambda call: text_reply(call.messages[-1].content + str(number)))
        async with proxy.session(handler) as access:
            body = {"messages": [{"role": "user", "content": "I am "}]}
            answers = await asyncio.gather(*(client.post(access.url + CHAT, json=body) for _ in range(4)))
            texts = {answer.json()["choices"][0]["message"]["content"] for answer in answers}
            assert texts == {f"I am {number}"}
            assert len({reply_id for _, reply_id in access.record}) == 4

    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(call_session(number, client) for number in range(32)))
