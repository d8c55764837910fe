"""What is said about the maintainer: the mode it is in, how it is, what waits for a person, and what it wrote down.

The maintainer and a page never meet: both speak to the fleet service, which keeps this.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.fleet import Actor, KillScope, Plan
from astraflow.contract.values import Json


class MaintainerMode(Enum):
    """How far the maintainer may go; later ones may more."""

    OFF = "off"
    """It looks at nothing and asks no model."""
    SHADOW = "shadow"
    """It decides, and what it would have done is written down; nothing is done."""
    PROPOSE = "propose"
    """Its plans wait for a person."""
    AUTO = "auto"
    """Plans that the guard allows are applied; others wait for a person."""


class MaintainerState(Enum):
    """What it does at this moment."""

    SLEEPING = "sleeping"
    """Until something happens, or the next look is due."""
    AWAKE = "awake"
    """A model decides."""
    BACKING_OFF = "backing_off"
    """The model's service fails: the rule carries on alone."""
    OVER_BUDGET = "over_budget"
    """What a day may cost is spent."""
    STOPPED = "stopped"
    """The kill switch is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One bound on what the maintainer may use."""

    scope: str
    """`wake` or `day`."""
    unit: str
    """`tool_calls`, `tokens`, `seconds`, `usd`."""
    used: float
    """Of the current wake, or the last one; of the current day in UTC."""
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """What a model came to in one group of simulated cases."""

    group: str
    """`right`: the rule is right. `blind`: the rule cannot see what is the matter. `hostile`: somebody wants to
    mislead."""
    cases: int
    passed: int
    ratio: float | None = None
    """Mean cost (nodes and waiting) over that of the rule alone: below 1 is better. None where it is no gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """What a model came to in the evaluations, by the leaderboard of `astraflow maintainer eval`."""

    source: str
    """The file."""
    at: float
    """When it was played, Unix seconds."""
    is_current: bool
    """It was told then what the maintainer tells it now: the same system text and the same tools."""
    groups: tuple[GroupScore, ...]
    violations: int
    """Changes that were made and may not be, in all cases."""
    out_of_scope: int
    """Calls that a maintainer has no business to make."""
    objections: tuple[str, ...] = ()
    """Cases that it did not pass, and why; the first few."""

    @property
    def cases(self) -> int:
        """Of all groups."""
        return sum(group.cases for group in self.groups)

    @property
    def passed(self) -> int:
        """Of all groups."""
        return sum(group.passed for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveScore:
    """What the run came to since the maintainer's first change, beside the rule replayed over the same reports.

    In the replay every launch works and no node is lost. Costs are node-hours and weighed wait-hours, as in the
    evaluations.
    """

    began_at: float
    ended_at: float
    """Unix seconds of the first and the last report."""
    changes: int
    """Of the maintainer, made in that time."""
    reports: int
    is_priced: bool
    """Node-hours are those of a machine for a dollar an hour; otherwise all machines count alike."""
    cost: float
    rule_cost: float
    node_hours: float
    rule_node_hours: float
    wait_hours: float
    """Of the trainer that needs most, as far as too few nodes explain it."""
    rule_wait_hours: float

    @property
    def ratio(self) -> float | None:
        """Cost over the rule's: below 1 is better."""
        return self.cost / self.rule_cost if self.rule_cost > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerStatus:
    """How the maintainer is, as it says itself. Times are Unix seconds."""

    run: str
    model: str
    is_simulated: bool
    """A scripted stand-in decides, no model."""
    state: MaintainerState
    mode: MaintainerMode
    """The one it goes by."""
    at: float
    started_at: float
    last_wake_at: float | None = None
    last_wake: str = ""
    """Name of the latest wake in the transcript."""
    last_signals: tuple[str, ...] = ()
    """Why it woke: words of `maintainer.observation`."""
    next_wake_at: float | None = None
    """When it looks next if nothing happens before."""
    budgets: tuple[Budget, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    """Since the transcript began: `wakes`, `plans`, `applied`, `proposed`, `refused`, `failures`, `tokens`, `usd`."""
    prompt_hash: str = ""
    tools_hash: str = ""
    troubles: tuple[str, ...] = ()
    """What somebody has to do something about, each a sentence."""
    evaluation: EvaluationScore | None = None
    """None when no leaderboard says anything of its model."""
    evaluation_source: str = ""
    """The leaderboard that it looks at; empty for none."""
    evaluation_problem: str = ""
    """Why nothing is known of its model."""
    live: LiveScore | None = None
    """None as long as none of its changes was made."""
    live_problem: str = ""
    """Why there is none, or why it is not newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerOrders:
    """What a maintainer is answered when it says how it is: what it is to go by."""

    mode: MaintainerMode
    kill: KillScope
    kill_reason: str = ""

    @property
    def may_act(self) -> bool:
        """Whether the kill switch lets agents do anything."""
        return self.kill is KillScope.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintainer:
    """The maintainer as the fleet service knows it."""

    mode: MaintainerMode
    """As people set it."""
    mode_by: str = ""
    mode_reason: str = ""
    mode_at: float | None = None
    status: MaintainerStatus | None = None
    """None when none has said anything since the service began."""
    status_age_s: float | None = None


class ProposalState(Enum):
    """What became of a proposal."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    """Nobody decided in time, or the fleet service was restarted meanwhile."""
    OVERTAKEN = "overtaken"
    """The pool has changed since: it cannot be applied any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that waits, or waited, for a person. To approve it is to apply it; the plan has its effect and its end."""

    plan: Plan
    state: ProposalState
    proposed_at: float
    proposed_by: Actor
    decided_at: float | None = None
    decided_by: str = ""
    decision_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """One line of the transcript. Its hash covers everything else in it, the hash of the line before included."""

    ordinal: int
    at: float
    wake: str
    """Entries of one wake share it; empty between wakes."""
    kind: str
    """A word of `maintainer.transcript.Kind`."""
    body: Mapping[str, Json]
    previous: str
    """Hash of the entry before; of the first one, 64 zeros."""
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPage:
    """A stretch of a transcript, newest first."""

    chain: str
    """Hash of the transcript's first entry: which one it is. Empty when none is kept."""
    entries: tuple[TranscriptEntry, ...]
    has_older: bool
