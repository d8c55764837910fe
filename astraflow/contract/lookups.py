"""What can be asked about what a run keeps to be looked at: sampled trajectories, their groups, events, its history."""

from dataclasses import dataclass

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, GroupId, PolicyId
from astraflow.contract.reports import Event, SampledTrajectory

MAX_TEXT_LETTERS = 1000
"""Longest text that can be searched for."""

MAX_NUMBER = 2**63 - 1
"""Largest ordinal or step that can be kept."""

RESOLUTIONS_S = (1, 60)
"""Periods at which the history is kept: every report of the last minutes, one point a minute for the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQuery:
    """Which sampled trajectories, newest first. What is empty or None matches all."""

    policy: str = ""
    flow: str = ""
    group: str = ""
    task: str = ""
    node: str = ""
    fate: str = ""
    step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    """Trainer steps from `first_step` to `last_step`, both included; whatever was not trained is in no step."""
    min_reward: float | None = None
    max_reward: float | None = None
    """Both included; members that failed have no reward and are left out by either."""
    text: str = ""
    """Part of the prompt, the completion or a failure's message; ASCII letters match in either case."""
    is_truncated: bool | None = None
    is_failed: bool | None = None
    before: int | None = None
    """Older than this ordinal: the newest of those."""
    after: int | None = None
    """Newer than this ordinal: the oldest of those, newest first all the same."""
    limit: int = 50

    def __post_init__(self) -> None:
        _check_page(self.before, self.after, self.limit)
        _check_numbers(self.before, self.after, self.step, self.first_step, self.last_step)
        _check_text(self.text)
        _check_order("steps", self.first_step, self.last_step)
        _check_order("rewards", self.min_reward, self.max_reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPage:
    """Newest first. A page holds fewer than were asked for when their texts are long."""

    trajectories: tuple[SampledTrajectory, ...]
    has_older: bool
    has_newer: bool


MOST_BINS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardQuery:
    """How the rewards of these trajectories are spread."""

    matching: TrajectoryQuery
    """Its page is left out: all that match are counted."""
    at_most: int = 20
    """Bins."""

    def __post_init__(self) -> None:
        if not 1 <= self.at_most <= MOST_BINS:
            raise InvalidInput(f"rewards fall into 1 to {MOST_BINS} bins, not {self.at_most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBin:
    """Trajectories whose rewards lie close together: from `begin` to before `end`."""

    begin: float
    end: float
    lowest: float
    """The least of them. With `highest`, a `TrajectoryQuery` finds exactly this bin's."""
    highest: float
    trajectories: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpread:
    """Bins in order, of one width; those that are empty are left out."""

    bins: tuple[RewardBin, ...]
    failed: int
    """Members that match and have no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuery:
    """Which sampled groups, newest first. What is empty or None matches all."""

    policy: str = ""
    flow: str = ""
    fate: str = ""
    step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    before: int | None = None
    """Older than this ordinal."""
    limit: int = 50

    def __post_init__(self) -> None:
        _check_page(self.before, None, self.limit)
        _check_numbers(self.before, self.step, self.first_step, self.last_step)
        _check_order("steps", self.first_step, self.last_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """The sampled trajectories of one group that belong to one policy, in figures."""

    group: GroupId
    policy: PolicyId
    flow: FlowId
    ordinal: int
    """Of its newest trajectory: the key for paging."""
    at: float
    step: int | None
    fate: str
    trajectories: int
    failed: int
    """Members without a trajectory; they are in none of the other figures."""
    truncated: int
    reward_mean: float | None
    """Over the trajectories; None without any."""
    reward_min: float | None
    reward_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """Newest first."""

    groups: tuple[SampledGroup, ...]
    has_older: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events, newest first. What is empty or None matches all."""

    kinds: tuple[str, ...] = ()
    subject: str = ""
    text: str = ""
    """Part of the subject or the message; ASCII letters match in either case."""
    before: int | None = None
    """Older than this ordinal."""
    limit: int = 100

    def __post_init__(self) -> None:
        _check_page(self.before, None, self.limit)
        _check_numbers(self.before)
        _check_text(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Newest first."""

    events: tuple[Event, ...]
    has_older: bool


def _check_page(before: int | None, after: int | None, limit: int) -> None:
    if limit < 1:
        raise InvalidInput(f"a page of {limit} entries is none: ask for at least one")
    if before is not None and after is not None:
        raise InvalidInput("a page goes either back from `before` or forward from `after`: give one of them")


def _check_numbers(*numbers: int | None) -> None:
    for number in numbers:
        if number is not None and not 0 <= number <= MAX_NUMBER:
            raise InvalidInput(f"{number} is no ordinal or step: they go from 0 to {MAX_NUMBER}")


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT_LETTERS:
        raise InvalidInput(f"{len(text)} letters are too many to search for: give at most {MAX_TEXT_LETTERS}")


def _check_order(what: str, first: float | None, last: float | None) -> None:
    if first is not None and last is not None and first > last:
        raise InvalidInput(f"no {what} lie between {first:g} and {last:g}: give the smaller one first")
