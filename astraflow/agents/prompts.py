"""Prompts of the calls of a session: the exact tokens of the reply that a call continues, and those after it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from astraflow.agents.calls import AgentMessage, CallRefused, ModelCall, Refusal, TokenCall
from astraflow.agents.renderers import ParsedReply, Renderer
from astraflow.agents.traces import Conversation, Reply, TokenTree
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ToolSchema
from astraflow.workflows.base import PolicyClient

_T = TypeVar("_T")

_LONG_TEXT = 8192
"""Characters that are rendered outside the event loop, because they take milliseconds."""
_LONG_REPLY = 1024
"""Tokens that are decoded outside the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Prompt of a call, with its place in the token tree."""

    number: int
    """Number of the call in the session."""
    parent: Reply | None
    """Reply that the call continues; None: it begins a conversation."""
    bridge: Int32Array
    """Tokens after those of the parent; without one the whole prompt. int32 `[n]`."""
    digest: bytes
    """Equal for calls with the same request."""
    messages: tuple[AgentMessage, ...] = ()
    """Messages after the parent's; empty for calls with tokens."""
    conversation: Conversation | None = None
    """All messages; None for calls with tokens."""

    def tokens(self) -> Int32Array:
        """Returns the whole prompt: int32 `[n]`."""
        return self.bridge if self.parent is None else np.concatenate([self.parent.tokens(), self.bridge])


class PolicyPrompts:
    """Conversations of one policy in a session."""

    def __init__(
        self, policy: PolicyId, client: PolicyClient, renderer: Renderer, *, thinking: Literal["keep", "template"]
    ) -> None:
        self.policy = policy
        self.client = client
        self.renderer = renderer
        self.tree = TokenTree(policy)
        self._follows_template = thinking == "template"

    async def of_messages(self, number: int, call: ModelCall) -> Prompt:
        """Returns the prompt of a call with messages. Raises: CallRefused; RolloutFailed for a chat format that cannot
        continue an answer."""
        match = self.tree.match(call.messages, call.tools)
        parent, messages = match.parent, match.messages
        is_whole = parent is None or self._follows_template
        characters = sum(len(message.content) for message in (call.messages if is_whole else messages))
        if parent is None:
            bridge = await self._rendered(lambda: self.renderer.render(messages, call.tools), characters)
        elif self._follows_template:
            bridge = await self._rendered(lambda: self.renderer.render(call.messages, call.tools), characters)
            parent_tokens = parent.tokens()
            if len(bridge) > len(parent_tokens) and np.array_equal(bridge[: len(parent_tokens)], parent_tokens):
                bridge = bridge[len(parent_tokens) :]
            else:
                parent, messages = None, call.messages
        else:
            bridge = await self._rendered(lambda: self._bridge(parent, messages, call.tools), characters)
        return Prompt(
            number=number,
            parent=parent,
            bridge=bridge,
            digest=match.conversation.chain.digest,
            messages=messages,
            conversation=match.conversation,
        )

    def of_tokens(self, number: int, call: TokenCall) -> Prompt:
        """Returns the prompt of a call with tokens. Raises: CallRefused for tokens that the policy does not have."""
        vocab_size = self.client.tokenizer.vocab_size
        if not len(call.prompt) or call.prompt.min() < 0 or call.prompt.max() >= vocab_size:
            raise CallRefused(
                f"cannot continue the tokens: they are not one or more ids from 0 to {vocab_size - 1}; use the "
                "tokenizer of the policy",
                refusal=Refusal.INVALID,
                code="agent.unknown_tokens",
            )
        parent, bridge = self.tree.match_tokens(call.prompt)
        return Prompt(number=number, parent=parent, bridge=bridge, digest=call.prompt.tobytes())

    async def parsed(self, prompt: Prompt, generation: Generation, call: ModelCall) -> ParsedReply:
        """Returns the message that the policy wrote. A client's stop string is not part of it."""
        tools = () if call.tool_choice == "none" else call.tools

        def parse() -> ParsedReply:
            return self.renderer.parse(prompt.bridge, generation.tokens, tools)

        reply = await off_loop(parse, is_long=len(generation.tokens) > _LONG_REPLY)
        stops = [text.strip() for text in call.options.stop if text.strip()]
        if generation.finish is Finish.STOP and stops:
            return reply.without_end(stops)
        return reply

    def _bridge(self, parent: Reply, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]) -> Int32Array:
        try:
            return self.renderer.bridge(parent.bridge, parent.generation.tokens, messages, tools)
        except InvalidInput as problem:
            if problem.code != "model.template_changes_history":
                raise
            raise RolloutFailed(
                f"cannot continue an answer of policy {str(self.policy)!r}: its chat template changes earlier turns "
                "once others follow; set thinking = 'template', which makes each turn a trajectory, or `renderer` of "
                "the policy's model",
                boundary=Boundary.WORKFLOW,
                code="agent.template_changes_history",
            ) from problem

    async def _rendered(self, render: Callable[[], Int32Array], characters: int) -> Int32Array:
        """Raises: CallRefused for messages that the chat format does not allow."""
        try:
            return await off_loop(render, is_long=characters > _LONG_TEXT)
        except InvalidInput as problem:
            raise CallRefused(str(problem), refusal=Refusal.INVALID, code=problem.code) from problem


async def off_loop(function: Callable[[], _T], *, is_long: bool) -> _T:
    """Calls the function, in a thread when it takes long."""
    return await asyncio.to_thread(function) if is_long else function()
