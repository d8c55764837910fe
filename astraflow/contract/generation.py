"""What is asked of an engine and what it answers: token ids in; token ids, logprobs and version spans out."""

from dataclasses import dataclass
from enum import Enum

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.trajectories import Float32Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Logprobs are always those of the distribution that was sampled from."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    """Generation ends after one of these, which is part of the result."""


class Finish(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Cut short by a pause or an abort; what was written so far is in the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """That many consecutive tokens were written with this version."""

    version: Version
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the model wrote. tokens: int32 `[n]`; logprobs: float32 `[n]`; the spans cover all n."""

    tokens: Int32Array
    logprobs: Float32Array
    spans: tuple[VersionSpan, ...]
    finish: Finish

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs) or sum(span.length for span in self.spans) != len(self.tokens):
            raise InvalidInput("a generation needs one logprob for each token and spans that cover them all")
