"""Calls between tags, as Qwen3.5 writes them, become calls as JSON with the types of the tools, and back."""

import json
from typing import Any

import numpy as np
import pytest

from astraflow.models.answer_texts import answer_parts
from tests.fakes.model_templates import family_tokenizer

EMPTY = np.empty(0, dtype=np.int32)
PROPERTIES = {
    "count": {"type": "integer"},
    "text": {"type": "string"},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "items": {"type": "array"},
    "any": {},
}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": PROPERTIES}}}


def read(text: str) -> str:
    tokenizer = family_tokenizer("qwen3.5")
    return tokenizer.answer_text(EMPTY, tokenizer.encode(text), tools=(FIND,))


def tagged(*parameters: tuple[str, str], name: str = "find") -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "3", 3),
        ("count", "three", "three"),
        ("text", "3", "3"),
        ("text", "  two\n\nlines ", "  two\n\nlines "),
        ("limit", "null", None),
        ("name", "null", "null"),
        ("items", '["a", 1]', ["a", 1]),
        ("any", "1", "1"),
        ("other", "1", "1"),
    ],
)
def test_values_have_the_types_of_the_tool(key: str, text: str, value: Any) -> None:
    (call,) = answer_parts(read(tagged((key, text)))).calls
    assert (call.name, json.loads(call.arguments)) == ("find", {key: value})


def test_several_calls_and_calls_without_parameters_are_read() -> None:
    parts = answer_parts(read(f"So {tagged(name='first')}\n{tagged(('text', 'b'))} done"))
    assert (parts.content, [call.name for call in parts.calls]) == ("So \n done", ["first", "find"])


@pytest.mark.parametrize(
    "body",
    [
        "<function=find>",
        "<function=find>\n<parameter=text>\na\n</function>",
        "<function=find> no </function>",
        "<function=find>\n<parameter=text>\na\n</parameter>\nno\n</function>",
        "<function=find>\n<parameter=text>\na\n</parameter>\n<parameter=text>\nb\n</parameter>\n</function>",
        '{"name": "find"}',
    ],
)
def test_a_call_with_a_missing_tag_or_other_text_stays_as_it_is(body: str) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    assert read(text) == text


def test_an_answer_of_a_data_set_has_its_calls_between_tags() -> None:
    tokenizer = family_tokenizer("qwen3.5")
    text = (
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "find", "arguments": {"count": 3, "text": "a"}}\n</tool_call>'
    )
    ids = tokenizer.encode_answer(text)
    assert tokenizer.decode(ids).endswith(tagged(("count", "3"), ("text", "a")))
    assert answer_parts(tokenizer.answer_text(EMPTY, ids, tools=(FIND,))) == answer_parts(text)
