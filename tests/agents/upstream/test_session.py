import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.agents.calls import AgentMessage, CallOptions, CallRefused, ModelCall, Refusal, Role, TokenCall
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import SessionOptions
from astraflow.agents.upstream.policy import UpstreamPolicy
from astraflow.agents.upstream.session import UpstreamSession, open_session
from astraflow.contract.ids import FlowId, PolicyId, TaskId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.spans import Author, Ending
from astraflow.rewards.base import Score
from astraflow.workflows.scripted.policies import EpisodeRecord, ScriptedPolicy, in_order
from tests.agents.upstream_parts import connected, echo, user
from tests.fakes.hosted_endpoint import COMPLETION_TOKENS, HostedEndpoint, failing

pytestmark = pytest.mark.anyio

SOLVER, VERIFIER = PolicyId("solver"), PolicyId("verifier")


@asynccontextmanager
async def session(reply: Any = echo, **options: Any) -> AsyncIterator[tuple[HostedEndpoint, UpstreamSession]]:
    async with connected(reply, attempts=1) as (endpoint, upstream):
        policies = {SOLVER: UpstreamPolicy(upstream, "large"), VERIFIER: UpstreamPolicy(upstream, "small")}
        opened = open_session(policies, SessionOptions(**options), default=SOLVER, models={"judge": VERIFIER})
        assert isinstance(opened, UpstreamSession)
        yield endpoint, opened


def named(model: str, *messages: AgentMessage, **options: Any) -> ModelCall:
    return ModelCall(options=CallOptions(model=model, **options), messages=messages or (user("hello"),))


async def test_the_model_is_that_of_the_policy_that_the_agent_names() -> None:
    async with session() as (endpoint, handler):
        for name in ("verifier", "solver", "gpt-small", "judge"):
            await handler.complete(named(name))
        assert [body["model"] for body in endpoint.requests] == ["small", "large", "large", "small"]
        assert list(handler.models) == ["solver", "verifier", "judge"]


async def test_the_sampling_is_that_of_the_flow_within_the_limits_of_the_client() -> None:
    async with session(temperature=0.6, max_new_tokens=50, top_k=9, seed=3) as (endpoint, handler):
        await handler.complete(named("solver", temperature=0.1, max_tokens=20, stop=("x",)))
        await handler.complete(named("solver", max_tokens=90))
        first, second = endpoint.requests
    assert (first["temperature"], first["max_tokens"], first["top_k"], first["stop"]) == (0.6, 20, 9, ["x"])
    assert second["max_tokens"] == 50
    assert first["seed"] != second["seed"]
    async with session(temperature=0.6, uses_client_sampling=True) as (endpoint, handler):
        await handler.complete(named("solver", temperature=0.1))
        assert endpoint.requests[0]["temperature"] == 0.1
    async with session(temperature=0.6, uses_client_sampling=True) as (endpoint, handler):
        await handler.complete(named("solver", temperature=0.0, top_p=0.0))
        assert (endpoint.requests[0]["temperature"], endpoint.requests[0]["top_p"]) == (0.0, 0.0)


async def test_each_conversation_that_was_not_continued_is_a_trajectory() -> None:
    async with session() as (_, handler):
        first = await handler.complete(named("solver", user("a")))
        await handler.complete(named("solver", *handler.conversation(first.id), user("b")))
        await handler.complete(named("verifier", user("c")))
        trajectories = handler.trajectories(Score(value=0.5, answer="7"))
        each = handler.trajectories({SOLVER: 1.0, VERIFIER: 0.0})
        assert handler.last_reply == ("echo of c", Finish.STOP)
    assert [
        (trajectory.policy, trajectory.role, trajectory.turns, trajectory.reward, trajectory.answer)
        for trajectory in trajectories
    ] == [
        (SOLVER, "solver", 2, 0.5, "7"),
        (VERIFIER, "verifier", 1, 0.5, "7"),
    ]
    assert [trajectory.reward for trajectory in each] == [1.0, 0.0]
    assert sum(span.author is Author.MODEL for span in trajectories[0].spans) == 2


async def test_a_client_may_write_the_arguments_of_calls_in_another_form() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]
    async with session(lambda body: {"content": None, "tool_calls": calls}) as (_, handler):
        first = (await handler.complete(named("solver"))).message
        (call,) = first.function_calls
        sent = replace(first, function_calls=(replace(call, arguments='{"b":2,"a":1}'),))
        result = AgentMessage(role=Role.TOOL, content="3", call_id=call.id)
        await handler.complete(named("solver", user("hello"), sent, result))
        (trajectory,) = handler.trajectories(1.0)
    assert trajectory.turns == 2


async def test_a_repeated_call_gets_the_stored_reply() -> None:
    async with session() as (endpoint, handler):
        first = await handler.complete(named("solver", retry_key="k"))
        assert await handler.complete(named("solver", retry_key="k", is_retry=True)) == first
        assert len(endpoint.requests) == 1


async def test_a_limit_of_the_session_is_a_refusal_and_an_ending() -> None:
    async with session(max_turns=1) as (endpoint, handler):
        await handler.complete(named("solver"))
        with pytest.raises(CallRefused) as refusal:
            await handler.complete(named("solver"))
        (trajectory,) = handler.trajectories(1.0)
        assert len(endpoint.requests) == 1
        live = handler.usage.live(TaskId("f:0/0"), FlowId("f"))
    assert refusal.value.refusal is Refusal.LIMIT
    assert trajectory.ending is Ending.TURNS
    assert (live.calls, live.tokens, live.waiting_calls) == (1, COMPLETION_TOKENS, 0)


async def test_an_endpoint_without_an_answer_fails_the_session() -> None:
    async with session() as (endpoint, handler):
        endpoint.faults.append(failing(500))
        for _ in range(2):
            with pytest.raises(RolloutFailed) as failure:
                await handler.complete(named("solver"))
            assert failure.value.boundary is Boundary.ENGINE
        with pytest.raises(RolloutFailed):
            handler.trajectories(1.0)
        assert handler.failure is failure.value


async def test_a_call_that_the_endpoint_refuses_is_refused_and_the_session_goes_on() -> None:
    async with session() as (endpoint, handler):
        endpoint.faults.append(failing(400))
        with pytest.raises(CallRefused) as refusal:
            await handler.complete(named("solver"))
        await handler.complete(named("solver"))
        assert handler.failure is None
        assert len(handler.trajectories(1.0)) == 1
    assert refusal.value.refusal is Refusal.INVALID


async def test_a_call_whose_client_leaves_is_in_no_trajectory() -> None:
    async with session() as (endpoint, handler):
        endpoint.delays_s.append(30.0)
        leaving = asyncio.create_task(handler.complete(named("solver")))
        await endpoint.began.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert handler.trajectories(1.0) == ()
        handler.end()
        with pytest.raises(CallRefused) as ended:
            await handler.complete(named("solver"))
    assert ended.value.refusal is Refusal.ENDED


async def test_tokens_and_unknown_replies_are_refused() -> None:
    async with session() as (_, handler):
        tokens = TokenCall(options=CallOptions(model="solver"), prompt=np.array([1], dtype=np.int32))
        refusals = [
            (handler.generate(tokens), "upstream.no_tokens"),
            (handler.count_tokens(named("solver")), "upstream.no_token_count"),
        ]
        for request, code in refusals:
            with pytest.raises(CallRefused) as refusal:
                await request
            assert refusal.value.code == code
        with pytest.raises(CallRefused) as unknown:
            handler.conversation("reply-9")
    assert unknown.value.refusal is Refusal.NOT_FOUND


async def test_policies_of_a_run_get_a_session_that_is_trained() -> None:
    policies = {SOLVER: ScriptedPolicy(SOLVER, EpisodeRecord(reply=in_order("x")))}
    assert isinstance(open_session(policies, SessionOptions(), default=SOLVER), PolicySession)
