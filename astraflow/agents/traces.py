"""Token trees of a session: the tokens that a policy read and wrote, and the reply that a call continues.

A node of a tree is a reply: the tokens between its parent and itself, which the policy read, and the tokens that it
wrote. A prompt is the exact token path to the parent plus the bridge to the new answer, so no sampled token is ever
encoded again.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from astraflow.agents.calls import AgentMessage, FunctionCall, Role
from astraflow.agents.dialects.dialect import nearest_float
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.generation import Finish, Generation
from astraflow.contract.rollouts.spans import Ending
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.models.tokenizers import ToolSchema


@dataclass(slots=True, kw_only=True, eq=False)
class Reply:
    """Reply of a policy: a node of its token tree."""

    id: str
    parent: "Reply | None"
    """Reply that this one continues; None at a root."""
    bridge: Int32Array
    """Tokens that the policy read after the parent's; at a root the whole prompt. int32 `[n]`."""
    generation: Generation
    digest: bytes
    """Digest of the messages up to and including this reply; empty after a call with tokens."""
    prompt_digest: bytes
    """Digest of the request: equal for a call that the client sends again."""
    messages: tuple[AgentMessage, ...] = ()
    """Messages after the parent's; at a root all of them. Empty after a call with tokens."""
    message: AgentMessage | None = None
    """Reply as the client got it; None after a call with tokens."""
    is_malformed: bool = False
    """True if the reply contains text that looks like a function call but cannot be parsed."""
    begun: int = 0
    """Number of the call in the session, in order of arrival."""
    committed: int = 0
    """Number of the reply in the session, in order of commit."""
    calls_before_commit: int = 0
    """Number of calls that had arrived when this reply was committed. A later call with equal messages is a retry."""
    children: "list[Reply]" = field(default_factory=list)
    ending: Ending | None = None
    """Limit by which a call that continues this reply was refused; None without such a call."""
    length: int = field(init=False)
    """Number of tokens from the root to the end of this reply."""

    def __post_init__(self) -> None:
        known = 0 if self.parent is None else self.parent.length
        self.length = known + len(self.bridge) + len(self.generation.tokens)

    @property
    def path(self) -> "list[Reply]":
        """Replies from the root to this one."""
        node: Reply | None = self
        path: list[Reply] = []
        while node is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    @property
    def speaker(self) -> str:
        """`Span.speaker` of the bridge."""
        if self.parent is None:
            return ""
        roles = {message.role for message in self.messages}
        return Role.TOOL.value if Role.TOOL in roles else Role.USER.value

    @property
    def is_unfinished(self) -> bool:
        """True if the length limit cut the reply, or a function call in it cannot be parsed."""
        return self.is_malformed or self.generation.finish is Finish.LENGTH

    def tokens(self) -> Int32Array:
        """Returns all tokens from the root to the end of this reply: int32 `[n]`."""
        return np.concatenate([part for node in self.path for part in (node.bridge, node.generation.tokens)])

    def conversation(self) -> tuple[AgentMessage, ...]:
        """Returns the messages up to and including this reply."""
        parts = [(*node.messages, node.message) for node in self.path if node.message is not None]
        return tuple(message for part in parts for message in part)


class MessageChain:
    """Digest of a conversation that grows by messages. Equal conversations have equal digests.

    Absent content counts as empty content. The digest ignores white space around the content of an assistant message,
    its reasoning, and the form of arguments and ids of function calls.
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        described = _canonical([dict(tool) for tool in tools]) if tools else ""
        self._hash = blake2b(described.encode(), digest_size=16)
        self._numbers: dict[str, int] = {}

    def append(self, message: AgentMessage) -> bytes:
        """Appends a message; returns the digest up to and including it."""
        content = message.content.strip() if message.role is Role.ASSISTANT else message.content
        text = content.encode(errors="surrogatepass")
        references = self._references(message) if message.function_calls or message.call_id else ""
        head = f"{message.role.value} {len(text)}{references}\n"  # without a line break, so equal only if all parts are
        self._hash.update(head.encode() + text)
        return self._hash.digest()

    def _references(self, message: AgentMessage) -> str:
        """Returns the function calls of a message, and which one it answers, by their numbers in the conversation."""
        calls = [[call.name, canonical_arguments(call.arguments)] for call in message.function_calls]
        for call in message.function_calls:
            self._numbers[call.id] = len(self._numbers)
        return _canonical([calls, self._numbers.get(message.call_id, message.call_id)])

    @property
    def digest(self) -> bytes:
        """Digest of the messages so far."""
        return self._hash.digest()

    def copy(self) -> "MessageChain":
        """Returns a chain that grows on its own."""
        chain = MessageChain(())
        chain._hash, chain._numbers = self._hash.copy(), dict(self._numbers)
        return chain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conversation:
    """Messages of a call with their digests. A call that continues it digests only what is new."""

    tools: tuple[ToolSchema, ...]
    messages: tuple[AgentMessage, ...]
    chain: MessageChain
    """All messages; to be copied before it grows."""
    answers: tuple[tuple[int, bytes], ...]
    """Number of messages up to and including each message of the assistant, and their digest."""

    def digest_with(self, message: AgentMessage) -> bytes:
        """Returns the digest of the conversation and one more message."""
        return self.chain.copy().append(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Position of a call in a tree."""

    parent: Reply | None
    """Reply that the call continues; None for a call that begins a conversation."""
    messages: tuple[AgentMessage, ...]
    """Messages after those of the parent."""
    conversation: Conversation
    """The whole call."""


_RECENT = 8
"""Conversations of answered calls that are kept for those that continue them. Count."""


class TokenTree:
    """Replies of one policy in one session."""

    def __init__(self, policy: PolicyId) -> None:
        self.policy = policy
        self.replies: list[Reply] = []
        """In order of commit."""
        self._roots: list[Reply] = []
        self._by_digest: dict[bytes, list[Reply]] = {}
        self._recent: deque[Conversation] = deque(maxlen=_RECENT)

    def match(self, messages: Sequence[AgentMessage], tools: Sequence[ToolSchema]) -> Match:
        """Returns the deepest reply whose conversation is the beginning of this one. A reply still matches if the
        client left out its reasoning, but not if the client changed it."""
        conversation = self._conversation(tuple(messages), tuple(tools))
        for count, digest in reversed(conversation.answers):
            for reply in reversed(self._by_digest.get(digest, ())):
                if _has_same_reasoning(reply, messages[:count]):
                    return Match(parent=reply, messages=conversation.messages[count:], conversation=conversation)
        return Match(parent=None, messages=conversation.messages, conversation=conversation)

    def _conversation(self, messages: tuple[AgentMessage, ...], tools: tuple[ToolSchema, ...]) -> Conversation:
        """Returns a conversation with its digests, from those of an answered one that it continues if there is one."""
        known = next((recent for recent in reversed(self._recent) if _continues(messages, tools, recent)), None)
        count = 0 if known is None else len(known.messages)
        chain = MessageChain(tools) if known is None else known.chain.copy()
        answers = [] if known is None else list(known.answers)
        for number, message in enumerate(messages[count:], start=count + 1):
            digest = chain.append(message)
            if message.role is Role.ASSISTANT:
                answers.append((number, digest))
        return Conversation(tools=tools, messages=messages, chain=chain, answers=tuple(answers))

    def match_tokens(self, prompt: Int32Array) -> tuple[Reply | None, Int32Array]:
        """Returns the deepest reply whose tokens are the beginning of the prompt, and the remaining tokens of the
        prompt."""
        best: tuple[Reply | None, Int32Array] = (None, prompt)
        pending = [best]
        while pending:
            parent, rest = pending.pop()
            best = min(best, (parent, rest), key=lambda match: len(match[1]))
            for child in self._roots if parent is None else parent.children:
                size = len(child.bridge) + len(child.generation.tokens)
                if size <= len(rest) and np.array_equal(_own_tokens(child), rest[:size]):
                    pending.append((child, rest[size:]))
        return best

    def add(self, reply: Reply, conversation: Conversation | None = None) -> None:
        """Adds a reply under its parent. conversation: of its call; None after a call with tokens."""
        self.replies.append(reply)
        (self._roots if reply.parent is None else reply.parent.children).append(reply)
        if reply.digest:
            self._by_digest.setdefault(reply.digest, []).append(reply)
        if conversation is not None:
            self._recent.append(conversation)

    def remove(self, reply: Reply) -> None:
        """Removes a reply that the client did not get and that no other reply continues."""
        self.replies.remove(reply)
        (self._roots if reply.parent is None else reply.parent.children).remove(reply)
        if reply.digest:
            self._by_digest[reply.digest].remove(reply)

    def leaves(self) -> list[Reply]:
        """Returns the replies that no other reply continues, in order of commit."""
        return [reply for reply in self.replies if not reply.children]

    def is_superseded(self, leaf: Reply) -> bool:
        """Returns whether the client got this unfinished reply and then sent its call again."""
        siblings = self._roots if leaf.parent is None else leaf.parent.children
        return leaf.is_unfinished and any(
            sibling.begun >= leaf.calls_before_commit and sibling.prompt_digest == leaf.prompt_digest
            for sibling in siblings
            if sibling is not leaf
        )


def canonical_arguments(arguments: str) -> str:
    """Returns arguments in one form: equal for clients that reorder or reformat JSON, which may write 1.0 as 1, and
    hold integers as floating-point numbers.

    >>> canonical_arguments('{"b": 1.0, "a": [1]}'), canonical_arguments("no JSON ")
    ('{"a":[1],"b":1}', 'no JSON')
    """
    try:
        return _canonical(json.loads(arguments or "{}", parse_float=_number, parse_int=_number))
    except (ValueError, RecursionError):
        return arguments.strip()


def _number(text: str) -> float:
    value = nearest_float(text)  # also for integers: clients in JavaScript round those beyond 53 bits
    return int(value) if value.is_integer() else value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _continues(messages: Sequence[AgentMessage], tools: Sequence[ToolSchema], earlier: Conversation) -> bool:
    return messages[: len(earlier.messages)] == earlier.messages and tools == earlier.tools


def _has_same_reasoning(reply: Reply, theirs: Sequence[AgentMessage]) -> bool:
    """Returns whether the client left out the reasoning of a conversation or sent it unchanged."""
    if not any(message.reasoning for message in theirs):
        return True
    pairs = zip(reply.conversation(), theirs, strict=True)
    return all(not their.reasoning or (our.reasoning or "").strip() == their.reasoning.strip() for our, their in pairs)


def _own_tokens(reply: Reply) -> Int32Array:
    return np.concatenate([reply.bridge, reply.generation.tokens])


def function_calls_with_ids(calls: Sequence[FunctionCall], prefix: str) -> Iterator[FunctionCall]:
    """Yields the calls; a call without an id gets one that is unique in the session."""
    for number, call in enumerate(calls):
        yield FunctionCall(id=call.id or f"{prefix}{number}", name=call.name, arguments=call.arguments)
