"""Tokenizers of Hugging Face with the chat template of their model."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.answer_texts import CALL_BEGIN, MARKS, THOUGHT_BEGIN
from astraflow.models.control_tokens import ControlTokens, Escapes
from astraflow.models.tokenizers import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE_ANSWER, _PROBE_RESULT = "AnswerProbe", "ResultProbe"
_QUESTION: Message = {"role": "user", "content": "QuestionProbe"}
_NEXT_QUESTION: Message = {"role": "user", "content": _PROBE_RESULT}
PROBE: Message = {"role": "assistant", "content": _PROBE_ANSWER}
"""Answer that stands for the sampled one in a rendered conversation."""
PROBE_ARGUMENTS = {"probe": _PROBE_ANSWER}
"""Arguments of a call that stands for the sampled one."""
_PROBE_END = re.compile(_PROBE_ANSWER + r'(?:"\s*\})?')
_THOUGHT_MARKS = re.compile(r"(?:\s|</?[a-z_:]*think>|\[/?THINK\])*")
_THOUGHT_MARK_TOKENS = 8
"""Last tokens of a prompt in which the begin of a thought is searched."""


class HuggingFaceTokenizer:
    """Adapter for a Hugging Face tokenizer that has a chat template. Several threads may use it at once.

    Conversations only grow: a template that drops thoughts of earlier turns formats each message where it comes, and
    the thoughts stay in the tokens that the policy reads.
    """

    visible_tokens: ClassVar[frozenset[str]] = MARKS
    """Special tokens that are part of a text, because they say what it is."""
    call_marks: ClassVar[tuple[str, ...]] = (CALL_BEGIN, '"arguments"')
    """Texts with which a chat template describes calls in a form that `answer_text` reads."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        vocab_size: int,
        stop_tokens: tuple[int, ...],
        template_values: Mapping[str, bool | int | str] | None = None,
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
    def pretrained(self) -> "PreTrainedTokenizerBase":
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
        """Returns the token ids of a conversation, formatted by the tokenizer's own chat template.

        Where the template has no system role, the system message begins the first message of the user; where it
        wants the user and the assistant in turn, neighbours of the user are one message, and between two of the
        assistant the user says nothing.
        """
        known = self._with_system(messages)
        size = int(bool(known) and known[0]["role"] == "system")
        turns = self._in_turn(known[size:], continues=add_generation_prompt)
        formatted = self.formatted([*known[:size], *turns])
        escapes = self._control.escapes(formatted, tools)
        text = self._render(formatted, tools=tools, add_generation_prompt=add_generation_prompt, escapes=escapes)
        return self._encoded(text, escapes)

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the token ids of the text and of the token that ends a message in the chat template."""
        end = self._end_token if self._end_token in self.stop_tokens else self.stop_tokens[0]
        return np.append(self.encode(text), np.int32(end)).astype(np.int32)

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the text of an answer; one that the chat template began with a thought, begins with its mark."""
        begin = self.decode(read[-_THOUGHT_MARK_TOKENS:], keep_special_tokens=True).rstrip()
        text = self.decode(written)
        is_thought = begin.endswith(THOUGHT_BEGIN) and not text.lstrip().startswith(THOUGHT_BEGIN)
        return f"{THOUGHT_BEGIN}\n{text}" if is_thought else text

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = ()
    ) -> Int32Array:
        """Returns the token ids that the chat template puts between two answers."""
        if self.history_change:
            raise InvalidInput(
                f"cannot continue the conversation: the chat template {self.history_change}, so that the policy would "
                "be trained on tokens that it never sees again; set `renderer` of the model to that of its family in "
                "the package `renderers`, use a template that only appends, or a workflow with one turn",
                code="model.template_changes_history",
            )
        probe, following = self.continued(written, messages)
        formatted = self.formatted(self._in_turn(following, continues=True))
        escapes = self._control.escapes(formatted)
        text = self._render([_QUESTION, probe, *formatted], escapes=escapes)
        return self._without_end(self._encoded(_PROBE_END.split(text, maxsplit=1)[1], escapes), written)

    @cached_property
    def has_tools(self) -> bool:
        """True if the chat template describes tools and a form of calls that `answer_text` reads, and shows results."""
        function = {"name": _PROBE_ANSWER, "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            text = self._render([_QUESTION], tools=[{"type": "function", "function": function}])
            followed = self._render([_QUESTION, PROBE, _NEXT_QUESTION])
            result = self._render([_QUESTION, PROBE, {"role": "tool", "content": _PROBE_RESULT}])
        except InvalidInput:
            return False
        goes_on = _PROBE_RESULT in result and result.endswith(followed.rpartition(_PROBE_RESULT)[2])
        return _PROBE_ANSWER in text and all(mark in text for mark in self.call_marks) and goes_on

    def encode(self, text: str) -> Int32Array:
        """Returns the token ids of plain text, without special tokens."""
        return self._control.encode(text) if self._control.spells(text) else self._encoded(text, None)

    def decode(self, ids: Int32Array, *, keep_special_tokens: bool = False) -> str:
        """Returns the text of the ids as the model wrote it, whatever the tokenizer's configuration says about
        spaces."""
        shown = [token for token in ids.tolist() if keep_special_tokens or token not in self._hidden_tokens]
        return str(self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def formatted(self, messages: Sequence[Message]) -> Sequence[Mapping[str, Any]]:
        """Returns messages as the chat template expects them."""
        return messages

    def continued(
        self, written: Int32Array, messages: Sequence[Message]
    ) -> tuple[Mapping[str, Any], Sequence[Message]]:
        """Returns the answer that stands for the sampled one, as the chat template expects it, and the messages that
        follow it."""
        return PROBE, messages

    @cached_property
    def history_change(self) -> str:
        """Reason for which the template cannot continue an answer; empty: each conversation is, thoughts aside, a
        prefix of those that continue it."""
        first = self._render([_QUESTION])
        second = self._render([_QUESTION, PROBE, _NEXT_QUESTION])
        third = self._render([_QUESTION, PROBE, _NEXT_QUESTION, PROBE, _NEXT_QUESTION])
        parts = third.split(_PROBE_ANSWER)
        if len(parts) != 3 or not second.startswith(parts[0] + _PROBE_ANSWER):
            return "drops, repeats or moves earlier answers"
        before, middle, end = parts
        following = second[len(before + _PROBE_ANSWER) :]
        if before.startswith(first) and not _THOUGHT_MARKS.fullmatch(before[len(first) :]):
            return f"begins answers with {before[len(first) :]!r}, which the policy must write itself"
        if not _is_kept(first, before) or not _is_kept(following, middle) or end != following:
            return "changes earlier turns once others follow"
        return ""

    @cached_property
    def _has_system_role(self) -> bool:
        try:
            return _PROBE_RESULT in self._render([{"role": "system", "content": _PROBE_RESULT}, _QUESTION])
        except InvalidInput:
            return False

    @cached_property
    def _hidden_tokens(self) -> frozenset[int]:
        """Special tokens that are no part of a text."""
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset(index for index, token in added if token.special and str(token) not in self.visible_tokens)

    @cached_property
    def _end_token(self) -> int | None:
        """Control token with which the chat template ends the last answer of a conversation; None without one."""
        text = self._render([_QUESTION, PROBE], add_generation_prompt=False)
        closing = self._encoded(_PROBE_END.split(text, maxsplit=1)[1], None)
        return next((int(token) for token in closing if int(token) in self._control.ids), None)

    @cached_property
    def _control(self) -> ControlTokens:
        """Special tokens, and added tokens with which the chat template separates turns."""
        try:
            turns = self._render([_QUESTION, PROBE, _QUESTION], add_generation_prompt=False)
        except InvalidInput:
            turns = ""
        added = {str(token): (index, token) for index, token in self._tokenizer.added_tokens_decoder.items()}
        ids = {
            text: index
            for text, (index, token) in added.items()
            if len(text) > 1 and text not in MARKS and (token.special or text in turns)
        }
        return ControlTokens(self._tokenizer.backend_tokenizer, ids)

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Returns the messages; without a system role, the system message is the begin of the first question."""
        if not messages or messages[0]["role"] != "system" or self._has_system_role:
            return messages
        system, *rest = messages
        if not rest or rest[0]["role"] != "user":
            return [{**system, "role": "user"}, *rest]
        return [{**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]

    @cached_property
    def _takes_turns(self) -> bool:
        """True if the template refuses two messages of the user in a row."""
        try:
            self._render([_QUESTION, _QUESTION])
        except InvalidInput:
            return True
        return False

    def _in_turn(self, messages: Sequence[Message], *, continues: bool) -> Sequence[Message]:
        """Returns messages of the user and the assistant in turn, beginning with the user, where the template wants
        that. continues: an answer follows."""
        if not self._takes_turns or self.has_tools:  # which is in turn with results, in the template's own way
            return messages
        turns: list[Message] = []
        for message in (*messages, *([PROBE] if continues else [])):
            is_answer = message["role"] == "assistant"
            follows_question = bool(turns) and turns[-1]["role"] == "user"
            if is_answer and not follows_question:
                turns.append({"role": "user", "content": ""})
            if follows_question and not is_answer:
                turns[-1] = {"role": "user", "content": f"{turns[-1]['content']}\n\n{message['content']}"}
            else:
                turns.append(message if is_answer else {"role": "user", "content": message["content"]})
        return turns[:-1] if continues else turns

    def _without_end(self, tokens: Int32Array, written: Int32Array) -> Int32Array:
        """Returns the tokens after an answer; without those that end it if the policy has ended it."""
        last = int(written[-1]) if len(written) else -1
        controls = np.flatnonzero(np.isin(tokens, list(self._control.ids)))
        if last not in self.stop_tokens or not len(controls):
            return tokens
        first = int(controls[0])
        is_end = int(tokens[first]) == last or self._end_token == last
        return tokens[first + 1 :] if is_end and not self.decode(tokens[:first]).strip() else tokens

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
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
                "instance a user message after each of the assistant",
                code="model.chat_template_refused",
            ) from problem
        return str(text)

    def _encoded(self, text: str, escapes: Escapes | None) -> Int32Array:
        """Returns the ids of text from the chat template. Only the template's own special tokens become special."""
        if escapes is not None:
            return self._control.encode(text, escapes)
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        return np.asarray(ids, dtype=np.int32)


def _is_kept(prompt: str, history: str) -> bool:
    """Returns whether the begin of an answer is the same in its prompt and in the history, but for marks of a thought
    at its end."""
    return prompt.startswith(history) or bool(
        history.startswith(prompt) and _THOUGHT_MARKS.fullmatch(history[len(prompt) :])
    )
