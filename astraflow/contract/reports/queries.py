"""Queries on the retained records of a run (sampled trajectories, their groups, events, history) and their results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, PolicyId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.report import Event, SampledTrajectory
from astraflow.contract.rollouts.agent_calls import CallOutcome
from astraflow.contract.rollouts.spans import Ending

MAX_SEARCH_CHARS = 1000
"""Longest search text, in characters."""

MAX_ORDINAL = 2**63 - 1
"""Largest ordinal or step that can be stored."""

RESOLUTIONS_S = (1, 60)
"""Resolutions of the history: every report of the last minutes, and one point per minute for the whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQuery:
    """Selects sampled trajectories, newest first. A field that is empty or None matches all."""

    policy: str = ""
    flow: str = ""
    group: str = ""
    task: str = ""
    node: str = ""
    outcome: str = ""
    step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    """Trainer steps from `first_step` to `last_step`, both included; untrained trajectories belong to no step."""
    min_reward: float | None = None
    max_reward: float | None = None
    """Both included. Setting either one excludes members that failed, which have no reward."""
    text: str = ""
    """Substring of the prompt, the completion or a failure's message; case-insensitive for ASCII letters."""
    is_truncated: bool | None = None
    is_failed: bool | None = None
    ending: Ending | None = None
    role: str = ""
    term: str = ""
    """Name of a reward term: trajectories that have it."""
    min_term: float | None = None
    max_term: float | None = None
    """Bounds of the reward term, both included."""
    call: CallOutcome | None = None
    """Trajectories with a recorded call of this outcome."""
    with_tokens: bool = False
    """Includes the ends and log-probabilities of tokens, which are as large as the texts."""
    with_calls: bool = False
    """Includes the recorded calls, which may be larger than the texts."""
    before: int | None = None
    """Selects the newest trajectories older than this ordinal."""
    after: int | None = None
    """Selects the oldest trajectories newer than this ordinal, in order newest first."""
    limit: int = 50

    def __post_init__(self) -> None:
        _check_page(self.before, self.after, self.limit)
        _check_numbers(self.before, self.after, self.step, self.first_step, self.last_step)
        _check_text(self.text)
        _check_order("steps", self.first_step, self.last_step)
        _check_order("rewards", self.min_reward, self.max_reward)
        _check_order("values of the reward term", self.min_term, self.max_term)
        if not self.term and (self.min_term is not None or self.max_term is not None):
            raise InvalidInput(
                "cannot filter by a reward term: bounds without a term are given; name the term too",
                code="query.contradictory",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPage:
    """Page of trajectories, newest first. It holds fewer than the limit when their texts are long."""

    trajectories: tuple[SampledTrajectory, ...]
    has_older: bool
    has_newer: bool


MAX_BINS = 100

MAX_NAMES = 64
"""Largest number of roles and of reward terms in a histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardQuery:
    """Selects trajectories for a histogram of their rewards, or of a reward term."""

    matching: TrajectoryQuery
    """Trajectories to count. The paging fields are ignored: all matches count."""
    max_bins: int = 20
    """Largest number of bins."""
    term: str = ""
    """Name of a reward term, whose values are then counted; empty for the reward."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_bins <= MAX_BINS:
            raise InvalidInput(
                f"cannot build a reward histogram: max_bins is {self.max_bins}; use 1 to {MAX_BINS}",
                code="query.out_of_range",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBin:
    """Trajectories whose rewards lie in one interval: from `begin`, included, to `end`, excluded."""

    begin: float
    """Lower bound, included."""
    end: float
    """Upper bound, excluded."""
    lowest: float
    """Lowest reward in the bin. A `TrajectoryQuery` from `lowest` to `highest` selects exactly the bin's
    trajectories."""
    highest: float
    """Highest reward in the bin."""
    trajectories: int
    """Trajectories in the bin. Count."""
    groups: int
    """Groups with a trajectory in the bin. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardHistogram:
    """Bins in ascending order, of equal width. Empty bins are omitted."""

    bins: tuple[RewardBin, ...]
    """Bins with at least one trajectory."""
    failed: int
    """Matching members without a reward."""
    endings: Mapping[str, int] = field(default_factory=dict)
    """Matching trajectories with an ending, by ending."""
    roles: Mapping[str, int] = field(default_factory=dict)
    """Matching trajectories with a role, by role: the most frequent ones, at most `MAX_NAMES`."""
    terms: Mapping[str, int] = field(default_factory=dict)
    """Matching trajectories with a reward term, by its name: the most frequent ones, at most `MAX_NAMES`."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Matching trajectories with recorded calls, by outcome of a call that they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuery:
    """Selects sampled groups, newest first. A field that is empty or None matches all."""

    policy: str = ""
    flow: str = ""
    outcome: str = ""
    step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    prompt: str = ""
    """Id of the prompt in its data set."""
    before: int | None = None
    """Selects groups older than this ordinal."""
    limit: int = 50

    def __post_init__(self) -> None:
        _check_page(self.before, None, self.limit)
        _check_numbers(self.before, self.step, self.first_step, self.last_step)
        _check_order("steps", self.first_step, self.last_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """Statistics of the sampled trajectories of one group that belong to one policy."""

    group: GroupId
    policy: PolicyId
    flow: FlowId
    ordinal: int
    """Ordinal of its newest trajectory: the paging key."""
    at: float
    step: int | None
    outcome: str
    trajectories: int
    failed: int
    """Members without a trajectory. The other figures exclude them."""
    truncated: int
    reward_mean: float | None
    """Mean reward of the trajectories; None without any."""
    reward_min: float | None
    reward_max: float | None
    prompt: str = ""
    """Id of its prompt in the data set; empty when not recorded."""
    version: int | None = None
    """For a group of an evaluation, the newest version that wrote its answers; None for others."""

    @property
    def step_or_version(self) -> int | None:
        """Step that trained on the group, or version that an evaluation pinned; None without both."""
        return self.step if self.step is not None else self.version

    def typical(self, members: Iterable[SampledTrajectory]) -> SampledTrajectory | None:
        """Returns the member whose reward is nearest to the mean; None without one that has a trajectory."""
        mean = self.reward_mean or 0.0
        successes = (member for member in members if member.failure is None)
        return min(successes, key=lambda member: (abs(member.reward - mean), member.ordinal), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """Page of groups, newest first."""

    groups: tuple[SampledGroup, ...]
    has_older: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIndexQuery:
    """Asks at which steps, and of which prompts, there are sampled groups."""

    policy: str = ""
    """Empty for all policies."""
    near: int | None = None
    """Returns the steps nearest to this one; None for the newest steps."""
    limit: int = 50
    """Largest number of steps, and of prompts."""

    def __post_init__(self) -> None:
        _check_page(None, None, self.limit)
        _check_numbers(self.near)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPrompt:
    """Prompt with sampled groups of several steps, or of several versions of an evaluation."""

    prompt: str
    """Id of the prompt in its data set."""
    flow: FlowId
    steps: int
    """Different steps, or versions, of its groups. Count."""
    first: int
    """Lowest step or version."""
    last: int
    """Highest step or version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIndex:
    """Steps and prompts with sampled groups."""

    steps: tuple[int, ...]
    """Training steps with groups, ascending."""
    prompts: tuple[SampledPrompt, ...]
    """Prompts with groups of at least two steps or versions; those with most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Selects events, newest first. A field that is empty or None matches all."""

    kinds: tuple[RecordKind, ...] = ()
    subject: str = ""
    text: str = ""
    """Substring of the subject or the rendered sentence; case-insensitive for ASCII letters."""
    before: int | None = None
    """Selects events older than this ordinal."""
    limit: int = 100

    def __post_init__(self) -> None:
        _check_page(self.before, None, self.limit)
        _check_numbers(self.before)
        _check_text(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Page of events, newest first."""

    events: tuple[Event, ...]
    has_older: bool


def _check_page(before: int | None, after: int | None, limit: int) -> None:
    if limit < 1:
        raise InvalidInput(f"cannot read a page: limit is {limit}; request at least 1 entry", code="query.out_of_range")
    if before is not None and after is not None:
        raise InvalidInput(
            "cannot read a page: both `before` and `after` are set; give only one of them", code="query.contradictory"
        )


def _check_numbers(*numbers: int | None) -> None:
    for number in numbers:
        if number is not None and not 0 <= number <= MAX_ORDINAL:
            raise InvalidInput(
                f"cannot read a page: ordinal or step {number} is out of range; use 0 to {MAX_ORDINAL}",
                code="query.out_of_range",
            )


def _check_text(text: str) -> None:
    if len(text) > MAX_SEARCH_CHARS:
        raise InvalidInput(
            f"cannot search: the text has {len(text)} characters; give at most {MAX_SEARCH_CHARS}",
            code="query.text_too_long",
        )


def _check_order(what: str, first: float | None, last: float | None) -> None:
    if first is not None and last is not None and first > last:
        raise InvalidInput(
            f"cannot find {what} from {first:g} to {last:g}: the range is empty; give the smaller value first",
            code="query.contradictory",
        )
