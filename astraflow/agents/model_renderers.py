"""Renderers of the package `renderers`, which know the chat formats of many model families."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from astraflow.agents.calls import AgentMessage, FunctionCall, Role
from astraflow.agents.renderers import ParsedReply, Renderer, TemplateRenderer
from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ChatTokenizer, HuggingFaceTokenizer, ToolSchema
from astraflow.runtime.imports import needs_extra

if TYPE_CHECKING:
    import renderers

_QUESTION: dict[str, Any] = {"role": "user", "content": "a"}
_PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    _QUESTION,
    {"role": "assistant", "content": "b"},
    {"role": "tool", "content": "c", "tool_call_id": "d"},
    {"role": "user", "content": "e"},
]
"""Conversation with every role, whose texts spell no special token."""


def renderer_of(tokenizer: ChatTokenizer, name: str) -> Renderer:
    """Returns the renderer of a tokenizer. name: in the package `renderers`; empty: the tokenizer's chat template.

    Raises: InvalidInput when the package is not installed, or the renderer does not work with this tokenizer.
    """
    if not name:
        return TemplateRenderer(tokenizer)
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise _unusable(name, "the policy has no tokenizer of Hugging Face", "use its chat template")
    return _package_renderer(tokenizer, name)


@lru_cache(maxsize=16)
def _package_renderer(tokenizer: HuggingFaceTokenizer, name: str) -> "PackageRenderer":
    with needs_extra("renderers", to=f"use the renderer {name!r}"):
        import renderers
        from renderers.configs import config_from_name
    try:
        config = config_from_name(name)
        if config is None or config.name == "default":
            raise ValueError("it knows no chat format")
        config = type(config)(thinking_retention="all")
        renderer = renderers.create_renderer(_TextTokenizer(tokenizer), config)
        package_renderer = renderers.create_renderer(tokenizer.pretrained, config)
        is_same = renderer.render_ids(list(_PROBE)) == package_renderer.render_ids(list(_PROBE))
    except (AssertionError, AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as problem:
        raise _unusable(name, f"{type(problem).__name__}: {problem}", "name the renderer of this model") from problem
    if not is_same:
        cause = "it writes special tokens as text, so that messages could forge turns"
        raise _unusable(name, cause, "use the chat template")
    return PackageRenderer(renderer, name)


class PackageRenderer:
    """Adapter for a renderer of the package. Thoughts of earlier turns stay, and conversations only grow."""

    def __init__(self, renderer: "renderers.Renderer", name: str) -> None:
        self._renderer = renderer
        self._name = name

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids with which the policy ends a message."""
        return tuple(self._renderer.get_stop_token_ids())

    @property
    def can_bridge(self) -> bool:
        """True."""
        return True

    def render(self, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]) -> Int32Array:
        """Returns the tokens of a whole conversation and of the start of the next answer."""
        return np.asarray(self._ids([_as_dict(message) for message in messages], tools), dtype=np.int32)

    def bridge(
        self, read: Int32Array, written: Int32Array, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]
    ) -> Int32Array:
        """Returns the tokens between a sampled answer and the next answer."""
        previous_tokens = [*read.tolist(), *written.tolist()]
        prompt, answer = read.tolist(), written.tolist()
        pending: list[dict[str, Any]] = []
        for message in messages:
            if message.role is Role.ASSISTANT:  # the package continues answers only, so this one is made one
                prompt, answer, pending = self._extended(prompt, answer, pending, tools), self._answer(message), []
            else:
                pending.append(_as_dict(message))
        return np.asarray(self._extended(prompt, answer, pending, tools)[len(previous_tokens) :], dtype=np.int32)

    def parse(self, read: Int32Array, written: Int32Array, tools: Sequence[ToolSchema]) -> ParsedReply:
        """Returns the message that a policy wrote."""
        parsed = self._renderer.parse_response(written.tolist(), tools=_specs(tools), prompt_ids=read.tolist())
        readable = [call for call in parsed.tool_calls if tools and call.status in ("ok", "unknown_tool") and call.name]
        others = [call.raw for call in parsed.tool_calls if call not in readable]
        message = AgentMessage(
            role=Role.ASSISTANT,
            content="\n".join(text for text in (parsed.content.strip(), *others) if text),
            reasoning=(parsed.reasoning_content or "").strip() or None,
            function_calls=tuple(
                FunctionCall(id=call.id or "", name=str(call.name), arguments=_written_arguments(call.arguments))
                for call in readable
            ),
        )
        return ParsedReply(message=message, is_malformed=bool(tools and others))

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
                code="agent.renderer_refused",
            )
        return extended

    def _bridged(
        self, prompt: list[int], answer: list[int], messages: list[dict[str, Any]], tools: Sequence[ToolSchema]
    ) -> list[int] | None:
        rendered = self._renderer.bridge_to_next_turn(prompt, answer, list(messages), tools=_specs(tools))
        return None if rendered is None else list(rendered.token_ids)

    def _answer(self, message: AgentMessage) -> list[int]:
        """Returns the tokens of an assistant message that was not sampled, as an answer. Raises: InvalidInput."""
        prompt = self._ids([_QUESTION], ())
        whole = self._renderer.render_ids([_QUESTION, _as_dict(message)])
        size = len(prompt)
        if whole[:size] != prompt:
            size = next(index for index, pair in enumerate(zip(whole, prompt, strict=False)) if pair[0] != pair[1])
        return list(whole[size:])

    def _ids(self, messages: list[dict[str, Any]], tools: Sequence[ToolSchema]) -> list[int]:
        """Raises: InvalidInput for messages that the format does not allow."""
        try:
            return list(self._renderer.render_ids(messages, tools=_specs(tools), add_generation_prompt=True))
        except (KeyError, NotImplementedError, TypeError, ValueError) as problem:
            raise InvalidInput(
                f"cannot format the conversation: the renderer {self._name!r} refuses it ({problem}); use other roles",
                code="agent.renderer_refused",
            ) from problem


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


def _as_dict(message: AgentMessage) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": _read_arguments(call.arguments)},
        }
        for call in message.function_calls
    ]
    return {
        "role": message.role.value,
        "content": message.content,
        **({"reasoning_content": message.reasoning} if message.reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
        **({"tool_call_id": message.call_id} if message.call_id else {}),
    }


def _specs(tools: Sequence[ToolSchema]) -> list[Any] | None:
    return [dict(tool) for tool in tools] or None


def _read_arguments(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _written_arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _unusable(name: str, cause: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"cannot use the renderer {name!r}: {cause}; {remedy}", code="agent.unusable_renderer")
