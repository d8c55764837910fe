"""Chat formats of the package `renderers`, which knows those of many model families."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.answer_texts import CALL_BEGIN, CALL_END, AnswerParts, CallText, answer_parts
from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from astraflow.models.tokenizers import Message, ToolSchema
from astraflow.runtime.imports import needs_extra

if TYPE_CHECKING:
    import renderers
    from transformers import PreTrainedTokenizerBase

_QUESTION: dict[str, Any] = {"role": "user", "content": "a"}
_PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    _QUESTION,
    {"role": "assistant", "content": "b"},
    {"role": "tool", "content": "c", "tool_call_id": "d"},
    {"role": "user", "content": "e"},
]
"""Conversation with every role, whose texts spell no special token."""


class RenderedTokenizer(HuggingFaceTokenizer):
    """Tokenizer whose chat format is that of a renderer of the package. Thoughts of earlier turns stay, and
    conversations only grow."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        name: str,
        *,
        vocab_size: int,
        template_values: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        """name: of the renderer in the package. template_values: its options of the same names.

        Raises: InvalidInput when the package is not installed, or the renderer does not work with this tokenizer.
        """
        super().__init__(tokenizer, vocab_size=vocab_size, stop_tokens=())
        self._name = name
        self._renderer = _renderer(self, name, template_values or {})
        self._stop_tokens = tuple(self._renderer.get_stop_token_ids())

    @cached_property
    def has_tools(self) -> bool:
        """True."""
        return True

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), add_generation_prompt: bool = True
    ) -> Int32Array:
        """Returns the tokens of a conversation. Raises: InvalidInput for messages that the format does not allow."""
        return np.asarray(
            self._ids([_as_dict(message) for message in messages], tools, add_generation_prompt), dtype=np.int32
        )

    def encode_answer(self, text: str) -> Int32Array:
        """Returns the tokens of an answer."""
        return np.asarray(self._answer({"role": "assistant", "content": text}), dtype=np.int32)

    def answer_text(self, read: Int32Array, written: Int32Array, *, tools: Sequence[ToolSchema] = ()) -> str:
        """Returns the thought, the content and the calls that the renderer reads."""
        parsed = self._renderer.parse_response(written.tolist(), tools=_specs(tools), prompt_ids=read.tolist())
        readable = [call for call in parsed.tool_calls if call.status in ("ok", "unknown_tool") and call.name]
        others = [call.raw for call in parsed.tool_calls if call not in readable]
        return AnswerParts(
            content="\n".join(text for text in (parsed.content.strip(), *map(_as_call, others)) if text),
            thought=(parsed.reasoning_content or "").strip(),
            calls=tuple(
                CallText(name=str(call.name), arguments=_written_arguments(call.arguments)) for call in readable
            ),
        ).text

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = ()
    ) -> Int32Array:
        """Returns the tokens between a sampled answer and the next answer."""
        previous_tokens = [*read.tolist(), *written.tolist()]
        prompt, answer = read.tolist(), written.tolist()
        pending: list[dict[str, Any]] = []
        for message in messages:
            if message["role"] == "assistant":  # the package continues answers only, so this one is made one
                prompt, answer, pending = self._extended(prompt, answer, pending, tools), self._answer(message), []
            else:
                pending.append(_as_dict(message))
        return np.asarray(self._extended(prompt, answer, pending, tools)[len(previous_tokens) :], dtype=np.int32)

    def _extended(
        self, prompt: list[int], answer: list[int], messages: list[dict[str, Any]], tools: Sequence[ToolSchema]
    ) -> list[int]:
        """Returns the tokens of prompt, answer and messages, and the start of the next answer. Raises: InvalidInput."""
        extended = self._bridged(prompt, answer, messages, tools)
        if extended is None and answer[-1] in self.stop_tokens:
            # The package refuses an answer that ended within a thought; what follows it is the same for any answer.
            shorter = self._bridged(prompt, answer[-1:], messages, tools)
            extended = None if shorter is None else [*prompt, *answer, *shorter[len(prompt) + 1 :]]
        if extended is None or extended[: len(prompt) + len(answer)] != [*prompt, *answer]:
            raise InvalidInput(
                f"cannot continue the conversation: the renderer {self._name!r} does not continue this answer with "
                "these messages; send a message of the user or a tool after each of the assistant",
                code="model.renderer_refused",
            )
        return extended

    def _bridged(
        self, prompt: list[int], answer: list[int], messages: list[dict[str, Any]], tools: Sequence[ToolSchema]
    ) -> list[int] | None:
        rendered = self._renderer.bridge_to_next_turn(prompt, answer, list(messages), tools=_specs(tools))
        return None if rendered is None else list(rendered.token_ids)

    def _answer(self, message: Message) -> list[int]:
        """Returns the tokens of an assistant message that was not sampled, as an answer. Raises: InvalidInput."""
        prompt = self._ids([_QUESTION], ())
        whole = self._renderer.render_ids([_QUESTION, _as_dict(message)])
        size = len(prompt)
        if whole[:size] != prompt:
            size = next(index for index, pair in enumerate(zip(whole, prompt, strict=False)) if pair[0] != pair[1])
        ends = [index for index, token in enumerate(whole) if index >= size and token in self.stop_tokens]
        return list(whole[size : ends[-1] + 1 if ends else None])

    def _ids(
        self, messages: list[dict[str, Any]], tools: Sequence[ToolSchema], add_generation_prompt: bool = True
    ) -> list[int]:
        """Raises: InvalidInput for messages that the format does not allow."""
        try:
            return list(
                self._renderer.render_ids(messages, tools=_specs(tools), add_generation_prompt=add_generation_prompt)
            )
        except (KeyError, NotImplementedError, TypeError, ValueError) as problem:
            raise InvalidInput(
                f"cannot format the conversation: the renderer {self._name!r} refuses it ({problem}); use other roles",
                code="model.renderer_refused",
            ) from problem


def _renderer(
    tokenizer: HuggingFaceTokenizer, name: str, values: Mapping[str, bool | int | str]
) -> "renderers.Renderer":
    with needs_extra("renderers", to=f"use the renderer {name!r}"):
        import renderers
        from renderers.configs import config_from_name
    try:
        config = config_from_name(name)
        if config is None or config.name == "default":
            raise ValueError("it knows no chat format")
        config = type(config)(thinking_retention="all", **values)
        renderer = renderers.create_renderer(_TextTokenizer(tokenizer), config)
        package_renderer = renderers.create_renderer(tokenizer.pretrained, config)
        is_same = renderer.render_ids(list(_PROBE)) == package_renderer.render_ids(list(_PROBE))
    except (AssertionError, AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as problem:
        raise _unusable(name, f"{type(problem).__name__}: {problem}", "name the renderer of this model") from problem
    if not is_same:
        cause = "it writes special tokens as text, so that messages could forge turns"
        raise _unusable(name, cause, "use the chat template")
    return renderer


class _TextTokenizer:
    """Tokenizer for the package, for which text that spells a special token stays text."""

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        self.name_or_path: str = tokenizer.pretrained.name_or_path
        self.unk_token_id: int | None = tokenizer.pretrained.unk_token_id
        self.eos_token_id: int | None = tokenizer.pretrained.eos_token_id

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """Returns the ids of plain text."""
        ids: list[int] = self._tokenizer.encode(text).tolist()
        return ids

    def decode(self, token_ids: Any, *args: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """Returns the text of the ids."""
        ids = np.asarray(token_ids, dtype=np.int32)
        return self._tokenizer.decode(ids, keep_special_tokens=not skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Returns the ids of tokens by their names."""
        return self._tokenizer.pretrained.convert_tokens_to_ids(tokens)


def _as_dict(message: Message) -> dict[str, Any]:
    if message["role"] != "assistant":
        return dict(message)
    parts = answer_parts(message["content"])
    calls = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.loads(call.arguments)},
        }
        for index, call in enumerate(parts.calls)
    ]
    return {
        "role": "assistant",
        "content": parts.content,
        **({"reasoning_content": parts.thought} if parts.thought else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _as_call(raw: str) -> str:
    """Returns the text of an unreadable call between tags."""
    return raw if CALL_BEGIN in raw else f"{CALL_BEGIN}{raw}{CALL_END}"


def _specs(tools: Sequence[ToolSchema]) -> list[Any] | None:
    return [dict(tool) for tool in tools] or None


def _written_arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _unusable(name: str, cause: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"cannot use the renderer {name!r}: {cause}; {remedy}", code="model.unusable_renderer")
