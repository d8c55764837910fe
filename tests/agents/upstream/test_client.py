import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from astraflow.agents.calls import (
    AgentMessage,
    CallOptions,
    CallRefused,
    FunctionCall,
    ModelCall,
    Refusal,
    ReplyFinish,
    Role,
)
from astraflow.agents.upstream.client import (
    MAX_REFUSED_CALLS,
    MAX_UNANSWERED_CALLS,
    BudgetSpent,
    UpstreamOptions,
)
from astraflow.agents.upstream.policy import UpstreamPolicy
from astraflow.contract.errors import AstraFlowError, InvalidInput, NotAuthenticated, Unavailable
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Sampling
from tests.agents.upstream_parts import Instant, connected, user
from tests.fakes.hosted_endpoint import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    PROMPT_TOKENS,
    failing,
    nonsense,
)

pytestmark = pytest.mark.anyio

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")
CALCULATOR = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}},
}


def call(*messages: AgentMessage, **changes: Any) -> ModelCall:
    return ModelCall(options=CallOptions(model="large"), messages=messages or (user("hello"),), **changes)


@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_tools_reasoning_and_parallel_calls_are_forwarded_and_counted(api: str) -> None:
    calls = [
        {"id": f"c{index}", "type": "function", "function": {"name": "add", "arguments": json.dumps({"n": index})}}
        for index in range(2)
    ]
    message = AgentMessage(
        role=Role.ASSISTANT, function_calls=(FunctionCall(id="b0", name="add", arguments='{"n": 9}'),)
    )
    result = AgentMessage(role=Role.TOOL, content="9", call_id="b0")
    async with connected(
        lambda body: {"content": "see", "reasoning_content": "I add", "tool_calls": calls}, api=api
    ) as (endpoint, upstream):
        reply = await upstream.complete(
            call(
                user("add"),
                message,
                result,
                tools=(CALCULATOR,),
                tool_choice="add",
                allows_parallel_calls=False,
            )
        )
    assert (reply.message.content, reply.message.reasoning) == ("see", "I add")
    assert [
        (function_call.id, function_call.name, json.loads(function_call.arguments))
        for function_call in reply.message.function_calls
    ] == [
        ("c0", "add", {"n": 0}),
        ("c1", "add", {"n": 1}),
    ]
    assert reply.finish is ReplyFinish.FUNCTION_CALLS
    usage = upstream.usage
    assert (usage.calls, usage.retries) == (1, 0)
    assert (usage.prompt_tokens, usage.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    assert usage.cached_tokens == CACHED_TOKENS
    (body,) = endpoint.requests
    if api == "chat":
        assert body["tools"] == [CALCULATOR]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
        assert body["parallel_tool_calls"] is False
        assert body["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"n": 9}'}
        assert body["messages"][2] == {"role": "tool", "tool_call_id": "b0", "content": "9"}
    else:
        assert body["tools"][0]["input_schema"] == {"type": "object", "properties": {}}
        assert body["tool_choice"] == {"type": "tool", "name": "add", "disable_parallel_tool_use": True}
        assert body["messages"][1]["content"] == [{"type": "tool_use", "id": "b0", "name": "add", "input": {"n": 9}}]
        assert body["messages"][2]["content"] == [{"type": "tool_result", "tool_use_id": "b0", "content": "9"}]


@pytest.mark.parametrize("fault", [failing(429, **{"retry-after": "7"}), failing(500), failing(529), nonsense])
async def test_a_failing_endpoint_is_asked_again_after_a_pause(fault: Any) -> None:
    clock = Instant()
    async with connected(clock=clock) as (endpoint, upstream):
        endpoint.faults.extend([fault, fault])
        assert (await upstream.complete(call())).message.content == "echo of hello"
    assert (upstream.usage.calls, upstream.usage.retries) == (1, 2)
    assert upstream.usage.malformed == (2 if fault is nonsense else 0)
    if fault is not nonsense:
        is_limited = fault().status_code == 429
        assert (min(clock.slept) >= 7) == is_limited
    assert clock.slept[0] < clock.slept[1] or clock.slept == [7.0, 7.0]


async def test_a_slow_endpoint_times_out_and_is_asked_again() -> None:
    async with connected(timeout_s=0.2) as (endpoint, upstream):
        endpoint.delays_s.append(30.0)
        assert (await upstream.complete(call())).message.content == "echo of hello"
    assert upstream.usage.retries == 1


@pytest.mark.long
async def test_an_endpoint_that_is_down_is_given_up_after_some_calls() -> None:
    async with connected(attempts=2) as (endpoint, upstream):
        endpoint.fault_every[1] = failing(503)
        for _ in range(MAX_UNANSWERED_CALLS):
            with pytest.raises(Unavailable):
                await upstream.complete(call())
        requests = len(endpoint.requests)
        with pytest.raises(Unavailable):
            await upstream.complete(call())
    assert upstream.reason is not None
    assert len(endpoint.requests) == requests == 2 * MAX_UNANSWERED_CALLS


async def test_a_wrong_key_ends_all_calls_and_is_in_no_message() -> None:
    async with connected(key="sk-wrong-and-private") as (endpoint, upstream):
        with pytest.raises(NotAuthenticated) as refusal:
            await upstream.complete(call())
        assert "sk-wrong-and-private" not in str(refusal.value)
        assert not endpoint.requests
    assert upstream.reason is refusal.value


async def test_a_refused_call_is_the_callers_and_refused_options_end_all_calls() -> None:
    async with connected() as (endpoint, upstream):
        await upstream.complete(call())
        endpoint.fault_every[1] = failing(400)
        for _ in range(2 * MAX_REFUSED_CALLS):
            with pytest.raises(CallRefused) as refusal:
                await upstream.complete(call())
        assert refusal.value.refusal is Refusal.INVALID
        assert upstream.reason is None
    async with connected() as (endpoint, upstream):
        endpoint.fault_every[1] = failing(400)
        problems: list[AstraFlowError] = []
        for _ in range(MAX_REFUSED_CALLS):
            with pytest.raises(AstraFlowError) as last:
                await upstream.complete(call())
            problems.append(last.value)
    assert isinstance(problems[-1], InvalidInput)
    assert upstream.reason is problems[-1]


@pytest.mark.parametrize("budget", [{"max_calls": 2}, {"max_tokens": PROMPT_TOKENS + COMPLETION_TOKENS + 1}])
async def test_no_call_is_made_once_the_budget_is_spent(budget: dict[str, Any]) -> None:
    async with connected(**budget) as (endpoint, upstream):
        for _ in range(2):
            await upstream.complete(call())
        with pytest.raises(BudgetSpent):
            await upstream.complete(call())
        assert len(endpoint.requests) == 2


async def test_calls_at_the_same_time_are_limited() -> None:
    async with connected(concurrency=2) as (endpoint, upstream):
        endpoint.delays_s.extend([0.02] * 6)
        await asyncio.gather(*(upstream.complete(call()) for _ in range(6)))
        assert endpoint.most_running == 2


async def test_fields_that_the_endpoint_refuses_can_be_left_out() -> None:
    request = call()
    request = replace(request, options=replace(request.options, temperature=0.5, max_tokens=9, top_p=0.9, stop=("x",)))
    async with connected(omitted_fields=("temperature",), length_field="max_completion_tokens") as (endpoint, upstream):
        await upstream.complete(request)
        (body,) = endpoint.requests
    assert (body["max_completion_tokens"], body["top_p"], body["stop"]) == (9, 0.9, ["x"])
    assert not {"temperature", "max_tokens"} & body.keys()


@pytest.mark.parametrize("url", ["ftp://x/v1", "https://user:password@x/v1", "x", "https://x/v1?key=1"])
def test_a_url_with_secrets_or_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        UpstreamOptions.parse({"base_url": url}, where="endpoint")


async def test_a_policy_of_an_endpoint_answers_messages_with_text() -> None:
    async with connected(lambda body: {"content": "go <end> and on", "finish_reason": "length"}) as (
        endpoint,
        upstream,
    ):
        policy = UpstreamPolicy(upstream, "large", seed=5)
        tokenizer = policy.tokenizer
        prompt = tokenizer.encode_chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": "x"}])
        whole = await policy.generate(prompt, Sampling(max_new_tokens=8, seed=1))
        cut = await policy.generate(prompt, Sampling(max_new_tokens=8, top_k=4, seed=1, stop_strings=("<end>", "on")))
    assert (tokenizer.decode(whole.tokens), whole.finish) == ("go <end> and on", Finish.LENGTH)
    assert (tokenizer.decode(cut.tokens), cut.finish) == ("go <end>", Finish.STOP)
    first, second = endpoint.requests
    assert first["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "x"}]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("large", 8, 1.0)
    assert ("top_k" in first, second["top_k"]) == (False, 4)
    assert first["seed"] != second["seed"]


async def test_a_failing_endpoint_fails_the_episode_at_the_engine() -> None:
    async with connected(attempts=1) as (endpoint, upstream):
        endpoint.faults.append(failing(500))
        policy = UpstreamPolicy(upstream, "large")
        prompt = policy.tokenizer.encode_chat([{"role": "user", "content": "x"}])
        with pytest.raises(RolloutFailed) as failure:
            await policy.generate(prompt, Sampling(max_new_tokens=8))
    assert failure.value.boundary is Boundary.ENGINE
