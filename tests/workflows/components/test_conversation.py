"""Conversations: exact tokens between turns, with stop strings, limits, and a chat template with tools."""

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.trajectories import Ending, Int32Array
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards import rewards
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from astraflow.workflows.components.conversation import Conversation, ConversationOptions, shortened
from tests import make
from tests.errors import raises_code
from tests.fakes.chat_templates import CHATML, FORGETFUL, tokenizer
from tests.fakes.policy import FakePolicy

SOLVER = PolicyId("solver")
QUESTION = [{"role": "user", "content": "what?"}]


class TemplatePolicy(FakePolicy):
    """Uses a tokenizer with a chat template."""

    template = CHATML

    @property
    def tokenizer(self) -> ChatTokenizer:
        return tokenizer(self.template)


class StoppingPolicy(FakePolicy):
    """Ends each reply at a stop string, without the stop token."""

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        self.samplings.append(sampling)
        return make.generation("<search>x</search>" if sampling.stop_strings else "", finish=Finish.STOP)


@pytest.mark.anyio
async def test_a_stop_string_leaves_the_end_of_the_turn_to_the_template() -> None:
    conversation = Conversation(SOLVER, StoppingPolicy(), ConversationOptions(), QUESTION)
    await conversation.answer(["</search>"])
    assert conversation.append([{"role": "user", "content": "found"}], speaker="tool")

    text = StoppingPolicy().tokenizer.decode(conversation.builder.tokens(), keep_special_tokens=True)
    assert text.endswith("<search>x</search><|im_end|>\n<|im_start|>user\nfound<|im_end|>\n<|im_start|>assistant\n")
    trajectory = conversation.builder.build(0.0)
    assert trajectory.model_tokens == len("<search>x</search>")


@pytest.mark.anyio
async def test_an_engine_that_writes_nothing_is_a_failure() -> None:
    conversation = Conversation(SOLVER, StoppingPolicy(), ConversationOptions(), QUESTION)
    with raises_code(RolloutFailed, "rollout.empty_generation") as failure:
        await conversation.answer()
    assert failure.value.boundary is Boundary.ENGINE


@pytest.mark.anyio
async def test_messages_that_leave_no_room_are_not_appended() -> None:
    conversation = Conversation(SOLVER, FakePolicy("yes"), ConversationOptions(max_context=100), QUESTION)
    await conversation.answer()
    before = conversation.builder.tokens()
    assert not conversation.append([{"role": "user", "content": "x" * 100}], speaker="tool")
    assert np.array_equal(conversation.builder.tokens(), before)
    assert (conversation.ending(), conversation.room) == (None, 100 - len(before))


@pytest.mark.anyio
async def test_tools_go_through_a_chat_template_that_describes_them() -> None:
    policy = TemplatePolicy('<tool_call>{"name": "calculate", "arguments": {"expression": "6*7"}}</tool_call>', "dcba")
    workflow = workflows.build({"kind": "tool_use", "tools": [{"kind": "calculator"}]})

    (trajectory,) = await workflow.run(
        make.task(), {SOLVER: policy}, RewardScorer(rewards.build({"kind": "exact_match"}))
    )

    assert "Functions, to be called as <tool_call>" in policy.asked(0)
    assert "You can call these tools" not in policy.asked(0)
    assert policy.asked(1).endswith(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert np.array_equal(trajectory.tokens[: len(policy.prompts[1])], policy.prompts[1])
    assert (trajectory.ending, trajectory.reward) == (Ending.DONE, 1.0)


@pytest.mark.anyio
async def test_other_call_formats_are_described_beside_the_template() -> None:
    policy = TemplatePolicy("<calculate>6*7</calculate>", "dcba")
    workflow = workflows.build({"kind": "tool_use", "tools": [{"kind": "calculator"}], "call_format": "xml"})
    await workflow.run(make.task(), {SOLVER: policy}, RewardScorer(rewards.build({"kind": "exact_match"})))

    assert "<NAME>argument</NAME>" in policy.asked(0)
    assert "Functions, to be called" not in policy.asked(0)


@pytest.mark.anyio
async def test_a_template_that_drops_answers_fails_the_episode() -> None:
    class Forgetful(TemplatePolicy):
        template = FORGETFUL

    workflow = workflows.build({"kind": "multi_turn"})
    with raises_code(InvalidInput, "model.template_changes_history"):
        await workflow.run(
            make.task(), {SOLVER: Forgetful("abcd")}, RewardScorer(rewards.build({"kind": "exact_match"}))
        )


def test_texts_are_cut_and_made_valid() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("a\ud800c" + "d" * 10, 3) == "a?c\n[10 more characters were cut]"
