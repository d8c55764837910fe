"""Results of a task: episodes and their trajectories."""

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
    """Token sequence of one policy, with the data the loss needs.

    tokens: int32 `[length]`; logprobs: float32 `[model_tokens]`, natural log, one for each model-written token.
    The spans cover `tokens` exactly. A generation that crossed a weight refresh has several model spans.
    """

    policy: PolicyId
    tokens: Int32Array
    logprobs: Float32Array
    spans: tuple[Span, ...]
    reward: float
    is_truncated: bool = False
    """Generation stopped at its length limit rather than by the model's own stop."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    prompt_text: str = ""
    """Prompt as text. Nodes attach texts to a sample of groups, for people to read; otherwise empty."""
    completion_text: str = ""
    text_ends: tuple[int, ...] = ()
    """End of each span in `prompt_text + completion_text`, in characters; empty without texts."""
    span_s: tuple[float, ...] = ()
    """Seconds of each span, 0 where unknown. Consecutive spans of one author have their total at the first. Empty
    without texts."""
    answer: str = ""
    """Answer as its reward reads it; equal answers are equal texts, which can be counted as votes. Empty when there is
    none."""
    oldest_version: Version | None = field(init=False, repr=False, compare=False)
    """Oldest version that wrote a token, which determines the staleness; None when the model wrote nothing."""

    def __post_init__(self) -> None:
        covered = written = 0
        oldest: Version | None = None
        for span in self.spans:
            if span.length <= 0:
                raise self._invalid("a span has no tokens; omit empty spans")
            if (span.author is Author.MODEL) != (span.version is not None):
                raise self._invalid("model spans carry a version, others carry none; set `version` accordingly")
            covered += span.length
            if span.version is not None:
                written += span.length
                oldest = span.version if oldest is None or span.version < oldest else oldest
        if covered != len(self.tokens):
            raise self._invalid(f"its spans do not cover its {len(self.tokens)} tokens; cover each exactly once")
        if written != len(self.logprobs):
            raise self._invalid(f"{written} model tokens but {len(self.logprobs)} logprobs; give one per model token")
        if not isfinite(self.reward):
            raise self._invalid(f"reward {self.reward} is not a finite number; give a finite one")
        object.__setattr__(self, "oldest_version", oldest)

    def _invalid(self, cause: str) -> InvalidInput:
        return InvalidInput(
            f"cannot build trajectory of policy {str(self.policy)!r}: {cause}", code="trajectory.invalid"
        )

    @property
    def model_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return len(self.logprobs)

    def loss_mask(self) -> BoolArray:
        """Returns bool `[length]`: True where the model wrote the token."""
        flags = np.array([span.author is Author.MODEL for span in self.spans], dtype=np.bool_)
        return np.repeat(flags, [span.length for span in self.spans])


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Result of one task: trajectories for any number of policies, or a failure. `task` is its id."""

    task: TaskId
    node: NodeId
    trajectories: tuple[Trajectory, ...]
    failure: Failure | None = None
    duration_s: float = 0.0
    attempt: int = 0
    """Attempt of the task: `Task.attempt`."""
    continued_tokens: int = 0
    """Tokens in it that an earlier node wrote and handed back."""

    def __post_init__(self) -> None:
        if self.failure is None and not self.trajectories:
            raise InvalidInput(
                f"cannot build episode {str(self.task)!r}: it has neither trajectories nor a failure; give one of them",
                code="episode.empty",
            )
