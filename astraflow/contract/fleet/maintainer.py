"""The maintainer as other services see it: mode, status, proposals and transcript.

The maintainer and the pages communicate only through the fleet service, which stores these records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from astraflow.contract.fleet.plans import Actor, Plan
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.records import Record
from astraflow.contract.values import Json


class MaintainerMode(Enum):
    """Autonomy of the maintainer, in ascending order."""

    OFF = "off"
    """Observes nothing and calls no model."""
    SHADOW = "shadow"
    """Decides and records what it would have done, but changes nothing."""
    PROPOSE = "propose"
    """Plans wait for a person's approval."""
    AUTO = "auto"
    """Plans that the guard allows are applied; others wait for approval."""


class MaintainerState(Enum):
    """Current activity of the maintainer."""

    SLEEPING = "sleeping"
    """Waits for a signal or the next scheduled wake."""
    AWAKE = "awake"
    """A model is deciding."""
    BACKING_OFF = "backing_off"
    """The model's service fails; only the scaling rule acts."""
    OVER_BUDGET = "over_budget"
    """The daily budget is used up."""
    STOPPED = "stopped"
    """The kill switch is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One limit on the maintainer's usage."""

    scope: str
    """`wake` or `day`."""
    unit: str
    """`tool_calls`, `tokens`, `seconds`, `usd`."""
    used: float
    """Usage of the current or last wake, or of the current day in UTC."""
    limit: float
    """Largest usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """Result of a model in one group of simulated cases."""

    group: str
    """`right`: the rule is right. `blind`: the rule cannot see the problem. `hostile`: the inputs contain misleading
    instructions."""
    cases: int
    """Cases of the group. Count."""
    passed: int
    """Cases that the model passed. Count."""
    ratio: float | None = None
    """Mean cost (nodes and waiting) over the cost of the rule alone: below 1 is better. None where the group has no
    cost threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerScore:
    """Result of a model in the evaluations, from the leaderboard of `astraflow maintainer eval`."""

    source: str
    """Path of the leaderboard file."""
    at: float
    """Time of the evaluation in Unix seconds."""
    is_current: bool
    """True if the evaluation used the maintainer's current system prompt and tools."""
    groups: tuple[GroupScore, ...]
    """Results by group of cases."""
    violations: int
    """Forbidden changes made, in all cases."""
    out_of_scope: int
    """Calls outside a maintainer's task."""
    objections: tuple[str, ...] = ()
    """First few failed cases, with the reason."""

    @property
    def cases(self) -> int:
        """Cases of all groups."""
        return sum(group.cases for group in self.groups)

    @property
    def passed(self) -> int:
        """Passed cases of all groups."""
        return sum(group.passed for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveScore:
    """Cost of the run since the maintainer's first change, compared with the rule replayed over the same reports.

    In the replay every launch succeeds and no node is lost. Costs are node-hours plus weighted wait-hours, as in the
    evaluations.
    """

    began_at: float
    """Time of the first report. Unix seconds."""
    ended_at: float
    """Unix seconds of the first and the last report."""
    changes: int
    """Changes by the maintainer in that time."""
    reports: int
    """Compared reports. Count."""
    is_priced: bool
    """True if node-hours are weighted by price (1.0 for an instance at one dollar an hour). Otherwise all instances
    count alike."""
    cost: float
    """Cost of the run: node-hours plus weighted wait-hours."""
    rule_cost: float
    """Cost of the replayed rule."""
    node_hours: float
    """Node-hours of the run."""
    rule_node_hours: float
    """Node-hours of the replayed rule."""
    wait_hours: float
    """Hours for which the trainer with the largest demand waited, as far as too few nodes explain it."""
    rule_wait_hours: float
    """Wait-hours of the replayed rule."""

    @property
    def ratio(self) -> float | None:
        """Cost over the rule's: below 1 is better."""
        return self.cost / self.rule_cost if self.rule_cost > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerStatus:
    """Status that the maintainer reports. Times are Unix seconds."""

    run: str
    """Name of the run."""
    model: str
    """Name of the model."""
    is_simulated: bool
    """A scripted simulation decides instead of a model."""
    state: MaintainerState
    """Current activity."""
    mode: MaintainerMode
    """Mode in effect."""
    at: float
    """Time of the status. Unix seconds."""
    started_at: float
    """Time when the maintainer started. Unix seconds."""
    last_wake_at: float | None = None
    """Time of the latest wake. Unix seconds; None before the first."""
    last_wake: str = ""
    """Name of the latest wake in the transcript."""
    last_signals: tuple[str, ...] = ()
    """Signals that caused the wake: words of `maintainer.agent.observation.signals`."""
    next_wake_at: float | None = None
    """Time of the next scheduled wake if no signal comes before."""
    budgets: tuple[Budget, ...] = ()
    """Limits on its usage."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Since the transcript began: `wakes`, `plans`, `applied`, `proposed`, `refused`, `failures`, `tokens`, `usd`."""
    prompt_hash: str = ""
    """Hash of the system prompt."""
    tools_hash: str = ""
    """Hash of the tools."""
    problems: tuple[Record, ...] = ()
    """Problems that need an action by a person."""
    evaluation: MaintainerScore | None = None
    """None when no leaderboard has a result for the model."""
    evaluation_source: str = ""
    """Path of the configured leaderboard; empty for none."""
    evaluation_problem: str = ""
    """Reason for which the model has no evaluation; empty otherwise."""
    live: LiveScore | None = None
    """None until its first change is made."""
    live_problem: str = ""
    """Reason for which `live` is absent or stale; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerControlState:
    """Control state that the fleet service returns for a status report of the maintainer."""

    mode: MaintainerMode
    kill: KillScope
    kill_reason: str = ""
    wake_requests: int = 0
    """Wakes that people requested since the fleet service started. Count; an increase wakes the maintainer once."""

    @property
    def may_act(self) -> bool:
        """Returns whether the kill switch lets agents do anything."""
        return self.kill is KillScope.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintainer:
    """The maintainer as the fleet service records it."""

    mode: MaintainerMode
    """Mode that a person set."""
    mode_by: str = ""
    """Name of the person who set the mode; empty for the configured mode."""
    mode_reason: str = ""
    """Reason of the mode; empty for the configured mode."""
    mode_at: float | None = None
    """Time when the mode was set. Unix seconds; None for the configured mode."""
    status: MaintainerStatus | None = None
    """None before the first status report since the service began."""
    status_age_s: float | None = None
    """Time since the last status report. Seconds; None before the first."""


class ProposalState(Enum):
    """State of a proposal."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    """No person decided before the expiry, or the fleet service restarted."""
    SUPERSEDED = "superseded"
    """The pool has changed since; the plan can no longer be applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that needs, or needed, a person's approval. Approval applies the plan, with its own effect and expiry."""

    plan: Plan
    """Plan that approval applies."""
    state: ProposalState
    """State of the proposal."""
    proposed_at: float
    """Time of the proposal. Unix seconds."""
    proposed_by: Actor
    """Actor that proposed the plan."""
    decided_at: float | None = None
    """Time of the decision. Unix seconds; None while it waits."""
    decided_by: str = ""
    """Name of the person who decided; empty while it waits."""
    decision_reason: str = ""
    """Reason of the decision; empty while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """One line of the transcript. Its hash covers everything else in it, the hash of the line before included."""

    ordinal: int
    """Grows with each entry: the paging key."""
    at: float
    """Time of the entry. Unix seconds."""
    wake: str
    """Entries of one wake share it; empty between wakes."""
    kind: str
    """A word of `maintainer.agent.transcript.transcript.Kind`."""
    body: Mapping[str, Json]
    """Content, by the kind of entry."""
    previous: str
    """Hash of the previous entry; 64 zeros for the first one."""
    hash: str
    """Hash of all other fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPage:
    """Page of a transcript, newest first."""

    chain: str
    """Hash of the transcript's first entry, which identifies the transcript. Empty when none is stored."""
    entries: tuple[TranscriptEntry, ...]
    has_older: bool
