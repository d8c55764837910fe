"""Maintainer page: state, budgets, scorecard, and proposals that wait for approval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from astraflow.contract.records import Record, render_summary
from web.components import formats
from web.components.formats import usd
from web.decisions.views import KIND_TONES
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
_MODE_TONES = {
    MaintainerMode.OFF: "off",
    MaintainerMode.SHADOW: "busy",
    MaintainerMode.PROPOSE: "good",
    MaintainerMode.AUTO: "warn",
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

    plan: PlanView
    proposer: str
    proposed_at: float
    state: str
    tone: str
    decided_at: float | None
    decided: str
    """Name of the person who decided, and the reason; empty while it waits."""
    is_waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRow:
    """A note of the maintainer or of a person."""

    id: str
    at: float
    kind: str
    tone: str
    pool: str
    actor: str
    message: str
    reason: str
    times: int
    """Number of recent notes with the same text; the newest is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerView:
    """View model of the page."""

    is_known: bool
    """Whether the fleet service has answered."""
    problem: str
    run_command: str
    serve_command: str
    configurations: tuple[tuple[str, str], ...] = CONFIGURATIONS
    """Examples of `maintainer.toml`: title and text."""
    mode: str = ""
    mode_tone: str = ""
    mode_text: str = ""
    mode_by: str = ""
    mode_reason: str = ""
    mode_at: float | None = None
    kill: str = ""
    kill_reason: str = ""
    has_status: bool = False
    is_silent: bool = False
    last_report_age: str = ""
    model: str = ""
    is_simulated: bool = False
    state: str = ""
    state_text: str = ""
    state_tone: str = ""
    started_at: float | None = None
    woke_at: float | None = None
    wake: str = ""
    signals: tuple[str, ...] = ()
    next_at: float | None = None
    wake_bars: tuple[BudgetBar, ...] = ()
    day_bars: tuple[BudgetBar, ...] = ()
    counters: tuple[tuple[str, str], ...] = ()
    prompt: str = ""
    problems: tuple[Record, ...] = ()
    scorecard: ScorecardView | None = None
    waiting: tuple[ProposalRow, ...] = ()
    decided: tuple[ProposalRow, ...] = ()


def maintainer_view(look: MaintainerSnapshot, fleet: FleetStatus | None, settings: Settings) -> MaintainerView:
    """Builds the page from the newest snapshot."""
    maintainer = look.maintainer
    commands: dict[str, Any] = {
        "run_command": "astraflow run RECIPE --fleet --maintainer scripted",
        "serve_command": (
            f"astraflow serve maintainer maintainer.toml --dataflow {settings.dataflow or 'HOST:PORT'} "
            f"--fleet {settings.fleet or '127.0.0.1:7070'}"
        ),
    }
    if maintainer is None:
        return MaintainerView(is_known=False, problem=look.problem, **commands)
    rows = [proposal_row(proposal, fleet) for proposal in look.proposals]
    kill = fleet.kill if fleet is not None else KillScope.NONE
    return MaintainerView(
        is_known=True,
        problem=look.problem,
        **commands,
        **_mode_fields(maintainer),
        kill=KILL_TEXTS[kill] if kill is not KillScope.NONE else "",
        kill_reason=fleet.kill_reason if fleet is not None else "",
        **(_status(maintainer.status, maintainer.status_age_s) if maintainer.status is not None else {}),
        waiting=tuple(row for row in rows if row.is_waiting),
        decided=tuple(row for row in rows if not row.is_waiting),
    )


def proposal_row(proposal: Proposal, fleet: FleetStatus | None) -> ProposalRow:
    """Returns a proposal with the effects of its plan."""
    name = proposal.plan.request.pool
    pool = next((other for other in fleet.pools if other.spec.id == name), None) if fleet is not None else None
    state, tone = _PROPOSALS[proposal.state]
    reason_text = f": {proposal.decision_reason}" if proposal.decision_reason else ""
    return ProposalRow(
        plan=plan_view(proposal.plan, pool),
        proposer=proposal.proposed_by.name,
        proposed_at=proposal.proposed_at,
        state=state,
        tone=tone,
        decided_at=proposal.decided_at,
        decided=f"{proposal.decided_by}{reason_text}" if proposal.decided_by else "",
        is_waiting=proposal.state is ProposalState.WAITING,
    )


def note_rows(decisions: Sequence[Decision]) -> tuple[NoteRow, ...]:
    """Returns notes, escalations and messages to the maintainer, newest first; equal texts are merged."""
    notes = [decision for decision in decisions if decision.kind in NOTE_KINDS]
    times = Counter(map(_note_key, notes))
    latest = {_note_key(note): note for note in reversed(notes)}
    shown = sorted(latest.values(), key=lambda note: -note.ordinal)[:SHOWN_NOTES]
    return tuple(_note_row(note, times=times[_note_key(note)]) for note in shown)


def _note_key(note: Decision) -> tuple[str, str, str, str]:
    return note.kind.value, note.subject, note.actor, render_summary(note)


def _note_row(note: Decision, *, times: int) -> NoteRow:
    return NoteRow(
        id=f"fleet-{note.ordinal}",
        at=note.at,
        kind=note.kind.label.lower(),
        tone=KIND_TONES.get(note.kind, "off"),
        pool=note.subject,
        actor=note.actor,
        message=render_summary(note),
        reason=note.reason,
        times=times,
    )


def _mode_fields(maintainer: Maintainer) -> dict[str, Any]:
    mode, text = MODE_TEXTS[maintainer.mode]
    return {
        "mode": mode,
        "mode_tone": _MODE_TONES[maintainer.mode],
        "mode_text": text,
        "mode_by": maintainer.mode_by,
        "mode_reason": maintainer.mode_reason,
        "mode_at": maintainer.mode_at,
    }


def _status(status: MaintainerStatus, age_s: float | None) -> dict[str, Any]:
    state, text, tone = _STATE_TEXTS[status.state]
    is_silent = age_s is None or age_s > SILENT_AFTER_S
    bars = [(budget.scope, _bar(budget)) for budget in status.budgets]
    return {
        "has_status": True,
        "is_silent": is_silent,
        "last_report_age": formats.duration(age_s),
        "model": status.model,
        "is_simulated": status.is_simulated,
        "state": "no heartbeat" if is_silent else state,
        "state_text": "the sizing rule continues" if is_silent else text,
        "state_tone": "bad" if is_silent else tone,
        "started_at": status.started_at,
        "woke_at": status.last_wake_at,
        "wake": status.last_wake,
        "signals": tuple(signal.replace("_", " ") for signal in status.last_signals),
        "next_at": None if is_silent else status.next_wake_at,
        "wake_bars": tuple(bar for scope, bar in bars if scope == "wake"),
        "day_bars": tuple(bar for scope, bar in bars if scope == "day"),
        "counters": _counters(status.counters),
        "prompt": f"prompt {status.prompt_hash[:12]}, tools {status.tools_hash[:12]}",
        "problems": status.problems,
        "scorecard": scorecard_view(status),
    }


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
