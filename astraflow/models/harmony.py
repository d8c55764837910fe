"""The chat format harmony of GPT-OSS: an answer is one message or several, each in a channel, and its author writes
the headers."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.answer_texts import MARKS, AnswerParts, CallText, answer_parts
from astraflow.models.huggingface_tokenizers import PROBE, PROBE_ARGUMENTS, HuggingFaceTokenizer
from astraflow.models.tokenizers import Message, ToolSchema

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _RETURN, _CALL = "<|end|>", "<|return|>", "<|call|>"
_HEADER_TOKENS = frozenset({_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END})
_ENDS = re.compile("|".join(map(re.escape, (_END, _RETURN, _CALL))))
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_CONTROL = re.compile(r"<\|[a-z_]+\|>")


def is_harmony(template: str) -> bool:
    """Returns whether a chat template is of this format."""
    return all(token in template for token in (_CHANNEL, _MESSAGE, _CALL))


class HarmonyTokenizer(HuggingFaceTokenizer):
    """Tokenizer with the chat template of GPT-OSS.

    Its template drops earlier thoughts and writes `<|end|>` for `<|return|>` in earlier turns. Here both stay as the
    policy wrote them, and everything else is the template's.
    """

    visible_tokens = MARKS | _HEADER_TOKENS

    @cached_property
    def has_tools(self) -> bool:
        """True."""
        return True

    @cached_property
    def history_change(self) -> str:
        """Empty: what the template changes in earlier turns stays as the policy wrote it."""
        return ""

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the token ids of an answer with its channels."""
        question: Message = {"role": "user", "content": ""}
        parts = answer_parts(text)
        messages = list(_messages({"role": "assistant", "content": text}))
        begin = self._render([question])
        escapes = self._control.escapes(messages)
        whole = self._render([question, *messages], add_generation_prompt=False, escapes=escapes)
        ids = self._encoded(whole[len(begin) :], escapes)
        return ids if parts.calls or int(ids[-1]) in self.stop_tokens else super().encode_answer(text)

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the thought, the content and the calls of an answer by its channels."""
        return _parts(self.decode(written, keep_special_tokens=True)).text

    def formatted(self, messages: Sequence[Message]) -> Sequence[Mapping[str, Any]]:
        """Returns the messages; answers with fields for thought and calls."""
        return [part for message in messages for part in _messages(message)]

    def continued(
        self, written: Int32Array, messages: Sequence[Message]
    ) -> tuple[Mapping[str, Any], Sequence[Message]]:
        """Returns an answer with a call of the function that was called, which the headers of results name."""
        names = _RECIPIENT.findall(self.decode(written, keep_special_tokens=True))
        if names:
            return _call(names[-1], PROBE_ARGUMENTS), messages
        return PROBE, [{**message, "role": "user"} if message["role"] == "tool" else message for message in messages]


def _parts(written: str) -> AnswerParts:
    """Returns the parts of an answer, which begins after `<|start|>assistant`."""
    thoughts, contents, calls = list[str](), list[str](), list[CallText]()
    for message in written.split(_START):
        header, is_message, body = message.partition(_MESSAGE)
        text = _ENDS.split(body if is_message else header, maxsplit=1)[0]
        recipient = _RECIPIENT.search(header) if is_message else None
        if recipient is not None:
            calls.append(CallText(name=recipient[1], arguments=text.strip()))
        elif is_message and f"{_CHANNEL}analysis" in header:
            thoughts.append(text)
        else:
            contents.append(text if is_message else _CONTROL.sub("", text))
    return AnswerParts(content="\n".join(contents).strip(), thought="\n".join(thoughts).strip(), calls=tuple(calls))


def _messages(message: Message) -> Iterator[Mapping[str, Any]]:
    """Yields a message as the template expects it: an answer with several calls as several answers."""
    if message["role"] != "assistant":
        yield message
        return
    parts = answer_parts(message["content"])
    if not parts.calls:
        yield {"role": "assistant", "content": parts.content, **({"thinking": parts.thought} if parts.thought else {})}
    thinking = "\n".join(text for text in (parts.thought, parts.content) if text)
    for index, call in enumerate(parts.calls):
        yield {
            **_call(call.name, json.loads(call.arguments)),
            **({"thinking": thinking} if thinking and not index else {}),
        }


def _call(name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": dict(arguments)}}],
    }
