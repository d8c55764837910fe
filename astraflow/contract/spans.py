"""Who wrote which stretch of a sequence, without its tokens: what is shown of a trajectory needs no arrays."""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.ids import Version


class Author(Enum):
    """Who wrote a stretch of tokens."""

    CONTEXT = "context"
    """The prompt, a tool, the environment or another policy: masked out of the loss."""
    MODEL = "model"
    """The policy itself: trained on, with a logprob for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of tokens with one author and, if the model wrote it, one policy version."""

    author: Author
    length: int
    version: Version | None = None
    """Set for `Author.MODEL` only."""
