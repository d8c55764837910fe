"""The maintainer as its page shows it: how it is, what it has used, and what waits for a person."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.fleet import Decision, FleetStatus, KillScope
from astraflow.contract.maintenance import (
    Budget,
    Maintainer,
    MaintainerMode,
    MaintainerState,
    MaintainerStatus,
    Proposal,
    ProposalState,
)
from web.feed.maintainer_watch import MaintainerLook
from web.present import formats
from web.present.decisions import KINDS
from web.present.plans import PlanView, plan_view
from web.present.pools import KILL_TEXTS, usd
from web.present.standing import StandingView, standing_view
from web.settings import Settings

SILENT_AFTER_S = 10.0
"""It says how it is once a second."""

MODE_TEXTS: Mapping[MaintainerMode, tuple[str, str]] = {
    MaintainerMode.OFF: ("off", "it looks at nothing"),
    MaintainerMode.SHADOW: ("shadow", "it decides, and what it would do is only written down"),
    MaintainerMode.PROPOSE: ("propose", "its plans wait for a person"),
    MaintainerMode.AUTO: ("auto", "plans that the guard allows are applied; others wait for a person"),
}
_MODE_TONES = {
    MaintainerMode.OFF: "off",
    MaintainerMode.SHADOW: "busy",
    MaintainerMode.PROPOSE: "good",
    MaintainerMode.AUTO: "warn",
}
_STATE_TEXTS: Mapping[MaintainerState, tuple[str, str, str]] = {
    MaintainerState.SLEEPING: ("asleep", "until something happens", "good"),
    MaintainerState.AWAKE: ("awake", "the model decides", "busy"),
    MaintainerState.BACKING_OFF: ("backing off", "the model's service fails, the rule carries on", "warn"),
    MaintainerState.OVER_BUDGET: ("over budget", "the rule carries on", "warn"),
    MaintainerState.STOPPED: ("stopped", "by the kill switch", "bad"),
}
_COUNTERS: Mapping[str, str] = {
    "wakes": "wakes",
    "tool_calls": "tool calls",
    "plans": "plans",
    "applied": "applied",
    "proposed": "proposed",
    "recorded": "only written down",
    "refused": "refused",
    "conflict": "overtaken",
    "verified": "came off",
    "missed": "did not come off",
    "failures": "failures of the model",
    "notices_lost": "notices lost",
    "tokens": "tokens",
    "usd": "dollars",
}
"""In the order of what happens; those that never happened are left out."""
_ALWAYS = ("wakes", "tokens", "usd")
_UNITS = {"tool_calls": "tool calls", "tokens": "tokens", "seconds": "time", "usd": "dollars", "wakes": "wakes"}
_PROPOSALS: Mapping[ProposalState, tuple[str, str]] = {
    ProposalState.WAITING: ("waits", "busy"),
    ProposalState.APPROVED: ("approved", "good"),
    ProposalState.REJECTED: ("rejected", "bad"),
    ProposalState.EXPIRED: ("expired", "off"),
    ProposalState.OVERTAKEN: ("overtaken", "off"),
}
NOTE_KINDS = ("note", "escalate", "propose", "reject", "maintainer_mode")
SHOWN_NOTES = 8
SOON = 0.8
"""A budget that is used to this share is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBar:
    """How much of a budget is used."""

    name: str
    used: str
    limit: str
    percent: float
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRow:
    """A plan that waits or waited for a person."""

    plan: PlanView
    proposer: str
    proposed_at: float
    state: str
    tone: str
    decided_at: float | None
    decided: str
    """Who decided, and why."""
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRow:
    """A line for whoever comes next."""

    id: str
    at: float
    kind: str
    tone: str
    pool: str
    actor: str
    message: str
    reason: str
    times: int
    """Lately, the same words; this is the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerView:
    """The whole of it."""

    is_known: bool
    """The fleet service has answered."""
    problem: str
    run_command: str
    serve_command: str
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
    heard: str = ""
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
    troubles: tuple[str, ...] = ()
    standing: StandingView | None = None
    waiting: tuple[ProposalRow, ...] = ()
    decided: tuple[ProposalRow, ...] = ()


def maintainer_view(look: MaintainerLook, fleet: FleetStatus | None, settings: Settings) -> MaintainerView:
    """As it is now."""
    known = look.maintainer
    commands: dict[str, Any] = {
        "run_command": "astraflow run RECIPE --fleet --maintainer scripted",
        "serve_command": (
            f"astraflow serve maintainer maintainer.toml --dataflow {settings.dataflow} "
            f"--fleet {settings.fleet or '127.0.0.1:7070'}"
        ),
    }
    if known is None:
        return MaintainerView(is_known=False, problem=look.problem, **commands)
    rows = [proposal_row(proposal, fleet) for proposal in look.proposals]
    kill = fleet.kill if fleet is not None else KillScope.NONE
    return MaintainerView(
        is_known=True,
        problem=look.problem,
        **commands,
        **_orders(known),
        kill=KILL_TEXTS[kill] if kill is not KillScope.NONE else "",
        kill_reason=fleet.kill_reason if fleet is not None else "",
        **(_status(known.status, known.status_age_s) if known.status is not None else {}),
        waiting=tuple(row for row in rows if row.waits),
        decided=tuple(row for row in rows if not row.waits),
    )


def proposal_row(proposal: Proposal, fleet: FleetStatus | None) -> ProposalRow:
    """A proposal, with what it would do."""
    name = proposal.plan.request.pool
    pool = next((one for one in fleet.pools if one.spec.id == name), None) if fleet is not None else None
    state, tone = _PROPOSALS[proposal.state]
    why = f": {proposal.decision_reason}" if proposal.decision_reason else ""
    return ProposalRow(
        plan=plan_view(proposal.plan, pool),
        proposer=proposal.proposed_by.name,
        proposed_at=proposal.proposed_at,
        state=state,
        tone=tone,
        decided_at=proposal.decided_at,
        decided=f"{proposal.decided_by}{why}" if proposal.decided_by else "",
        waits=proposal.state is ProposalState.WAITING,
    )


def note_rows(decisions: Sequence[Decision]) -> tuple[NoteRow, ...]:
    """Notes, escalations and what people said to the maintainer; newest first, the same words once."""
    found = [one for one in decisions if one.kind in NOTE_KINDS]
    times = Counter(map(_words, found))
    latest = {_words(one): one for one in reversed(found)}
    shown = sorted(latest.values(), key=lambda one: -one.ordinal)[:SHOWN_NOTES]
    return tuple(_note_row(one, times=times[_words(one)]) for one in shown)


def _words(note: Decision) -> tuple[str, str, str, str]:
    return note.kind, note.pool, note.actor.name, note.message


def _note_row(note: Decision, *, times: int) -> NoteRow:
    kind, tone = KINDS.get(note.kind, (note.kind, "off"))
    return NoteRow(
        id=f"fleet-{note.ordinal}",
        at=note.at,
        kind=kind,
        tone=tone,
        pool=note.pool,
        actor=note.actor.name,
        message=note.message,
        reason=note.reason,
        times=times,
    )


def _orders(known: Maintainer) -> dict[str, Any]:
    mode, text = MODE_TEXTS[known.mode]
    return {
        "mode": mode,
        "mode_tone": _MODE_TONES[known.mode],
        "mode_text": text,
        "mode_by": known.mode_by,
        "mode_reason": known.mode_reason,
        "mode_at": known.mode_at,
    }


def _status(status: MaintainerStatus, age_s: float | None) -> dict[str, Any]:
    state, text, tone = _STATE_TEXTS[status.state]
    is_silent = age_s is None or age_s > SILENT_AFTER_S
    bars = [(budget.scope, _bar(budget)) for budget in status.budgets]
    return {
        "has_status": True,
        "is_silent": is_silent,
        "heard": formats.duration(age_s),
        "model": status.model,
        "is_simulated": status.is_simulated,
        "state": "not heard" if is_silent else state,
        "state_text": "the rule carries on" if is_silent else text,
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
        "troubles": status.troubles,
        "standing": standing_view(status),
    }


def _counters(found: Mapping[str, float]) -> tuple[tuple[str, str], ...]:
    names = [*_COUNTERS, *sorted(found.keys() - _COUNTERS.keys())]
    return tuple(
        (_COUNTERS.get(name, name.replace("_", " ")), usd(found[name]) if name == "usd" else formats.count(found[name]))
        for name in names
        if name in found and (found[name] or name in _ALWAYS)
    )


def _bar(budget: Budget) -> BudgetBar:
    show = {"usd": usd, "seconds": formats.duration}.get(budget.unit, formats.count)
    share = min(1.0, budget.used / budget.limit) if budget.limit > 0 else 1.0
    return BudgetBar(
        name=_UNITS.get(budget.unit, budget.unit),
        used=show(budget.used),
        limit=show(budget.limit),
        percent=100 * share,
        tone="bad" if share >= 1.0 else "warn" if share >= SOON else "good",
    )
