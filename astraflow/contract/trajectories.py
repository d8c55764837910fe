"""Results of a task: episodes and their trajectories."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.agent_calls import AgentCall
from astraflow.contract.errors import InvalidInput
from astraflow.contract.failures import Failure
from astraflow.contract.ids import NodeId, PolicyId, TaskId, Version
from astraflow.contract.spans import Author, Span
from astraflow.contract.spans import Ending as Ending  # part of the interface of trajectories
from astraflow.contract.timelines import Hop

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
    role: str = ""
    """Part that the policy played in the workflow, such as `solver` or `solver.retry`. Statistics compare trajectories
    of one role. Empty: the position in the episode counts as the role."""
    parent: int | None = None
    """Index in the episode of the trajectory that started this one, such as the agent that spawned a sub-agent."""
    parent_turn: int | None = None
    """Turn of the parent, from 0, in which it started this one."""
    turn_rewards: tuple[float, ...] = ()
    """Reward of each turn, a part of `reward`; empty when only the whole is scored. A turn is a run of model spans
    between context."""
    turn_discounts: tuple[float, ...] = ()
    """Weight of the rewards after each turn, as seen from that turn, in 0 to 1; empty: 1."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    """Terms of a reward with several, before weighting."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Texts for display and for filters, such as the game of an environment."""
    ending: Ending | None = None
    """Reason for the end of an interaction; None for a single answer."""
    token_ends: tuple[int, ...] = ()
    """End of each model-written token in `prompt_text + completion_text`, in characters; empty without texts."""
    calls: tuple[AgentCall, ...] = ()
    """Recorded calls of the agent program whose replies the model spans are; empty unless sampled, for people."""
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
        if self.turn_rewards or self.turn_discounts:
            self._check_turns()
        if self.parent is not None and self.parent < 0:
            raise self._invalid(f"its parent {self.parent} is negative; give the index of a trajectory of the episode")
        object.__setattr__(self, "oldest_version", oldest)

    def _check_turns(self) -> None:
        for name, values in (("turn_rewards", self.turn_rewards), ("turn_discounts", self.turn_discounts)):
            if values and len(values) != self.turns:
                raise self._invalid(f"it has {self.turns} turns but {len(values)} {name}; give one per turn")
            if not all(isfinite(value) for value in values):
                raise self._invalid(f"one of its {name} is not a finite number; give finite ones")
        if not all(0 <= value <= 1 for value in self.turn_discounts):
            raise self._invalid("one of its turn_discounts is not in 0 to 1; give discounts from 0 to 1")

    def _invalid(self, cause: str) -> InvalidInput:
        return InvalidInput(
            f"cannot build trajectory of policy {str(self.policy)!r}: {cause}", code="trajectory.invalid"
        )

    @property
    def base_role(self) -> str:
        """Role without the suffix of a later attempt: `solver` of `solver.retry`."""
        return self.role.partition(".")[0]

    @property
    def model_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return len(self.logprobs)

    @property
    def turns(self) -> int:
        """Number of turns of the model."""
        return sum(author is Author.MODEL for author, _ in groupby(self.spans, key=lambda span: span.author))

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
    failed_calls: tuple[AgentCall, ...] = ()
    """Recorded calls of an agent program whose session failed, for sampled groups; the calls of other sessions
    are in their trajectories."""
    hops: tuple[Hop, ...] = ()
    """For sampled groups, spans on the node: the lease, the episode, and at most `MAX_HOPS` inside of it."""

    def __post_init__(self) -> None:
        if self.failure is None and not self.trajectories:
            raise InvalidInput(
                f"cannot build episode {str(self.task)!r}: it has neither trajectories nor a failure; give one of them",
                code="episode.empty",
            )
        for index, trajectory in enumerate(self.trajectories):
            if trajectory.parent is not None and trajectory.parent >= index:
                raise InvalidInput(
                    f"cannot build episode {str(self.task)!r}: trajectory {index} has the parent {trajectory.parent}; "
                    "put a parent before its children",
                    code="episode.parent_order",
                )
