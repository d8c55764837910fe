"""Conversations of three turns with tools, in the chat formats of models that people train, in workflows and agents."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from astraflow.agents.policy_session import PolicySession
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling, VersionSpan
from astraflow.contract.rollouts.spans import Author
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.rollouts.trajectories import Ending, Int32Array, Trajectory
from astraflow.models.answer_texts import answer_parts
from astraflow.models.tokenizers import ChatTokenizer
from astraflow.rewards.base import Score, outside_thoughts
from astraflow.workflows import workflows
from astraflow.workflows.base import RewardScorer
from tests import make
from tests.agents.messages import ADD, call, result, system, user
from tests.fakes.episode_tools import EpisodeTools  # noqa: F401 # registers the tools
from tests.fakes.model_templates import FAMILIES, family_tokenizer
from tests.fakes.policy import FakePolicy

SOLVER = PolicyId("solver")
THOUGHT = "I think."


class AfterThoughts:
    """Reward of 1 for the right answer after the thoughts."""

    def score(self, prompt: Prompt, completion: str, finish: Finish) -> Score:
        return Score(value=float(outside_thoughts(completion).strip() == prompt.fields["answer"]))


class NativePolicy(FakePolicy):
    """Policy of a family: it writes each reply's own tokens, special ones included, and the token that ends it."""

    def __init__(self, family: str, *replies: str) -> None:
        super().__init__()
        self._family = family
        self._texts = list(replies)
        self.answers: list[Int32Array] = []

    @property
    def tokenizer(self) -> ChatTokenizer:
        return family_tokenizer(self._family)

    async def generate(self, prompt: Int32Array, sampling: Sampling) -> Generation:
        core = family_tokenizer(self._family).pretrained
        self.prompts.append(prompt)
        tokens = np.array(core.encode(self._texts.pop(0), add_special_tokens=False), dtype=np.int32)
        self.answers.append(tokens)
        assert int(tokens[-1]) in sampling.stop_tokens
        return Generation(
            tokens=tokens,
            logprobs=np.full(len(tokens), -0.5, dtype=np.float32),
            spans=(VersionSpan(version=Version(3), length=len(tokens)),),
            finish=Finish.STOP,
        )


def replies(family: str, *calls: tuple[str, dict[str, Any]], answer: str) -> list[str]:
    """Returns what a policy of the family writes: a thought and a call in each turn, then a thought and the answer."""
    end = FAMILIES[family].stop
    if family == "gpt-oss":
        thought = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
        written = [
            f" to=functions.{name}<|channel|>commentary json<|message|>{json.dumps(arguments)}<|call|>"
            for name, arguments in calls
        ]
        return [*(thought + text for text in written), f"{thought}<|channel|>final<|message|>{answer}{end}"]
    begin = "" if FAMILIES[family].begins_thinking else "<think>\n"
    thought = f"{begin}{THOUGHT}\n</think>\n\n"
    form = _tagged if FAMILIES[family].has_tagged_calls else _hermes
    written = [f"<tool_call>\n{form(name, arguments)}\n</tool_call>" for name, arguments in calls]
    return [thought + text + end for text in (*written, answer)]


def _hermes(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _tagged(name: str, arguments: dict[str, Any]) -> str:
    parameters = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()]
    return f"<function={name}>\n{''.join(parameters)}</function>"


def check_grown(policy: NativePolicy, trajectory: Trajectory) -> None:
    """Checks that each prompt begins with the one before and its answer, and that no answer ends twice."""
    tokenizer = family_tokenizer(policy._family)
    tokens = np.empty(0, dtype=np.int32)
    for prompt, answer in zip(policy.prompts, policy.answers, strict=True):
        assert prompt[: len(tokens)].tolist() == tokens.tolist()
        bridge = tokenizer.decode(prompt[len(tokens) :], keep_special_tokens=True)
        assert not len(tokens) or not bridge.lstrip().startswith((FAMILIES[policy._family].stop, "<|end|>", "<|call|>"))
        tokens = np.concatenate([prompt, answer])
    assert trajectory.tokens.tolist() == tokens.tolist()
    written = [span.length for span in trajectory.spans if span.author is Author.MODEL]
    assert written == [len(answer) for answer in policy.answers]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.anyio
async def test_a_workflow_continues_three_turns_with_tools(family: str) -> None:
    policy = NativePolicy(
        family, *replies(family, ("double", {"number": 21}), ("note", {"text": "6 </s>"}), answer="dcba")
    )
    spec = {"kind": "tool_use", "tools": [{"kind": "test_episode"}], "system": "Be brief."}
    (trajectory,) = await workflows.build(spec).run(make.task(), {SOLVER: policy}, RewardScorer(AfterThoughts()))

    assert (trajectory.ending, trajectory.reward) == (Ending.DONE, 1.0)
    assert (trajectory.metrics["tool_calls"], trajectory.metrics["malformed"]) == (2, 0)
    check_grown(policy, trajectory)
    texts = [policy.asked(number) for number in range(3)]
    assert "Be brief." in texts[0] and "double" in texts[0]
    assert "42" in texts[1].removeprefix(texts[0]) and "6 </s>" in texts[2].removeprefix(texts[1])
    assert all(text.endswith(FAMILIES[family].begin) for text in texts)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.anyio
async def test_an_agent_continues_three_turns_with_tools(family: str) -> None:
    calls: Sequence[tuple[str, dict[str, Any]]] = (("add", {"a": "1"}), ("add", {"a": "<think>"}))
    policy = NativePolicy(family, *replies(family, *calls, answer="Done."))
    agent = PolicySession({SOLVER: policy}, SessionOptions(), default=SOLVER)
    messages = [system("Be brief."), user("1+2?")]
    for name, arguments in calls:
        reply = (await agent.complete(call(*messages, tools=(ADD,)))).message
        (function_call,) = reply.function_calls
        assert (reply.reasoning, reply.content, function_call.name) == (THOUGHT, "", name)
        assert json.loads(function_call.arguments) == arguments
        messages += [reply, result("3", function_call.id)]
    last = (await agent.complete(call(*messages, tools=(ADD,)))).message
    assert (last.reasoning, last.content) == (THOUGHT, "Done.")
    (trajectory,) = agent.trajectories(1.0)
    check_grown(policy, trajectory)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_that_was_cut_gets_the_end_of_the_template(family: str) -> None:
    tokenizer = family_tokenizer(family)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "?"}])
    ended = tokenizer.encode_answer("so")
    cut = tokenizer.encode_answer("so")[:-1]
    following = [{"role": "user", "content": "go on"}]
    rest = tokenizer.bridge(prompt, ended, following)
    end, *others = tokenizer.bridge(prompt, cut, following).tolist()
    assert others == rest.tolist()
    assert end == (tokenizer.pretrained.convert_tokens_to_ids("<|end|>") if family == "gpt-oss" else ended[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_of_a_data_set_is_read_as_it_was_written(family: str) -> None:
    tokenizer = family_tokenizer(family)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "?"}])
    text = f'<think>\n{THOUGHT}\n</think>\n\n<tool_call>\n{{"name": "add", "arguments": {{"a": "1"}}}}\n</tool_call>'
    for answer in (text, "so"):
        ids = tokenizer.encode_answer(answer)
        assert answer_parts(tokenizer.answer_text(prompt[:0], ids)) == answer_parts(answer)
        assert int(ids[-1]) in tokenizer.stop_tokens


def test_results_without_a_call_are_messages_of_the_user_where_results_name_a_call() -> None:
    tokenizer = family_tokenizer("gpt-oss")
    bridge = tokenizer.bridge(
        np.empty(0, dtype=np.int32), tokenizer.encode_answer("no call"), [{"role": "tool", "content": "Error: x"}]
    )
    assert tokenizer.decode(bridge, keep_special_tokens=True) == (
        "<|start|>user<|message|>Error: x<|end|><|start|>assistant"
    )


def test_an_answer_without_channels_is_content() -> None:
    tokenizer = family_tokenizer("gpt-oss")
    assert tokenizer.answer_text(np.empty(0, dtype=np.int32), tokenizer.encode("plain")) == "plain"


def test_conversations_of_edited_answers_have_their_channels() -> None:
    tokenizer = family_tokenizer("gpt-oss")
    calls = "".join(f'<tool_call>{{"name": "add", "arguments": {{"a": {n}}}}}</tool_call>' for n in (1, 2))
    text = tokenizer.decode(
        tokenizer.encode_chat(
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": f"<think>hm</think>So {calls}"},
                {"role": "tool", "content": "3"},
            ]
        ),
        keep_special_tokens=True,
    )
    assert text.count("<|start|>assistant<|channel|>analysis<|message|>hm\nSo<|end|>") == 1
    assert text.count("<|start|>assistant to=functions.add<|channel|>commentary json<|message|>") == 2
    assert text.endswith(
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"<|end|><|start|>assistant'
    )
