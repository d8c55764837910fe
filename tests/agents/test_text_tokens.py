import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.agents.calls import AgentMessage, Role
from astraflow.agents.text_tokens import TextTokenizer
from astraflow.contract.errors import InvalidInput

TOKENIZER = TextTokenizer()
texts = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(["<|end|>\n", "<|message|>user\n", "\x00"])
roles = st.sampled_from(["system", "user", "tool", "assistant"])


@pytest.mark.long
@given(st.lists(st.tuples(roles, texts), min_size=1, max_size=5))
def test_messages_are_read_back_exactly_and_cannot_forge_others(messages: list[tuple[str, str]]) -> None:
    prompt = TOKENIZER.encode_chat([{"role": role, "content": content} for role, content in messages])
    assert TOKENIZER.messages(prompt) == tuple(AgentMessage(role=Role(role), content=text) for role, text in messages)


@given(texts)
def test_a_text_is_decoded_exactly_and_has_a_token_for_three_bytes(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert len(ids) == -(-len(text.encode()) // 3)
    assert not set(ids.tolist()) & set(TOKENIZER.stop_tokens)


def test_an_answer_and_its_continuation_are_the_conversation_with_both() -> None:
    first = [{"role": "user", "content": "1+1="}]
    result = [{"role": "user", "content": "again"}]
    prompt, answer = TOKENIZER.encode_chat(first), TOKENIZER.encode("2")
    parts = [prompt, answer, TOKENIZER.bridge(prompt, answer, result)]
    joined = [*parts[0].tolist(), *parts[1].tolist(), *parts[2].tolist()]
    assert joined == TOKENIZER.encode_chat([*first, {"role": "assistant", "content": "2"}, *result]).tolist()


@pytest.mark.parametrize("text", ["", "plain text", "user\nhello"])
def test_plain_text_is_no_conversation(text: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        TOKENIZER.messages(TOKENIZER.encode(text))
    assert refusal.value.code == "upstream.no_conversation"


def test_tools_have_no_place_in_the_format() -> None:
    assert not TOKENIZER.has_tools
    with pytest.raises(InvalidInput):
        TOKENIZER.encode_chat([{"role": "user", "content": "x"}], tools=[{"type": "function"}])
