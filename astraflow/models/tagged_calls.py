"""Calls between tags, as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them:
`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.answer_texts import CALL_BEGIN, CALL_END, AnswerParts, CallText, answer_parts
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import Message, ToolSchema

_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"
_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,64})>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,64})>\n?")


def has_tagged_calls(template: str) -> bool:
    """Returns whether a chat template describes calls of this form."""
    return "<function=" in template and "<parameter=" in template


class TaggedCallsTokenizer(HuggingFaceTokenizer):
    """Tokenizer of a model that writes calls between tags."""

    call_marks = (CALL_BEGIN, "<function=")

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the token ids of an answer whose calls are between tags."""
        return super().encode_answer(_tagged(text))

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the text of an answer; the types of a call's arguments are those of the tools."""
        return _with_json_calls(super().answer_text(read, written), tools)

    def formatted(self, messages: Sequence[Message]) -> Sequence[Mapping[str, Any]]:
        """Returns the messages; answers with calls between tags."""
        return [
            {**message, "content": _tagged(message["content"])} if message["role"] == "assistant" else message
            for message in messages
        ]


def _with_json_calls(text: str, tools: Sequence[ToolSchema]) -> str:
    """Returns the text; readable calls between tags as JSON."""
    pieces: list[str] = []
    end = 0
    while (begin := text.find(CALL_BEGIN, end)) >= 0 and (close := text.find(CALL_END, begin)) >= 0:
        call = _read(text[begin + len(CALL_BEGIN) : close], tools)
        pieces += [text[end:begin], text[begin : close + len(CALL_END)] if call is None else call.text]
        end = close + len(CALL_END)
    return "".join([*pieces, text[end:]])


def _read(body: str, tools: Sequence[ToolSchema]) -> CallText | None:
    """Returns a call by the text between its outer tags; None where a tag is missing or has text beside it."""
    function = _FUNCTION.match(body)
    if function is None:
        return None
    properties = _properties(function[1], tools)
    arguments: dict[str, Any] = {}
    position = function.end()
    while parameter := _PARAMETER.match(body, position):
        end = body.find(_PARAMETER_END, parameter.end())
        if end < 0 or parameter[1] in arguments:
            return None
        value = body[parameter.end() : end].removesuffix("\n")
        arguments[parameter[1]] = _value(value, properties.get(parameter[1]))
        position = end + len(_PARAMETER_END)
        position += len(body[position:]) - len(body[position:].lstrip())
    if body[position:].strip() != _FUNCTION_END:
        return None
    return CallText(name=function[1], arguments=json.dumps(arguments, ensure_ascii=False))


def _properties(name: str, tools: Sequence[ToolSchema]) -> Mapping[str, Any]:
    functions = (tool.get("function", {}) for tool in tools)
    parameters = next((function.get("parameters") or {} for function in functions if function.get("name") == name), {})
    properties = parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _value(text: str, schema: object) -> Any:
    """Returns a value of the schema's type: text unless the schema has another type and the text is JSON."""
    if not isinstance(schema, Mapping):
        return text
    variants = [schema, *(variant for variant in schema.get("anyOf", ()) if isinstance(variant, Mapping))]
    types = {variant["type"] for variant in variants if isinstance(variant.get("type"), str)}
    if "string" in types or not types:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _tagged(text: str) -> str:
    """Returns an answer's text with its calls between tags."""
    parts = answer_parts(text)
    if not parts.calls:
        return text
    calls = [_written(call) for call in parts.calls]
    return "\n".join([AnswerParts(content=parts.content, thought=parts.thought).text, *calls]).lstrip("\n")


def _written(call: CallText) -> str:
    lines = [CALL_BEGIN, f"<function={call.name}>"]
    for name, value in json.loads(call.arguments).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"<parameter={name}>", text, _PARAMETER_END]
    return "\n".join([*lines, _FUNCTION_END, CALL_END])
