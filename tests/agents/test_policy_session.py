"""Sessions of agent programs with policies that answer by script: one test for each merging rule and limit."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astraflow.agents.calls import CallOptions, CallRefused, ModelReply, Refusal, ReplyFinish, TokenCall
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, TaskId
from astraflow.contract.rollouts.agent_calls import AgentCall, CallOutcome
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Generation, Sampling
from astraflow.contract.rollouts.spans import Author, Ending
from astraflow.contract.rollouts.trajectories import Int32Array, Trajectory
from tests.agents.messages import ADD, add, assistant, call, result, system, user, written
from tests.errors import raises_code
from tests.fakes.policy import FakePolicy

pytestmark = pytest.mark.anyio

SOLVER, CRITIC = PolicyId("solver"), PolicyId("critic")


def session(*replies: str | Exception, policy: FakePolicy | None = None, **options: Any) -> PolicySession:
    policies = {SOLVER: policy or FakePolicy(*replies)}
    return PolicySession(policies, SessionOptions.model_validate(options), default=SOLVER)


def speakers(trajectory: Trajectory) -> list[str]:
    """Returns what each span is: `model`, or the speaker of context."""
    return [span.speaker if span.author is Author.CONTEXT else "model" for span in trajectory.spans]


class HeldPolicy(FakePolicy):
    """Answers once it is released, and counts requests that were cancelled."""

    def __init__(self, *replies: str) -> None:
        super().__init__(*replies)
        self.released = asyncio.Event()
        self.started = 0
        self.cancelled = 0

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        self.started += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().generate(prompt, sampling)


async def started(policy: HeldPolicy, count: int = 1) -> None:
    while policy.started < count:  # noqa: ASYNC110  requests of several tasks are counted
        await asyncio.sleep(0)


async def test_a_conversation_with_a_tool_is_one_trajectory_of_the_exact_tokens() -> None:
    policy = FakePolicy(written("add", b=2, a=1), "It is 3.")
    agent = session(policy=policy)
    first = await agent.complete(call(user("1+2?"), tools=(ADD,)))
    (function_call,) = first.message.function_calls
    assert (first.finish, function_call.name, json.loads(function_call.arguments)) == (
        ReplyFinish.FUNCTION_CALLS,
        "add",
        {"a": 1, "b": 2},
    )

    sent = assistant("", add(a=1, b=2.0))
    second = await agent.complete(call(user("1+2?"), sent, result("3", "client_id"), tools=(ADD,)))

    assert (second.message.content, second.finish) == ("It is 3.", ReplyFinish.STOP)
    assert second.cached_tokens == first.prompt_tokens + first.completion_tokens
    assert agent.conversation(second.id)[-1] == second.message
    assert "<tool_response>\n3\n</tool_response>" in policy.asked(1)
    (trajectory,) = agent.trajectories(1.0)
    assert trajectory.tokens[: len(policy.prompts[1])].tolist() == policy.prompts[1].tolist()
    assert np.count_nonzero(trajectory.loss_mask()) == first.completion_tokens + second.completion_tokens
    assert speakers(trajectory) == ["", "model", "tool", "model"]
    assert (trajectory.role, trajectory.ending, trajectory.reward) == ("solver", Ending.DONE, 1.0)


async def test_reasoning_that_the_client_leaves_out_matches_and_changed_reasoning_does_not() -> None:
    policy = FakePolicy("<think>hm</think>\n\nyes ", "a", "b", "c")
    agent = session(policy=policy)
    first = await agent.complete(call(user("?")))
    assert (first.message.reasoning, first.message.content) == ("hm", "yes")
    for reasoning in (None, "hm", "other"):
        await agent.complete(call(user("?"), assistant("yes", reasoning=reasoning), user("sure?")))

    first_trajectory, second_trajectory, third_trajectory = agent.trajectories(0.0)
    assert speakers(first_trajectory) == ["", "model", "user", "model"]
    assert speakers(second_trajectory) == ["", "policy", "user", "model"]
    assert (second_trajectory.parent, second_trajectory.parent_turn) == (0, 0)
    assert (speakers(third_trajectory), third_trajectory.parent) == (["", "model"], None)
    assert "<think>\nother\n</think>\n\nyes" in policy.asked(3)


async def test_lines_of_the_system_that_change_from_call_to_call_begin_no_branch() -> None:
    policy = FakePolicy("one", "two")
    agent = session(policy=policy, hidden_lines=("x-anthropic-billing-header:", "Time: "))
    text = "x-anthropic-billing-header: cch={0};\nBe brief.\nTime: {0}\nSay Time: now."
    await agent.complete(call(system(text.format(1)), user("1")))
    await agent.complete(call(system(text.format(2)), system("Time: 3"), user("1"), assistant("one"), user("2")))

    (trajectory,) = agent.trajectories(1.0)
    assert speakers(trajectory) == ["", "model", "user", "model"]
    assert "system\nBe brief.\nSay Time: now.<" in policy.asked(0)


async def test_an_edited_reply_is_context_on_a_new_branch() -> None:
    policy = FakePolicy("one", "two", "three")
    agent = session(policy=policy)
    await agent.complete(call(user("1")))
    await agent.complete(call(user("1"), assistant("one"), user("2")))
    await agent.complete(call(user("1"), assistant("one"), user("2"), assistant("TWO"), user("3")))

    first, second = agent.trajectories(1.0)
    assert speakers(first) == ["", "model", "user", "model"]
    assert (speakers(second), second.parent, second.parent_turn) == (["", "policy", "user", "model"], 0, 0)
    assert "TWO" in policy.asked(2)
    assert first.model_tokens + second.model_tokens == len("onetwothree") + 3


@pytest.mark.parametrize("change", [{"tools": (ADD,)}, {"model": "critic"}])
async def test_other_tools_and_other_policies_begin_a_tree_of_their_own(change: dict[str, Any]) -> None:
    policies = {SOLVER: FakePolicy("one", "two"), CRITIC: FakePolicy("two")}
    agent = PolicySession(policies, SessionOptions(), default=SOLVER)
    await agent.complete(call(user("1")))
    await agent.complete(call(user("1"), assistant("one"), user("2"), **change))
    first, second = agent.trajectories({SOLVER: 1.0, CRITIC: 0.5}, roles={CRITIC: "judge"})
    assert second.parent is None and speakers(second) == ["", "model"]
    expected = ("critic", "judge", 0.5) if "model" in change else ("solver", "solver", 1.0)
    assert (str(second.policy), second.role, second.reward) == expected
    assert (first.role, first.metrics["branches"]) == ("solver", 2.0)


async def test_model_names_choose_the_policy_and_unknown_names_the_default() -> None:
    policies = {SOLVER: FakePolicy("a", "b", "c"), CRITIC: FakePolicy("d", "e")}
    agent = PolicySession(policies, SessionOptions(), default=SOLVER, models={"gpt-large": CRITIC})
    names = ["solver", "critic", "gpt-large", "gpt-small", "SOLVER"]
    replies = [await agent.complete(call(user("?"), model=name)) for name in names]
    assert [reply.message.content for reply in replies] == ["a", "d", "e", "b", "c"]
    assert agent.models == ("solver", "critic", "gpt-large")


async def test_equal_messages_with_other_call_ids_and_blank_content_match() -> None:
    agent = session(written("add", a=1) + written("add", a=2), "done", "more", "other")
    first = await agent.complete(call(user("?"), tools=(ADD,)))
    ids = [function_call.id for function_call in first.message.function_calls]
    assert len(set(ids)) == 2
    sent = assistant(" ", replace(add(a=1), id="x"), replace(add(a=2), id="y"))
    answers = [result("1", "x"), result("2", "y")]
    await agent.complete(call(user("?"), sent, *answers, tools=(ADD,)))
    own = assistant("", *first.message.function_calls)
    answers = [result("1", ids[0]), result("2", ids[1])]
    await agent.complete(call(user("?"), own, *answers, assistant("done"), user("!"), tools=(ADD,)))
    (trajectory,) = agent.trajectories(1.0)
    assert trajectory.turns == 3
    swapped = [result("1", ids[1]), result("2", ids[0])]
    await agent.complete(call(user("?"), own, *swapped, assistant("done"), user("!"), tools=(ADD,)))
    _, branch = agent.trajectories(1.0)
    assert (branch.parent, branch.parent_turn, branch.turns) == (0, 0, 1)


async def test_a_function_call_that_does_not_parse_stays_content() -> None:
    broken = '<tool_call>{"name": add}</tool_call>'
    agent = session(f"so {written('add', a=1)} and {broken}", "<tool_call>never closed", broken)
    first = await agent.complete(call(user("?"), tools=(ADD,)))
    assert [function_call.name for function_call in first.message.function_calls] == ["add"]
    assert first.message.content.endswith(broken) and first.message.content.startswith("so")
    second = await agent.complete(call(user("!"), tools=(ADD,)))
    assert (second.message.content, second.message.function_calls) == ("<tool_call>never closed", ())
    third = await agent.complete(call(user("."), tools=(ADD,), tool_choice="none"))
    assert third.message.content == broken
    assert sum(trajectory.model_tokens for trajectory in agent.trajectories(0.0)) == agent.usage.tokens


@pytest.mark.parametrize(("superseded", "leaves"), [("drop", 1), ("keep", 2)])
@pytest.mark.parametrize("reply", ["too long for it", "<tool_call>no"])
async def test_an_unfinished_reply_that_is_asked_for_again_is_dropped_or_kept(
    reply: str, superseded: str, leaves: int
) -> None:
    agent = session(reply, "short", max_new_tokens=14, superseded=superseded)
    for _ in range(2):
        await agent.complete(call(user("?"), tools=(ADD,)))
    trajectories = agent.trajectories(1.0)
    assert len(trajectories) == leaves
    assert trajectories[0].metrics["superseded_replies"] == 2 - leaves
    assert [trajectory.is_truncated for trajectory in trajectories][-1] is False


async def test_replies_of_calls_at_once_do_not_supersede_each_other() -> None:
    policy = HeldPolicy("too long for it", "short")
    agent = session(policy=policy, max_new_tokens=14)
    calls = [asyncio.ensure_future(agent.complete(call(user("?")))) for _ in range(2)]
    await started(policy, 2)
    policy.released.set()
    await asyncio.gather(*calls)
    assert [trajectory.is_truncated for trajectory in agent.trajectories(1.0)] == [True, False]


class TestRetries:
    async def test_a_retry_of_an_answered_call_gets_its_reply(self) -> None:
        agent = session("one", "two")
        first = await agent.complete(call(user("?"), retry_key="k"))
        again = await agent.complete(call(user("?"), retry_key="k", is_retry=True))
        other = await agent.complete(call(user("?"), retry_key="k"))
        assert (again, other.message.content) == (first, "two")
        assert [trajectory.metrics.get("replayed_calls") for trajectory in agent.trajectories(0.0)] == [1.0, None]

    async def test_a_retry_joins_the_call_in_progress_and_keeps_it_when_the_first_client_leaves(self) -> None:
        policy = HeldPolicy("one")
        agent = session(policy=policy)
        first = asyncio.ensure_future(agent.complete(call(user("?"), retry_key="k")))
        await started(policy)
        second = asyncio.ensure_future(agent.complete(call(user("?"), retry_key="k", is_retry=True)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        policy.released.set()
        assert (await second).message.content == "one"
        assert (policy.started, policy.cancelled, agent.usage.turns) == (1, 0, 1)

    async def test_a_call_whose_client_left_is_aborted_and_leaves_no_trace(self) -> None:
        policy = HeldPolicy("one")
        agent = session(policy=policy)
        first = asyncio.ensure_future(agent.complete(call(user("?"), retry_key="k")))
        await started(policy)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (first.cancelled(), policy.cancelled, agent.trajectories(0.0)) == (True, 1, ())
        policy.released.set()
        again = await agent.complete(call(user("?"), retry_key="k", is_retry=True))
        assert again.message.content == "one" and agent.usage.in_progress == 0

    async def test_a_reply_that_was_complete_when_its_client_had_left_is_taken_back(self) -> None:
        policy = HeldPolicy("one", "two")
        agent = session(policy=policy)
        first = asyncio.ensure_future(agent.complete(call(user("?"), retry_key="k")))
        await started(policy)
        policy.released.set()
        while not agent.usage.turns:  # noqa: ASYNC110  nothing tells of a commit
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled() and agent.trajectories(0.0) == ()
        again = await agent.complete(call(user("?"), retry_key="k", is_retry=True))
        assert again.message.content == "two"


class TestLimits:
    async def test_turns(self) -> None:
        agent = session("a", "b", max_turns=2)
        await agent.complete(call(user("?")))
        await agent.complete(call(user("?"), assistant("a"), user("!")))
        with raises_code(CallRefused, "agent.limit") as caught:
            await agent.complete(call(user("?"), assistant("a"), user("!"), assistant("b"), user(".")))
        assert caught.value.refusal is Refusal.LIMIT
        (trajectory,) = agent.trajectories(0.0)
        assert (trajectory.ending, trajectory.is_truncated) == (Ending.TURNS, True)

    async def test_tokens_of_the_session_and_of_a_call(self) -> None:
        agent = session("0123456789", "0123456789", "0123456789", max_tokens=14)
        first = await agent.complete(call(user("?"), max_tokens=4))
        assert (first.message.content, first.finish) == ("0123", ReplyFinish.LENGTH)
        second = await agent.complete(call(user("!")))
        assert second.completion_tokens == 10
        with raises_code(CallRefused, "agent.limit"):
            await agent.complete(call(user(".")))
        first_trajectory, second_trajectory = agent.trajectories(0.0)
        assert (first_trajectory.ending, second_trajectory.ending, second_trajectory.is_truncated) == (
            Ending.DONE,
            Ending.CONTEXT,
            True,
        )

    async def test_a_conversation_at_its_limit_is_truncated_and_others_go_on(self) -> None:
        agent = session("a" * 40, "b", max_context=96)
        await agent.complete(call(user("?")))
        with raises_code(CallRefused, "agent.limit") as caught:
            await agent.complete(call(user("?"), assistant("a" * 40), user("c" * 40)))
        assert caught.value.context is not None
        assert caught.value.context.tokens >= caught.value.context.limit == 96
        await agent.complete(call(user("summary: a")))
        first_trajectory, second_trajectory = agent.trajectories(0.0)
        assert [
            (first_trajectory.ending, first_trajectory.is_truncated),
            (second_trajectory.ending, second_trajectory.is_truncated),
        ] == [
            (Ending.CONTEXT, True),
            (Ending.DONE, False),
        ]

    async def test_parallel_calls_beyond_the_limit_are_told_to_come_back(self) -> None:
        policy = HeldPolicy("a", "b")
        agent = session(policy=policy, max_parallel_calls=2)
        calls = [asyncio.ensure_future(agent.complete(call(user(text)))) for text in "ab"]
        await started(policy, 2)
        live = agent.usage.live(TaskId("t"), FlowId("f"))
        assert (live.calls, live.waiting_calls, live.tokens) == (0, 2, 0)
        with raises_code(CallRefused, "agent.parallel_calls") as caught:
            await agent.complete(call(user("c")))
        assert caught.value.refusal is Refusal.BUSY
        policy.released.set()
        await asyncio.gather(*calls)
        live = agent.usage.live(TaskId("t"), FlowId("f"))
        assert (live.calls, live.waiting_calls, live.tokens) == (2, 0, 4)

    async def test_time(self) -> None:
        policy = HeldPolicy("a")
        agent = session(policy=policy, max_seconds=0.2)
        for _ in range(2):
            with raises_code(CallRefused, "agent.limit"):
                await agent.complete(call(user("?")))
        assert (policy.cancelled, agent.usage.ending) == (1, Ending.BUDGET)

    async def test_an_ended_session(self) -> None:
        agent = session("a")
        agent.end()
        with raises_code(CallRefused, "agent.session_ended") as caught:
            await agent.complete(call(user("?")))
        assert caught.value.refusal is Refusal.ENDED


class TestSampling:
    async def test_the_flow_sets_the_temperature_and_the_client_further_limits(self) -> None:
        policy = FakePolicy("It is END", "b")
        agent = session(policy=policy, temperature=0.8, max_new_tokens=20, stop_strings=("X",))
        reply = await agent.complete(call(user("?"), temperature=0.1, top_p=0.5, max_tokens=10, stop=("END",)))
        sampling = policy.samplings[0]
        assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.8, 1.0, 10)
        assert sampling.stop_strings == ("X", "END")
        assert (reply.message.content, reply.completion_tokens) == ("It is", len("It is END") + 1)

    async def test_evaluations_may_use_those_of_the_client(self) -> None:
        policy = FakePolicy("a")
        agent = session(policy=policy, uses_client_sampling=True)
        await agent.complete(call(user("?"), temperature=0.1))
        assert (policy.samplings[0].temperature, policy.samplings[0].top_p) == (0.1, 1.0)

    async def test_evaluations_may_be_greedy(self) -> None:
        policy = FakePolicy("a", "b")
        agent = session(policy=policy, uses_client_sampling=True)
        await agent.complete(call(user("?"), temperature=0.0))
        await agent.complete(call(user("?"), top_p=0.0))
        assert [sampling.temperature for sampling in policy.samplings] == [0.0, 1.0]
        assert policy.samplings[0].top_p == 1.0
        assert 0 < policy.samplings[1].top_p < 1e-3, "engines refuse 0"

    def test_the_sampling_of_clients_needs_kept_sets_in_training(self) -> None:
        assert SessionOptions(uses_client_sampling=True, top_k=5).truncating_options == (
            "top_k",
            "uses_client_sampling",
        )
        assert SessionOptions().truncating_options == ()

    async def test_a_json_schema_is_passed_on_where_its_tokens_can_be_trained_and_refused_elsewhere(self) -> None:
        policy = FakePolicy("a", "b")
        agent = session(policy=policy)
        await agent.complete(call(user("?"), json_schema="{}"))
        policy.allows_grammars = False
        with raises_code(CallRefused, "agent.json_schema"):
            await agent.complete(call(user("?"), json_schema="{}"))
        await agent.complete(call(user("?")))
        assert [sampling.json_schema for sampling in policy.samplings] == ["{}", ""]

    async def test_a_schema_that_the_engine_cannot_use_is_refused_and_the_session_goes_on(self) -> None:
        failure = RolloutFailed("InvalidInput: no", boundary=Boundary.ENGINE, code="rollout.engine_failed")
        failure.__cause__ = InvalidInput("cannot sample by a grammar: no", code="engine.invalid_grammar")
        agent = session(failure, "b")
        with raises_code(CallRefused, "engine.invalid_grammar"):
            await agent.complete(call(user("?"), json_schema="[]"))
        assert (await agent.complete(call(user("?")))).message.content == "b"

    async def test_one_function_call_ends_a_turn_without_parallel_calls(self) -> None:
        policy = FakePolicy("a")
        await session(policy=policy).complete(call(user("?"), tools=(ADD,), allows_parallel_calls=False))
        assert policy.samplings[0].stop_strings == ("</tool_call>",)


class BrokenPolicy(FakePolicy):
    """Changes each generation."""

    def __init__(self, **changes: Any) -> None:
        super().__init__("abc")
        self._changes = changes

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        return replace(await super().generate(prompt, sampling), **self._changes)


class TestFailures:
    async def test_a_failure_of_the_engine_fails_the_session_for_every_later_call(self) -> None:
        failure = RolloutFailed("no", boundary=Boundary.ENGINE, code="rollout.engine_failed")
        agent = session("a", failure, "b")
        await agent.complete(call(user("?")))
        for _ in range(2):
            with raises_code(RolloutFailed, "rollout.engine_failed"):
                await agent.complete(call(user("!")))
        assert agent.failure is failure
        with raises_code(RolloutFailed, "rollout.engine_failed"):
            agent.trajectories(1.0)

    @pytest.mark.parametrize(
        "changes",
        [
            {"logprobs": np.full(3, -0.5, dtype=np.float32)},
            {"logprobs": np.full(4, np.nan, dtype=np.float32)},
            {"tokens": np.array([1, 2, 3, 999], dtype=np.int32)},
            {"tokens": np.empty(0, np.int32), "logprobs": np.empty(0, np.float32), "spans": ()},
        ],
        ids=["too few logprobs", "no number", "unknown token", "no tokens"],
    )
    async def test_a_generation_that_is_not_exact_fails_at_the_engine_and_names_the_call(
        self, changes: dict[str, Any]
    ) -> None:
        agent = session(policy=BrokenPolicy(**changes))
        with raises_code(RolloutFailed, "rollout.inexact_call") as caught:
            await agent.complete(call(user("?")))
        assert caught.value.boundary is Boundary.ENGINE and agent.failure is caught.value

    async def test_a_call_waits_for_a_version_and_is_then_told_to_come_back(self) -> None:
        failure = RolloutFailed("not yet", boundary=Boundary.ENGINE, code="rollout.not_serving")
        agent = session(failure, "a", hold_s=5)
        assert (await agent.complete(call(user("?")))).message.content == "a"
        agent = session(failure, "a", hold_s=0)
        with raises_code(CallRefused, "agent.not_serving") as caught:
            await agent.complete(call(user("?")))
        assert caught.value.refusal is Refusal.BUSY and agent.failure is None


class TestTokenCalls:
    async def test_prompts_are_matched_by_tokens(self) -> None:
        agent = session("one", "two", "three")
        prompt = np.array([1, 2, 3], dtype=np.int32)
        first = await agent.generate(self.of(prompt))
        second = await agent.generate(self.of(np.concatenate([prompt, first.tokens, [7, 8]]).astype(np.int32)))
        await agent.generate(self.of(np.concatenate([prompt, first.tokens, [9]]).astype(np.int32)))
        continued, branch = agent.trajectories(1.0)
        assert continued.tokens.tolist() == [1, 2, 3, *first.tokens.tolist(), 7, 8, *second.tokens.tolist()]
        assert (branch.parent, branch.parent_turn, speakers(branch)) == (0, 0, ["", "policy", "user", "model"])

    async def test_replies_without_tokens_between_them_are_one_turn(self) -> None:
        agent = session("one", "two", "three", max_new_tokens=3)
        prompt = np.array([1], dtype=np.int32)
        first = await agent.generate(self.of(prompt))
        second = await agent.generate(self.of(np.concatenate([prompt, first.tokens]).astype(np.int32)))
        record = AgentCall(
            began_s=0, duration_s=1, dialect="tokens", model="m", request="", reply="", outcome=CallOutcome.ANSWERED
        )
        (trajectory,) = agent.trajectories(1.0, calls=[(record, first.id), (record, second.id), (record, None)])
        assert (trajectory.turns, [agent_call.turn for agent_call in trajectory.calls]) == (1, [0, 0, None])

    @pytest.mark.parametrize("prompt", [[], [-1], [5000]])
    async def test_tokens_that_the_policy_does_not_have_are_refused(self, prompt: list[int]) -> None:
        with raises_code(CallRefused, "agent.unknown_tokens"):
            await session("a").generate(self.of(np.array(prompt, dtype=np.int32)))

    def of(self, prompt: Int32Array) -> TokenCall:
        return TokenCall(options=CallOptions(model="solver"), prompt=prompt)


async def test_recorded_calls_are_attached_to_the_turn_that_they_became() -> None:
    agent = session("one", "two", "three")
    first_reply = await agent.complete(call(user("1")))
    second_reply = await agent.complete(call(user("other")))
    third_reply = await agent.complete(call(user("1"), assistant("one"), user("2")))
    record = AgentCall(
        began_s=0, duration_s=1, dialect="chat", model="m", request="", reply="", outcome=CallOutcome.ANSWERED
    )
    refused = replace(record, outcome=CallOutcome.REFUSED)
    calls = [(record, reply.id) for reply in (first_reply, second_reply, third_reply)]
    trajectories = agent.trajectories(1.0, calls=[*calls, (refused, None)])
    turns = [
        [(agent_call.outcome.value, agent_call.turn) for agent_call in trajectory.calls] for trajectory in trajectories
    ]
    assert turns == [[("answered", 0), ("refused", None)], [("answered", 0), ("answered", 1)]]


async def test_unknown_replies_have_no_conversation() -> None:
    agent = session("one")
    reply: ModelReply = await agent.complete(call(system("s"), user("1")))
    assert [message.content for message in agent.conversation(reply.id)] == ["s", "1", "one"]
    with raises_code(CallRefused, "agent.unknown_reply") as caught:
        agent.conversation("reply_9")
    assert caught.value.refusal is Refusal.NOT_FOUND
