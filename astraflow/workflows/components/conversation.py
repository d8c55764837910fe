"""Conversation of one policy with tools, an environment or a user: one trajectory with the exact tokens."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from pydantic import Field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.generation import Finish, Generation, Sampling
from astraflow.contract.rollouts.limits import EpisodeBounds
from astraflow.contract.rollouts.trajectories import Ending, Int32Array
from astraflow.models.tokenizers import Message, ToolSchema
from astraflow.workflows.base import PolicyClient
from astraflow.workflows.components.answers import AnswerOptions
from astraflow.workflows.components.trajectory_builder import TrajectoryBuilder

_NO_TOKENS = np.empty(0, dtype=np.int32)

Generate: TypeAlias = Callable[[Int32Array, Sampling], Awaitable[Generation]]
"""Continues a prompt."""


class ConversationOptions(AnswerOptions):
    """Limits of a conversation, whose turns are sampled with the options of answers; `max_new_tokens` is that of a
    turn."""

    max_turns: int = Field(default=16, ge=1)
    """Turns of the policy; the episode then ends with `turns`."""
    max_context: int = Field(default=16384, ge=2)
    """Length limit of the conversation; the episode ends with `context` when a message or an answer does not fit.
    Tokens."""
    max_malformed: int = Field(default=3, ge=0)
    """Unreadable calls or actions of an episode; one more ends it with `malformed`."""
    max_repeats: int = Field(default=4, ge=0)
    """Equal turns in a row that end the episode with `repeated`; 0: no limit."""

    def conversation_bounds(self, *, conversations: int) -> EpisodeBounds:
        """Returns the bounds of an episode of so many conversations."""
        written = min(self.max_turns * self.max_new_tokens, self.max_context)
        return EpisodeBounds(trajectories=conversations, tokens=self.max_context, written=written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Turn of a policy: the text that it wrote."""

    text: str
    """Text in the form of `astraflow.models.answer_texts`."""
    finish: Finish
    tokens: int
    """Number of tokens that the policy wrote."""


class Conversation:
    """Transcript that only grows: the policy is trained on exactly what it read and wrote.

    Between two turns stand the tokens of the chat template; the end of a turn is part of them unless the policy wrote
    it. Alternate `answer` and `append`.
    """

    def __init__(
        self,
        policy: PolicyId,
        client: PolicyClient,
        options: ConversationOptions,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] = (),
    ) -> None:
        """tools: described to the policy by the chat template. Raises: InvalidInput when the messages do not fit."""
        self.builder = TrajectoryBuilder(policy)
        self.turns = 0
        """Turns of the policy. Count."""
        self._client = client
        self._options = options
        self._tools = tuple(tools)
        self._read, self._written = _NO_TOKENS, _NO_TOKENS
        self._size = 0
        self._texts: list[str] = []
        self._add(client.tokenizer.encode_chat(messages, tools=self._tools), speaker="")
        if self.room <= 0:
            raise InvalidInput(
                f"cannot begin the conversation: its first message has {self._size} tokens of at most "
                f"{options.max_context}; raise max_context, or leave out long prompts",
                code="workflow.prompt_too_long",
            )

    @property
    def room(self) -> int:
        """Tokens that may still be added."""
        return self._options.max_context - self._size

    async def answer(self, stop_strings: Sequence[str] = (), *, generate: Generate | None = None) -> Turn:
        """Requests the next turn. stop_strings: end it, besides those of the options. generate: requests it instead of
        the policy's client. Raises: RolloutFailed."""
        tokenizer = self._client.tokenizer
        sampling = self._options.sampling(
            stop_tokens=tokenizer.stop_tokens,
            max_new_tokens=min(self._options.max_new_tokens, self.room),
            stop_strings=stop_strings,
        )
        generation = await (generate or self._client.generate)(self.builder.tokens(), sampling)
        if not len(generation.tokens):
            raise RolloutFailed(
                "cannot continue the conversation: the engine returned no token; let it return the stop token",
                boundary=Boundary.ENGINE,
                code="rollout.empty_generation",
            )
        self.builder.add_generation(generation)
        self._size += len(generation.tokens)
        self._written = generation.tokens
        self.turns += 1
        text = tokenizer.answer_text(self._read, self._written, tools=self._tools)
        self._texts = [*self._texts, text] if text in self._texts[-1:] else [text]
        return Turn(text=text, finish=generation.finish, tokens=len(generation.tokens))

    def append(self, messages: Sequence[Message], *, speaker: str) -> bool:
        """Appends messages to the policy; returns False, and appends nothing, when they leave no room for an answer.

        speaker: `Span.speaker`, such as `tool`.
        """
        tokens = self._client.tokenizer.bridge(self._read, self._written, messages, tools=self._tools)
        if len(tokens) >= self.room:
            return False
        self._add(tokens, speaker=speaker)
        return True

    def ending(self, malformed: int = 0) -> Ending | None:
        """Returns the limit that ends the conversation after the last turn, if any. malformed: unreadable calls or
        actions so far."""
        options = self._options
        if malformed > options.max_malformed:
            return Ending.MALFORMED
        if options.max_repeats and len(self._texts) >= options.max_repeats:
            return Ending.REPEATED
        if self.room <= 0:
            return Ending.CONTEXT
        return Ending.TURNS if self.turns >= options.max_turns else None

    def _add(self, tokens: Int32Array, *, speaker: str) -> None:
        self.builder.add_context(tokens, speaker=speaker)
        self._read = tokens
        self._size += len(tokens)


def shortened(text: str, limit: int) -> str:
    """Returns the text, cut to `limit` characters with a note, and without what is no valid Unicode.

    >>> shortened("abcdef", 4)
    'abcd\\n[2 more characters were cut]'
    """
    clean = text[:limit].encode(errors="replace").decode()
    return clean if len(text) <= limit else f"{clean}\n[{len(text) - limit} more characters were cut]"
