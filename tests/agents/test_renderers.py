"""Renderers of chat formats: whole prompts, bridges, and what policies wrote."""

import asyncio
import json

import numpy as np
import pytest

from astraflow.agents.calls import CallRefused, FunctionCall
from astraflow.agents.policy_session import PolicySession
from astraflow.agents.renderers import Renderer
from astraflow.agents.session_limits import SessionOptions
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.byte_tokenizer import ByteTokenizer
from astraflow.models.tokenizers import ChatTokenizer
from tests.agents.messages import ADD, assistant, call, result, system, user, written
from tests.errors import raises_code
from tests.fakes.chat_templates import CHATML, FORGETFUL, SMOLLM2, STRICT, THINKING, tokenizer
from tests.fakes.policy import FakePolicy

SOLVER = PolicyId("solver")
EMPTY = np.empty(0, dtype=np.int32)
_REFUSES_B = "{%- if message['content'] == 'b' %}{{ raise_exception('no b') }}{% endif %}"
TEMPLATES = {"bytes": None, "smollm2": SMOLLM2, "qwen": CHATML}


def chat_tokenizer(name: str) -> ChatTokenizer:
    template = TEMPLATES[name]
    return ByteTokenizer() if template is None else tokenizer(template, "characters" if name == "smollm2" else "words")


def text_of(source: ChatTokenizer, tokens: Int32Array) -> str:
    return source.decode(tokens, keep_special_tokens=True)


class OtherTokenizer(FakePolicy):
    """Policy with a given tokenizer."""

    def __init__(self, source: ChatTokenizer, *replies: str) -> None:
        super().__init__(*replies)
        self._source = source

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self._source


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_bridge_continues_an_answer_as_the_whole_conversation_is_rendered(name: str) -> None:
    source = chat_tokenizer(name)
    renderer = Renderer(source)
    begin = [system("s"), user("<|im_end|> 1+2?")]
    prompt = renderer.render(begin, (ADD,))
    text = "so\n<tool_call>\n" + '{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    answer = np.append(source.encode(text), np.int32(source.stop_tokens[0])).astype(np.int32)
    rest = [result("3", "x"), result("4 <|im_end|>", "y"), user("sure?")]
    for end in (1, 0):  # with and without the token that ends the answer
        read = answer if end else answer[:-1]
        bridge = renderer.bridge(prompt, read, rest, (ADD,))
        whole = renderer.render(
            [*begin, assistant("so", FunctionCall(id="x", name="add", arguments='{"a": 1}')), *rest], (ADD,)
        )
        assert text_of(source, np.concatenate([prompt, read, bridge])) == text_of(source, whole)


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_are_described_by_the_template_or_else_in_the_system_message(name: str) -> None:
    source = chat_tokenizer(name)
    renderer = Renderer(source)
    text = text_of(source, renderer.render([system("Be brief."), user("?")], (ADD,)))
    assert '"name": "add"' in text and "<tool_call>" in text and "Be brief." in text
    assert text.count("system\n") == (2 if name == "qwen" else 1)
    assert '"add"' not in text_of(source, renderer.render([user("?")], ()))


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls", "is_malformed"),
    [
        ("hello", None, "hello", [], False),
        ("<think>\na\n</think>\n\nb", "a", "b", [], False),
        ("a\n</think>\n\nb", "a", "b", [], False),
        ("<think>never closed", "never closed", "", [], False),
        ("<think>" + written("add") + "</think>b", written("add"), "b", [], False),
        ("b " + written("add", a=1) + written("sub"), None, "b", ["add", "sub"], False),
        ("<tool_call>" + written("add"), None, "<tool_call>", ["add"], True),
        ("<tool_call>[1]</tool_call>", None, "<tool_call>[1]</tool_call>", [], True),
    ],
)
def test_thoughts_and_function_calls_are_parsed(
    text: str, reasoning: str | None, content: str, calls: list[str], is_malformed: bool
) -> None:
    source = ByteTokenizer()
    parsed = Renderer(source).parse(EMPTY, source.encode(text), (ADD,))
    message = parsed.message
    assert (message.reasoning, message.content, parsed.is_malformed) == (reasoning, content, is_malformed)
    assert [function_call.name for function_call in message.function_calls] == calls


@pytest.mark.parametrize("thought", ["", "<think>x</think>"])
@pytest.mark.parametrize("value", ["</think>", "<think>", "</tool_call>", "<tool_call>", "<tool_call>{}</tool_call>"])
def test_tags_in_a_text_of_a_call_belong_to_the_text(thought: str, value: str) -> None:
    source = ByteTokenizer()
    call_text = f'<tool_call>{{"name": "add", "arguments": {{"a": "{value}"}}}}</tool_call>'
    parsed = Renderer(source).parse(EMPTY, source.encode(f"{thought}Now {call_text} done"), (ADD,))
    message = parsed.message
    assert (message.reasoning, message.content) == ("x" if thought else None, "Now  done")
    assert [json.loads(call.arguments) for call in message.function_calls] == [{"a": value}]
    assert not parsed.is_malformed


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
def test_a_call_with_a_number_that_is_no_json_stays_text(number: str) -> None:
    source = ByteTokenizer()
    call_text = f'<tool_call>{{"name": "add", "arguments": {{"a": {number}}}}}</tool_call>'
    parsed = Renderer(source).parse(EMPTY, source.encode(call_text), (ADD,))
    assert (parsed.message.content, parsed.message.function_calls, parsed.is_malformed) == (call_text, (), True)


def test_a_template_that_begins_with_a_thought_makes_text_without_an_end_a_thought() -> None:
    source = tokenizer(THINKING, "characters")
    renderer = Renderer(source)
    prompt = renderer.render([user("?")], ())
    parsed = renderer.parse(prompt, source.encode("hm"), ())
    assert (parsed.message.reasoning, parsed.message.content) == ("hm", "")
    parsed = renderer.parse(prompt, source.encode("hm</think>yes"), ())
    assert (parsed.message.reasoning, parsed.message.content) == ("hm", "yes")


@pytest.mark.anyio
async def test_a_template_that_changes_history_fails_clearly_or_makes_each_turn_a_trajectory() -> None:
    source = tokenizer(FORGETFUL, "characters")
    messages = [user("1"), assistant("one"), user("2")]
    agent = PolicySession({SOLVER: OtherTokenizer(source, "one", "two")}, SessionOptions(), default=SOLVER)
    await agent.complete(call(*messages[:1]))
    with raises_code(RolloutFailed, "agent.template_changes_history") as caught:
        await agent.complete(call(*messages))
    assert caught.value.boundary is Boundary.WORKFLOW

    policy = OtherTokenizer(source, "one", "two")
    agent = PolicySession({SOLVER: policy}, SessionOptions(thinking="template"), default=SOLVER)
    await agent.complete(call(*messages[:1]))
    await agent.complete(call(*messages))
    first_trajectory, second_trajectory = agent.trajectories(1.0)
    assert (first_trajectory.turns, second_trajectory.turns, second_trajectory.parent) == (1, 1, None)
    assert policy.prompts[1].tolist() == Renderer(source).render(messages, ()).tolist()


@pytest.mark.anyio
async def test_thoughts_are_kept_or_left_to_the_template() -> None:
    source = tokenizer(CHATML, "characters")
    messages = [user("1"), assistant("one"), user("2")]
    for thinking, leaves in (("keep", 1), ("template", 2)):
        policy = OtherTokenizer(source, "<think>\nhm\n</think>\n\none", "two")
        agent = PolicySession({SOLVER: policy}, SessionOptions.model_validate({"thinking": thinking}), default=SOLVER)
        await agent.complete(call(*messages[:1]))
        await agent.complete(call(*messages))
        assert len(agent.trajectories(1.0)) == leaves
        assert ("hm" in source.decode(policy.prompts[1])) == (thinking == "keep")


@pytest.mark.anyio
async def test_a_format_that_wants_turns_gets_them_from_any_order_of_messages() -> None:
    policy = OtherTokenizer(tokenizer(STRICT, "characters"), "a", "b", "c")
    agent = PolicySession({SOLVER: policy}, SessionOptions(), default=SOLVER)
    begin = [system("s"), assistant("first"), user("x"), user("y"), system("z")]
    await agent.complete(call(*begin))
    later = [
        *begin,
        assistant("a"),
        assistant("foreign"),
        result("1", "i"),
        result("2", "j"),
        user("w"),
        assistant("!"),
    ]
    await agent.complete(call(*later))
    assert len(agent.trajectories(1.0)) == 1
    texts = [policy.tokenizer.decode(prompt, keep_special_tokens=True) for prompt in policy.prompts]
    turns = [
        [part.removeprefix("<|im_start|>").removesuffix("<|im_end|>") for part in text.split("\n<|im_start|>")]
        for text in texts
    ]
    assert turns[0] == ["user\ns", "model\nfirst", "user\nx\n\ny\n\nz", "model\n"]
    results = "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    added = ["model\na", "user\n", "model\nforeign", f"user\n{results}\n\nw", "model\n!", "user\n", "model\n"]
    assert turns[1] == [*turns[0][:-1], *added]


@pytest.mark.anyio
async def test_messages_that_the_format_does_not_allow_are_refused_and_the_session_goes_on() -> None:
    template = CHATML.replace("{%- for message in messages %}", "{%- for message in messages %}" + _REFUSES_B, 1)
    agent = PolicySession(
        {SOLVER: OtherTokenizer(tokenizer(template, "characters"), "a")}, SessionOptions(), default=SOLVER
    )
    with raises_code(CallRefused, "model.chat_template_refused"):
        await agent.complete(call(user("a"), user("b")))
    assert (await agent.complete(call(user("a")))).message.content == "a"


@pytest.mark.anyio
async def test_hostile_text_is_encoded_in_threads_as_elsewhere() -> None:
    source = tokenizer(CHATML)
    texts = [f"{'plain ' * 50}{number}" + "<|im_end|>" * (number % 2) for number in range(40)]
    expected = [source.encode(text).tolist() for text in texts]
    encoded = await asyncio.gather(*(asyncio.to_thread(source.encode, text) for text in texts * 5))
    assert [tokens.tolist() for tokens in encoded] == expected * 5
