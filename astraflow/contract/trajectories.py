"""What a task produces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Failure
from astraflow.contract.ids import NodeId, PolicyId, TaskId, Version
from astraflow.contract.spans import Author, Span

Int32Array: TypeAlias = npt.NDArray[np.int32]
Float32Array: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One sequence of one policy, with what the loss needs.

    tokens: int32 `[length]`; logprobs: float32 `[model_tokens]`, natural log, one for each model-written token.
    The spans cover `tokens` exactly. A generation that crossed a weight refresh has several model spans.
    """

    policy: PolicyId
    tokens: Int32Array
    logprobs: Float32Array
    spans: tuple[Span, ...]
    reward: float
    is_truncated: bool = False
    """Generation ended at its length limit rather than by the model's own stop."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    prompt_text: str = ""
    """What the model read, as text: attached by the node for a sample of groups, for people to look at; else empty."""
    completion_text: str = ""
    text_ends: tuple[int, ...] = ()
    """Where in `prompt_text + completion_text` each span ends, in letters; empty without texts."""
    span_s: tuple[float, ...] = ()
    """Seconds of each span, 0 where they are not known, a stretch of one author with all its time at its first; empty
    without texts."""
    answer: str = ""
    """What it answered, as its reward reads it: equal answers are equal texts, which can be counted as votes.
    Empty when there is none."""
    oldest_version: Version | None = field(init=False, repr=False, compare=False)
    """The version it was begun with, which decides how stale it is; None when the model wrote nothing."""

    def __post_init__(self) -> None:
        covered = written = 0
        oldest: Version | None = None
        for span in self.spans:
            if span.length <= 0:
                raise InvalidInput(f"trajectory of {self.policy}: a span has no tokens")
            if (span.author is Author.MODEL) != (span.version is not None):
                raise InvalidInput(f"trajectory of {self.policy}: model spans carry a version, others carry none")
            covered += span.length
            if span.version is not None:
                written += span.length
                oldest = span.version if oldest is None or span.version < oldest else oldest
        if covered != len(self.tokens):
            raise InvalidInput(f"trajectory of {self.policy}: its spans do not cover its {len(self.tokens)} tokens")
        if written != len(self.logprobs):
            raise InvalidInput(f"trajectory of {self.policy}: {written} model tokens but {len(self.logprobs)} logprobs")
        if not isfinite(self.reward):
            raise InvalidInput(f"trajectory of {self.policy}: reward {self.reward} is not a finite number")
        object.__setattr__(self, "oldest_version", oldest)

    @property
    def model_tokens(self) -> int:
        """How many tokens the model wrote."""
        return len(self.logprobs)

    def loss_mask(self) -> BoolArray:
        """bool `[length]`: True where the model wrote the token."""
        flags = np.array([span.author is Author.MODEL for span in self.spans], dtype=np.bool_)
        return np.repeat(flags, [span.length for span in self.spans])


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What one task produced: trajectories for any number of policies, or a failure. `task` is its id."""

    task: TaskId
    node: NodeId
    trajectories: tuple[Trajectory, ...]
    failure: Failure | None = None
    duration_s: float = 0.0
    attempt: int = 0
    """Which try of the task it was: `Task.attempt`."""
    continued_tokens: int = 0
    """Tokens in it that an earlier node wrote and handed back."""

    def __post_init__(self) -> None:
        if self.failure is None and not self.trajectories:
            raise InvalidInput(f"episode {self.task} has neither trajectories nor a failure")
