"""Tokenizers: the interface, the character tokenizer of the tiny model, and the adapter for Hugging Face tokenizers."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.control_tokens import ControlTokens, Escapes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAR_VOCAB_SIZE = 128
"""Printable characters and special tokens, padded to a power of two."""

_SPECIALS = ("<|pad|>", "<|unknown|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


Message = Mapping[str, str]
"""A chat message: `{"role": ..., "content": ...}`."""
ToolSchema = Mapping[str, Any]
"""A function that a model may call: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


class ChatTokenizer(Protocol):
    """Tokenizer with a chat format, as workflows use it."""

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> Int32Array:
        """Returns the token ids of a conversation in the model's chat format. Text of a message or of a tool that
        spells a special token stays text, keys of tools included, so that it cannot forge a turn.

        tools: described to the model, if `describes_tools`. add_generation_prompt: append the start of the assistant's
        turn. Raises: InvalidInput for messages that the chat format does not allow.
        """

    def encode_continuation(self, messages: Sequence[Message]) -> Int32Array:
        """Returns the token ids between the text of an answer and the next answer: the end of the assistant's turn,
        `messages`, and the start of the assistant's next turn.

        Appended to a conversation and its answer, they give the conversation as `encode_chat` encodes it.
        Raises: InvalidInput for messages that the chat format does not allow, and for a format that changes earlier
        turns once others follow.
        """

    def describes_tools(self, marker: str) -> bool:
        """Returns whether the chat format describes tools, and calls that contain `marker`, and has a role `tool` for
        their results."""

    def encode(self, text: str) -> Int32Array:
        """Returns the token ids of plain text, without special tokens."""

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids; special tokens are omitted by default."""


class HuggingFaceTokenizer:
    """Adapter for a Hugging Face tokenizer that has a chat template. Several threads may use it at once."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        vocab_size: int,
        stop_tokens: tuple[int, ...],
        template_values: Mapping[str, bool] | None = None,
    ) -> None:
        """vocab_size: vocabulary size of the model, whose embedding may be padded beyond the tokenizer's own count.
        template_values: variables of the chat template, such as `enable_thinking`."""
        if not tokenizer.chat_template:
            raise InvalidInput(
                f"cannot use the tokenizer of {tokenizer.name_or_path!r}: it has no chat template; use an instruct "
                "model",
                code="model.no_chat_template",
            )
        if not tokenizer.is_fast:
            raise InvalidInput(
                f"cannot use the tokenizer of {tokenizer.name_or_path!r}: it has no tokenizer.json, without which a "
                "text could forge special tokens; use a model with one",
                code="model.slow_tokenizer",
            )
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_tokens = stop_tokens
        self._template_values: dict[str, Any] = dict(template_values or {})

    @property
    def pretrained(self) -> PreTrainedTokenizerBase:
        """The tokenizer itself, for libraries that need it. Do not change it."""
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Upper bound (exclusive) of the token ids."""
        return self._vocab_size

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the model ends its answer."""
        return self._stop_tokens

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> Int32Array:
        """Returns the token ids of a conversation, formatted by the tokenizer's own chat template."""
        escapes = self._control.escapes(messages, tools)
        text = self._render(messages, tools=tools, add_generation_prompt=add_generation_prompt, escapes=escapes)
        return self._encoded(text, escapes)

    def encode_continuation(self, messages: Sequence[Message]) -> Int32Array:
        """Returns the token ids that the chat template puts between two answers."""
        if not self._keeps_history:
            raise InvalidInput(
                "cannot continue the conversation: the chat template of the tokenizer changes earlier turns once others"
                " follow, so that the policy would be trained on tokens that it never sees again; use a template that "
                "only appends, or a workflow with one turn",
                code="model.template_changes_history",
            )
        escapes = self._control.escapes(messages)
        text = self._render([*_PROBE_TURN, *messages], escapes=escapes)
        return self._encoded(text.partition(_PROBE_ANSWER)[2], escapes)

    def describes_tools(self, marker: str) -> bool:
        """Returns whether the chat template describes tools and calls with this marker, and shows their results."""
        function = {"name": _PROBE_ANSWER, "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            text = self._render(_PROBE_TURN[:1], tools=[{"type": "function", "function": function}])
            result = self._render([*_PROBE_TURN, {"role": "tool", "content": _PROBE_RESULT}])
        except InvalidInput:
            return False
        return _PROBE_ANSWER in text and marker in text and _PROBE_RESULT in result

    def encode(self, text: str) -> Int32Array:
        """Returns the token ids of plain text, without special tokens."""
        return self._control.encode(text) if self._control.spells(text) else self._encoded(text, None)

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids as the model wrote it, whatever the tokenizer's configuration says about
        spaces."""
        text = self._tokenizer.decode(
            ids.tolist(), skip_special_tokens=not keep_special_tokens, clean_up_tokenization_spaces=False
        )
        return str(text)

    @cached_property
    def _control(self) -> ControlTokens:
        """Special tokens, and added tokens with which the chat template separates turns."""
        try:
            turns = self._render([*_PROBE_TURN, *_PROBE_TURN[:1]], add_generation_prompt=False)
        except InvalidInput:
            turns = ""
        added = {str(token): (index, token) for index, token in self._tokenizer.added_tokens_decoder.items()}
        ids = {
            text: index for text, (index, token) in added.items() if len(text) > 1 and (token.special or text in turns)
        }
        return ControlTokens(self._tokenizer.backend_tokenizer, ids)

    @cached_property
    def _keeps_history(self) -> bool:
        """True if each conversation is a prefix of those that continue it."""
        first = self._render(_PROBE_TURN[:1])
        question: Message = {"role": "user", "content": _PROBE_RESULT}
        second = self._render([*_PROBE_TURN, question])
        third = self._render([*_PROBE_TURN, question, *_PROBE_TURN[1:], question])
        return second.startswith(first + _PROBE_ANSWER) and third.startswith(second + _PROBE_ANSWER)

    def _render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
        add_generation_prompt: bool = True,
        escapes: Escapes | None = None,
    ) -> str:
        from jinja2 import TemplateError

        escaped = escapes.escaped if escapes else dict
        try:
            text = self._tokenizer.apply_chat_template(
                [escaped(message) for message in messages],
                tools=[escaped(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self._template_values,
            )
        except TemplateError as problem:
            raise InvalidInput(
                f"cannot format the conversation: the chat template refuses it ({problem}); use other roles, for "
                "instance no system message",
                code="model.chat_template_refused",
            ) from problem
        return str(text)

    def _encoded(self, text: str, escapes: Escapes | None) -> Int32Array:
        """Returns the ids of text from the chat template. Only the template's own special tokens become special."""
        if escapes is not None:
            return self._control.encode(text, escapes)
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        return np.asarray(ids, dtype=np.int32)


_PROBE_ANSWER, _PROBE_RESULT = "AnswerProbe", "ResultProbe"
_PROBE_TURN: tuple[Message, ...] = (
    {"role": "user", "content": "QuestionProbe"},
    {"role": "assistant", "content": _PROBE_ANSWER},
)


def char_vocab_size(words: Sequence[str] = ()) -> int:
    """Returns the vocabulary size of `char_tokenizer(words)`: padded to a multiple of 64."""
    return max(CHAR_VOCAB_SIZE, -(-(len(_SPECIALS) + len(string.printable) + len(words)) // 64) * 64)


def char_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Returns a ChatML tokenizer with one token per printable character, so that a tiny model learns within seconds.

    words: texts with a token of their own, of at least two characters; the longest that matches wins.
    It is an ordinary fast tokenizer: saved with `save_pretrained`, it loads in transformers, vLLM and SGLang.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate((*_SPECIALS, *string.printable, *words))}
    for index in range(len(vocab), char_vocab_size(words)):
        vocab[f"<|unused_{index}|>"] = index
    pieces = [*map(re.escape, sorted(words, key=len, reverse=True)), r"[\s\S]"]
    core = Tokenizer(WordLevel(vocab, unk_token=_SPECIALS[1]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(pieces)), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=_SPECIALS[0],
        unk_token=_SPECIALS[1],
        eos_token=_SPECIALS[3],
        additional_special_tokens=[_SPECIALS[2]],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHATML
    return tokenizer
