"""Results of tasks: episodes and their trajectories, one by one and in columns.

    columns of a message ──► `Trajectories` of an episode ──► `batches.Rows` of a group or a batch

Columns are lists of the numbers of all trajectories of a message, and two arrays of their tokens and logprobs.
`Trajectories` is a sequence of `Trajectory`, which are built on demand. Code that runs for each trajectory of a run
(admission, batches) reads the columns instead; all other code uses the sequence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from math import isfinite
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import NodeId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.agent_calls import AgentCall
from astraflow.contract.rollouts.failures import Failure
from astraflow.contract.rollouts.spans import Author, Span, cached_span
from astraflow.contract.rollouts.spans import Ending as Ending  # part of the interface of trajectories
from astraflow.contract.rollouts.timelines import Hop
from astraflow.contract.rollouts.token_columns import (
    ID_COLUMNS,
    TokenColumns,
    check_columns,
    columns_nbytes,
    joined_columns,
    section,
)

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
    teacher: str = ""
    """Teacher that scores the tokens, by its name in the algorithm; empty: its only one."""
    teacher_prompt: tuple[int, ...] = ()
    """Tokens that a teacher reads in place of those before the first that the model wrote; empty: the same."""
    ending: Ending | None = None
    """Reason for the end of an interaction; None for a single answer."""
    token_ends: tuple[int, ...] = ()
    """End of each model-written token in `prompt_text + completion_text`, in characters; empty without texts."""
    calls: tuple[AgentCall, ...] = ()
    """Recorded calls of the agent program whose replies the model spans are; empty unless sampled, for people."""
    token_columns: TokenColumns = field(default_factory=dict)
    """Columns of the model-written tokens that the algorithm needs, `[model_tokens, width]` each."""
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
        if self.token_columns:
            check_columns(self.token_columns, sampled=self.tokens[self.loss_mask()])
        if not isfinite(self.reward):
            raise self._invalid(f"reward {self.reward} is not a finite number; give a finite one")
        if self.turn_rewards or self.turn_discounts:
            self._check_turns()
        if self.teacher_prompt and not (min(self.teacher_prompt) >= 0 and max(self.teacher_prompt) < 2**31):
            raise self._invalid("its teacher_prompt has an id that is no token; give ids from 0")
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
    def has_details(self) -> bool:
        """True if it has more than its tokens, their authors and its reward, such as texts, a role or metrics."""
        return bool(
            self.answer
            or self.metrics
            or self.ending
            or self.role
            or self.reward_terms
            or self.labels
            or self.prompt_text
            or self.completion_text
            or self.text_ends
            or self.span_s
            or self.token_ends
            or self.calls
            or self.turn_rewards
            or self.turn_discounts
            or self.teacher
            or self.teacher_prompt
            or self.parent is not None
            or self.parent_turn is not None
            or any(span.speaker for span in self.spans)
        )

    @property
    def base_role(self) -> str:
        """Role without the suffix of a later attempt: `solver` of `solver.retry`."""
        return base_role_of(self.role)

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
        return np.repeat(flags, np.array([span.length for span in self.spans], dtype=np.int64))


NO_VERSION = -1
"""Version of context, and of a trajectory without model-written tokens."""

_ANY_VERSION = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Extremes:
    """Extremes of the arrays of trajectories, for comparisons with limits."""

    largest_token: int
    """Largest token id, also of columns, where a negative one counts as 2**31 or more; 0 without tokens."""
    lowest_logprob: float
    """NaN if any logprob is; 0 without logprobs."""
    highest_logprob: float
    """The same."""

    @classmethod
    def of(cls, tokens: Int32Array, logprobs: Float32Array, columns: TokenColumns) -> "Extremes":
        """Computes them: one pass over the tokens, two over the logprobs."""
        largest = int(np.asarray(tokens, np.int32).view(np.uint32).max(initial=0))
        ids = [int(array.max(initial=0)) for column, array in columns.items() if column in ID_COLUMNS]
        return cls(
            max(largest, *ids) if ids else largest,
            float(logprobs.min()) if len(logprobs) else 0.0,
            float(logprobs.max()) if len(logprobs) else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryColumns:
    """Columns of the trajectories of a message: entry i of a list is about trajectory i."""

    policies: Sequence[PolicyId]
    rewards: Sequence[float]
    is_truncated: Sequence[bool]
    span_ends: Sequence[int]
    """Ends of the trajectories' spans in the lists of spans, after a 0; so one entry more than trajectories."""
    span_lengths: Sequence[int]
    span_versions: Sequence[int]
    """Version that wrote the span, or `NO_VERSION`."""
    tokens: Int32Array
    logprobs: Float32Array
    token_columns: TokenColumns = field(default_factory=dict)
    """Columns of all model-written tokens. A trajectory without a column that another has gets its absent entries."""
    built: dict[int, Trajectory] = field(default_factory=dict)
    """Trajectories that exist as objects: at least those with details, and those that were asked for."""
    token_ends: Sequence[int] = field(init=False)
    logprob_ends: Sequence[int] = field(init=False)
    oldest_versions: Sequence[int] = field(init=False)
    """Oldest version that wrote a token, or `NO_VERSION`."""
    _extremes: "Extremes | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        ends = np.array(self.span_ends, dtype=np.int64)
        lengths = np.array([0, *self.span_lengths], dtype=np.int64)
        versions = np.array([NO_VERSION, *self.span_versions], dtype=np.int64)
        is_written = versions != NO_VERSION
        object.__setattr__(self, "token_ends", np.cumsum(lengths)[ends].tolist())
        object.__setattr__(self, "logprob_ends", np.cumsum(np.where(is_written, lengths, 0))[ends].tolist())
        candidates = np.append(np.where(is_written, versions, _ANY_VERSION)[1:], _ANY_VERSION)
        oldest = np.minimum.reduceat(candidates, ends[:-1]) if len(ends) > 1 else candidates[:0]
        oldest[(oldest == _ANY_VERSION) | (np.diff(ends) == 0)] = NO_VERSION
        object.__setattr__(self, "oldest_versions", oldest.tolist())

    def __len__(self) -> int:
        return len(self.policies)

    @property
    def extremes(self) -> "Extremes":
        """Extremes of the arrays, computed once."""
        extremes = self._extremes or Extremes.of(self.tokens, self.logprobs, self.token_columns)
        object.__setattr__(self, "_extremes", extremes)
        return extremes

    def prompt_length(self, index: int) -> int:
        """Returns the number of tokens of a trajectory before the first that the model wrote; all if it wrote none."""
        length = 0
        for span in range(*self.span_ends[index : index + 2]):
            if self.span_versions[span] != NO_VERSION:
                break
            length += self.span_lengths[span]
        return length

    def trajectory(self, index: int) -> Trajectory:
        """Returns a trajectory, whose arrays are views of these."""
        return self.built[index] if index in self.built else self.build(index)

    def build(self, index: int, *, speakers: Sequence[str] = (), **details: Any) -> Trajectory:
        """Builds a trajectory and keeps it. speakers: of its spans; empty without any. details: its other fields."""
        begin, end = self.span_ends[index : index + 2]
        versions = [None if version == NO_VERSION else version for version in self.span_versions[begin:end]]
        spans = zip(self.span_lengths[begin:end], versions, speakers or [""] * (end - begin), strict=True)
        self.built[index] = Trajectory(
            policy=self.policies[index],
            tokens=self.tokens[slice(*self.token_ends[index : index + 2])],
            logprobs=self.logprobs[slice(*self.logprob_ends[index : index + 2])],
            token_columns=section(self.token_columns, *self.logprob_ends[index : index + 2]),
            spans=tuple([cached_span(length, version, speaker) for length, version, speaker in spans]),
            reward=self.rewards[index],
            is_truncated=self.is_truncated[index],
            **details,
        )
        return self.built[index]


class Trajectories(Sequence[Trajectory]):
    """Adjacent trajectories of columns."""

    __slots__ = ("begin", "columns", "end")

    def __init__(self, columns: TrajectoryColumns, begin: int, end: int) -> None:
        self.columns = columns
        self.begin = begin
        self.end = end

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> "Trajectories":
        """Returns the trajectories in columns: the same object if they are, else copies of their arrays."""
        if isinstance(trajectories, Trajectories):
            return trajectories
        spans = [span for trajectory in trajectories for span in trajectory.spans]
        columns = TrajectoryColumns(
            policies=[trajectory.policy for trajectory in trajectories],
            rewards=[trajectory.reward for trajectory in trajectories],
            is_truncated=[trajectory.is_truncated for trajectory in trajectories],
            span_ends=list(accumulate((len(trajectory.spans) for trajectory in trajectories), initial=0)),
            span_lengths=[span.length for span in spans],
            span_versions=[NO_VERSION if span.version is None else span.version for span in spans],
            tokens=np.concatenate([np.zeros(0, np.int32), *(trajectory.tokens for trajectory in trajectories)]),
            logprobs=np.concatenate([np.zeros(0, np.float32), *(trajectory.logprobs for trajectory in trajectories)]),
            token_columns=joined_columns(
                [(trajectory.token_columns, trajectory.model_tokens) for trajectory in trajectories]
            ),
            built=dict(enumerate(trajectories)),
        )
        return cls(columns, 0, len(columns))

    def __len__(self) -> int:
        return self.end - self.begin

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...

    @overload
    def __getitem__(self, index: slice) -> "Trajectories": ...

    def __getitem__(self, index: int | slice) -> "Trajectory | Trajectories":
        positions = range(self.begin, self.end)[index]
        if isinstance(positions, int):
            return self.columns.trajectory(positions)
        if positions.step == 1:
            return Trajectories(self.columns, positions.start, positions.stop)
        return Trajectories.of([self.columns.trajectory(position) for position in positions])

    @property
    def policies(self) -> Sequence[PolicyId]:
        """Policy of each trajectory."""
        return self.columns.policies[self.begin : self.end]

    @property
    def rewards(self) -> Sequence[float]:
        """Reward of each trajectory."""
        return self.columns.rewards[self.begin : self.end]

    @property
    def oldest_versions(self) -> Sequence[int]:
        """Oldest version that wrote a token of each trajectory, or `NO_VERSION`."""
        return self.columns.oldest_versions[self.begin : self.end]

    @property
    def model_tokens(self) -> Sequence[int]:
        """Number of tokens of each trajectory that the model wrote."""
        return [end - begin for begin, end in pairwise(self.columns.logprob_ends[self.begin : self.end + 1])]

    @property
    def tokens(self) -> Int32Array:
        """Tokens of all trajectories, in order."""
        return self.columns.tokens[self.columns.token_ends[self.begin] : self.columns.token_ends[self.end]]

    def each_tokens(self) -> list[Int32Array]:
        """Returns the tokens of each trajectory."""
        ends = self.columns.token_ends[self.begin : self.end + 1]
        return [self.columns.tokens[begin:end] for begin, end in pairwise(ends)]

    @property
    def logprobs(self) -> Float32Array:
        """Logprobs of all trajectories, in order."""
        return self.columns.logprobs[self.columns.logprob_ends[self.begin] : self.columns.logprob_ends[self.end]]

    @property
    def token_columns(self) -> TokenColumns:
        """Columns of the model-written tokens of all trajectories, in order."""
        ends = self.columns.logprob_ends
        return section(self.columns.token_columns, ends[self.begin], ends[self.end])

    @property
    def extremes(self) -> Extremes:
        """Extremes of tokens and logprobs of all trajectories."""
        is_whole = self.begin == 0 and self.end == len(self.columns)
        return self.columns.extremes if is_whole else Extremes.of(self.tokens, self.logprobs, self.token_columns)

    @property
    def size_bytes(self) -> int:
        """Size of the arrays. Bytes."""
        return self.tokens.nbytes + self.logprobs.nbytes + columns_nbytes(self.token_columns)

    def with_details(self) -> list[tuple[int, Trajectory]]:
        """Returns the trajectories that have details, with their positions."""
        built = self.columns.built
        if not built:
            return []
        candidates = ((index, built.get(self.begin + index)) for index in range(len(self)))
        return [(index, item) for index, item in candidates if item is not None and item.has_details]

    def written_versions(self) -> list[list[int]]:
        """Returns the versions that wrote the spans of each trajectory."""
        versions = self.columns.span_versions
        ends = self.columns.span_ends[self.begin : self.end + 1]
        return [[version for version in versions[begin:end] if version != NO_VERSION] for begin, end in pairwise(ends)]

    def forget_calls(self) -> None:
        """Releases the recorded calls of agent programs."""
        for index, trajectory in self.with_details():
            if trajectory.calls:
                self.columns.built[self.begin + index] = replace(trajectory, calls=())

    def roles(self) -> list[str]:
        """Returns the role of each trajectory."""
        roles = [""] * len(self)
        for index, trajectory in self.with_details():
            roles[index] = trajectory.role
        return roles


def common_length(first: npt.NDArray[np.integer], second: npt.NDArray[np.integer]) -> int:
    """Returns the number of tokens with which both begin."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    position = int(differs.argmax()) if length else 0
    return position if length and differs[position] else length


def base_role_of(role: str) -> str:
    """Returns a role without the suffix of a later attempt.

    >>> base_role_of("solver.retry")
    'solver'
    """
    return role.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Result of one task: trajectories for any number of policies, or a failure. `task` is its id."""

    task: TaskId
    node: NodeId
    trajectories: Sequence[Trajectory]
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
        trajectories = self.trajectories
        children: Iterable[tuple[int, Trajectory]] = (
            trajectories.with_details() if isinstance(trajectories, Trajectories) else enumerate(trajectories)
        )
        for index, trajectory in children:
            if trajectory.parent is not None and trajectory.parent >= index:
                raise InvalidInput(
                    f"cannot build episode {str(self.task)!r}: trajectory {index} has the parent {trajectory.parent}; "
                    "put a parent before its children",
                    code="episode.parent_order",
                )
