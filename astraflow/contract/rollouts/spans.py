"""Authors of the stretches of a sequence and reasons for its end, without its tokens, so that views of a trajectory
need no arrays."""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from astraflow.contract.ids import Version


class Author(Enum):
    """Author of a stretch of tokens."""

    CONTEXT = "context"
    """The prompt, a tool, the environment or another policy. The loss masks these tokens out."""
    MODEL = "model"
    """The policy itself. These tokens are trained on and have a logprob each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive tokens with one author and, if the model wrote them, one policy version."""

    author: Author
    """Author of the tokens."""
    length: int
    """Tokens. Count."""
    version: Version | None = None
    """Set for `Author.MODEL` only."""
    speaker: str = ""
    """Origin of context after the first turn, for display: `environment`, `tool`, `user`, the role of another policy,
    or `POLICY_SPEAKER`. Empty for the prompt and for the model."""


@lru_cache(maxsize=4096)
def cached_span(length: int, version: int | None, speaker: str = "") -> Span:
    """Returns a span; cached, because most trajectories of a run share few distinct spans.

    version: None for context. speaker: for context only.
    """
    if version is None:
        return Span(author=Author.CONTEXT, length=length, speaker=speaker)
    return Span(author=Author.MODEL, length=length, version=Version(version))


POLICY_SPEAKER = "policy"
"""Speaker of context that the policy itself wrote and that another trajectory of the episode trains: each sampled token
is trained once."""


class Ending(Enum):
    """Reason for the end of an interaction of several turns. Each is a regular result, not a failure."""

    DONE = "done"
    """The policy said that it is finished, or gave its answer."""
    WON = "won"
    """The environment reached its goal."""
    LOST = "lost"
    """The environment ended without reaching its goal."""
    TURNS = "turns"
    """Limit of turns."""
    CONTEXT = "context"
    """Limit of tokens."""
    MALFORMED = "malformed"
    """Too many messages of the policy that nothing could read."""
    REPEATED = "repeated"
    """The policy repeated itself."""
    BUDGET = "budget"
    """Limit of tool calls, steps or sub-agents."""

    @property
    def label(self) -> str:
        """Name for people."""
        return _ENDING_LABELS.get(self, self.value)


_ENDING_LABELS = {
    Ending.TURNS: "turn limit",
    Ending.CONTEXT: "token limit",
    Ending.REPEATED: "repeated itself",
    Ending.BUDGET: "budget used up",
}
