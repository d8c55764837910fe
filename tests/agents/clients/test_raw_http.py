"""Agents that speak HTTP without an SDK, and know only a URL: the secret is part of it."""

import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.agents.clients.sessions import client_session
from tests.fakes.deciding_policy import DecidingPolicy, Step, hermes_call, in_steps

pytestmark = pytest.mark.anyio

LOOKS_UP = in_steps(hermes_call("look_up", name="Ada"), Step("1815", "She was born in 1815."))
FUNCTION = {
    "name": "look_up",
    "description": "Returns the year of birth.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
}
QUESTION = {"role": "user", "content": "When was Ada born?"}


@pytest.mark.parametrize("model", [{}, {"model": "claude-sonnet-5[1m]"}], ids=["no model", "unknown model"])
async def test_chat_completions_without_a_key(model: dict[str, str]) -> None:
    messages: list[dict[str, Any]] = [QUESTION]
    async with client_session(DecidingPolicy(LOOKS_UP)) as session, httpx.AsyncClient() as client:
        for _ in range(2):
            body = {**model, "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
            reply = await client.post(f"{session.access.url}/v1/chat/completions", json=body)
            message = reply.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or []:
                assert json.loads(call["function"]["arguments"]) == {"name": "Ada"}
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "1815"})
        assert message["content"] == "She was born in 1815."
        session.trajectories(turns=[2])


async def test_server_sent_events_read_line_by_line() -> None:
    async with client_session(DecidingPolicy(in_steps("A short answer."))) as session, httpx.AsyncClient() as client:
        body = {"model": "policy", "messages": [QUESTION], "stream": True}
        text, end = "", ""
        async with client.stream("POST", f"{session.access.url}/v1/chat/completions", json=body) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                end = line or end
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    text += "".join(choice["delta"].get("content") or "" for choice in choices)
        assert (text, end) == ("A short answer.", "data: [DONE]")
        session.trajectories(turns=[1])


async def test_a_client_that_renders_prompts_itself() -> None:
    policy = DecidingPolicy(LOOKS_UP)
    tokenizer = policy.tokenizer
    prompt = tokenizer.encode_chat([{"role": "user", "content": "When was Ada born?"}])
    async with client_session(policy) as session, httpx.AsyncClient() as client:
        for _ in range(2):
            sampling = {"max_tokens": 200, "stop_token_ids": list(tokenizer.stop_tokens), "logprobs": 1}
            body = {"model": "policy", "token_ids": prompt.tolist(), "sampling_params": sampling}
            reply = await client.post(f"{session.access.url}/inference/v1/generate", json=body)
            (choice,) = reply.raise_for_status().json()["choices"]
            assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
            answer = np.asarray(choice["token_ids"], dtype=np.int32)
            rest = tokenizer.bridge(prompt, answer, [{"role": "tool", "content": "1815"}])
            prompt = np.concatenate([prompt, answer, rest])
        assert tokenizer.decode(np.asarray(choice["token_ids"], dtype=np.int32)) == "She was born in 1815."
        session.trajectories(turns=[2])


async def test_a_wrong_secret_reaches_no_session() -> None:
    async with client_session(DecidingPolicy(LOOKS_UP)) as session, httpx.AsyncClient() as client:
        wrong = session.access.url[:-1] + ("a" if session.access.url[-1] != "a" else "b")
        reply = await client.post(f"{wrong}/v1/chat/completions", json={"messages": [QUESTION]})
        assert reply.status_code == 401
        assert session.policy.requests == []
