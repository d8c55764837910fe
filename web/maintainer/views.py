"""Maintainer page: state, budgets, scorecard, and proposals that wait for approval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import (
    Budget,
    Maintainer,
    MaintainerMode,
    MaintainerState,
    MaintainerStatus,
    Proposal,
    ProposalState,
)
from astraflow.contract.fleet.pools import FleetStatus, KillScope
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render_summary
from web.components import formats
from web.components.formats import usd
from web.live.followed_fleet import MaintainerSnapshot
from web.maintainer.scorecard import ScorecardView, scorecard_view
from web.pools.plans import PlanView, plan_view
from web.pools.views import KILL_TEXTS
from web.process_settings import Settings

SILENT_AFTER_S = 10.0
"""Age of the last status from which the maintainer counts as silent, in seconds; it reports once a second."""

MODE_TEXTS: Mapping[MaintainerMode, tuple[str, str]] = {
    MaintainerMode.OFF: ("off", "it makes no decisions"),
    MaintainerMode.SHADOW: ("shadow", "its decisions are recorded, not applied"),
    MaintainerMode.PROPOSE: ("propose", "its plans wait for approval"),
    MaintainerMode.AUTO: ("auto", "plans that the guard allows are applied; others wait for approval"),
}
_STATE_TEXTS: Mapping[MaintainerState, tuple[str, str, str]] = {
    MaintainerState.SLEEPING: ("sleeping", "until the next signal", "good"),
    MaintainerState.AWAKE: ("awake", "the model decides", "busy"),
    MaintainerState.BACKING_OFF: ("backing off", "the model API fails; the sizing rule continues", "warn"),
    MaintainerState.OVER_BUDGET: ("over budget", "the sizing rule continues", "warn"),
    MaintainerState.STOPPED: ("stopped", "by the kill switch", "bad"),
}
_COUNTERS: Mapping[str, str] = {
    "wakes": "wakes",
    "tool_calls": "tool calls",
    "plans": "plans",
    "applied": "applied",
    "proposed": "proposed",
    "recorded": "recorded only",
    "refused": "refused",
    "conflict": "superseded",
    "verified": "effect verified",
    "missed": "effect missed",
    "failures": "model failures",
    "notices_dropped": "notices dropped",
    "tokens": "tokens",
    "usd": "dollars",
}
"""Labels of counters, in the order in which they are shown; counters at zero are left out."""
_ALWAYS = ("wakes", "tokens", "usd")
_UNITS = {"tool_calls": "tool calls", "tokens": "tokens", "seconds": "time", "usd": "dollars", "wakes": "wakes"}
_PROPOSALS: Mapping[ProposalState, tuple[str, str]] = {
    ProposalState.WAITING: ("waiting", "busy"),
    ProposalState.APPROVED: ("approved", "good"),
    ProposalState.REJECTED: ("rejected", "bad"),
    ProposalState.EXPIRED: ("expired", "off"),
    ProposalState.SUPERSEDED: ("superseded", "off"),
}
NOTE_KINDS = (
    RecordKind.NOTE,
    RecordKind.ESCALATE,
    RecordKind.PROPOSE,
    RecordKind.REJECT,
    RecordKind.MAINTAINER_MODE,
    RecordKind.MAINTAINER_WAKE,
)
SHOWN_NOTES = 8
CONFIGURATIONS = (
    (
        "Hosted model (Messages API); pip install 'astraflow[llm]', key in ANTHROPIC_API_KEY",
        """mode = "propose"

[model]
kind = "messages_api"
model = "NAME-OF-THE-MODEL"
prices = { input = 3.0, output = 15.0 }  # your prices

[day]
usd = 5.0
""",
    ),
    (
        "Own endpoint (chat completions)",
        """mode = "propose"

[model]
kind = "chat_completions"
base_url = "http://127.0.0.1:8000/v1"
model = "NAME-OF-THE-MODEL"

[day]
tokens = 1000000
""",
    ),
)
NEAR_LIMIT_SHARE = 0.8
"""Used share of a budget from which it is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBar:
    """Used part of a budget."""

    name: str
    used: str
    limit: str
    percent: float
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRow:
    """A plan that waits or waited for approval."""

    proposal: Proposal
    effects: PlanView
    state: str
    tone: str

    @property
    def is_waiting(self) -> bool:
        """True while it waits for a decision."""
        return self.proposal.state is ProposalState.WAITING

    @property
    def decided(self) -> str:
        """Name of the person who decided, and the reason; empty while it waits."""
        return ": ".join(filter(None, (self.proposal.decided_by, self.proposal.decision_reason)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerView:
    """View model of the page."""

    maintainer: Maintainer | None
    """None while the fleet service has not answered."""
    problem: str
    serve_command: str
    run_command: str = "astraflow run RECIPE --fleet --maintainer scripted"
    configurations: tuple[tuple[str, str], ...] = CONFIGURATIONS
    """Examples of `maintainer.toml`: title and text."""
    kill: str = ""
    """Scope of the kill switch, in words; empty while it is off."""
    kill_reason: str = ""
    state: tuple[str, str, str] = ("", "", "")
    """State of its process: in a word, in a sentence, and its tone."""
    wake_bars: tuple[BudgetBar, ...] = ()
    day_bars: tuple[BudgetBar, ...] = ()
    counters: tuple[tuple[str, str], ...] = ()
    scorecard: ScorecardView | None = None
    waiting: tuple[ProposalRow, ...] = ()
    decided: tuple[ProposalRow, ...] = ()

    @property
    def status(self) -> MaintainerStatus | None:
        """Latest status of its process; None without one."""
        return self.maintainer.status if self.maintainer is not None else None

    @property
    def is_silent(self) -> bool:
        """True if its process has stopped to report."""
        age_s = self.maintainer.status_age_s if self.maintainer is not None else None
        return age_s is None or age_s > SILENT_AFTER_S


def maintainer_view(look: MaintainerSnapshot, fleet: FleetStatus | None, settings: Settings) -> MaintainerView:
    """Builds the page from the newest snapshot."""
    maintainer = look.maintainer
    command = (
        f"astraflow serve maintainer maintainer.toml --dataflow {settings.dataflow or 'HOST:PORT'} "
        f"--fleet {settings.fleet or '127.0.0.1:7070'}"
    )
    view = MaintainerView(maintainer=maintainer, problem=look.problem, serve_command=command)
    if maintainer is None:
        return view
    rows = [proposal_row(proposal, fleet) for proposal in look.proposals]
    is_killed = fleet is not None and fleet.kill is not KillScope.NONE
    view = replace(
        view,
        kill=KILL_TEXTS[fleet.kill] if fleet is not None and is_killed else "",
        kill_reason=fleet.kill_reason if fleet is not None else "",
        waiting=tuple(row for row in rows if row.is_waiting),
        decided=tuple(row for row in rows if not row.is_waiting),
    )
    return view if maintainer.status is None else _with_status(view, maintainer.status)


def _with_status(view: MaintainerView, status: MaintainerStatus) -> MaintainerView:
    silent = ("no heartbeat", "the sizing rule continues", "bad")
    bars = [(budget.scope, _bar(budget)) for budget in status.budgets]
    return replace(
        view,
        state=silent if view.is_silent else _STATE_TEXTS[status.state],
        wake_bars=tuple(bar for scope, bar in bars if scope == "wake"),
        day_bars=tuple(bar for scope, bar in bars if scope == "day"),
        counters=_counters(status.counters),
        scorecard=scorecard_view(status),
    )


def proposal_row(proposal: Proposal, fleet: FleetStatus | None) -> ProposalRow:
    """Returns a proposal with the effects of its plan."""
    name = proposal.plan.request.pool
    pool = next((other for other in fleet.pools if other.spec.id == name), None) if fleet is not None else None
    state, tone = _PROPOSALS[proposal.state]
    return ProposalRow(proposal=proposal, effects=plan_view(proposal.plan, pool), state=state, tone=tone)


def latest_notes(notes: Sequence[Decision]) -> list[tuple[Decision, int]]:
    """Returns entries of `NOTE_KINDS`, newest first; of equal texts the newest, with their number."""
    times = Counter(map(_note_key, notes))
    latest = {_note_key(note): note for note in reversed(notes)}
    shown = sorted(latest.values(), key=lambda note: -note.ordinal)[:SHOWN_NOTES]
    return [(note, times[_note_key(note)]) for note in shown]


def _note_key(note: Decision) -> tuple[str, str, str, str]:
    return note.kind.value, note.subject, note.actor, render_summary(note)


def _counters(counters: Mapping[str, float]) -> tuple[tuple[str, str], ...]:
    names = [*_COUNTERS, *sorted(counters.keys() - _COUNTERS.keys())]
    return tuple(
        (
            _COUNTERS.get(name, name.replace("_", " ")),
            usd(counters[name]) if name == "usd" else formats.count(counters[name]),
        )
        for name in names
        if name in counters and (counters[name] or name in _ALWAYS)
    )


def _bar(budget: Budget) -> BudgetBar:
    format_value = {"usd": usd, "seconds": formats.duration}.get(budget.unit, formats.count)
    share = min(1.0, budget.used / budget.limit) if budget.limit > 0 else 1.0
    return BudgetBar(
        name=_UNITS.get(budget.unit, budget.unit),
        used=format_value(budget.used),
        limit=format_value(budget.limit),
        percent=100 * share,
        tone="bad" if share >= 1.0 else "warn" if share >= NEAR_LIMIT_SHARE else "good",
    )
