"""Recorded model calls of an agent's session: a list in order of time, with the turns that their replies became."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from astraflow.contract.reports.report import SampledTrajectory
from astraflow.contract.rollouts.agent_calls import MAX_BODY_CHARACTERS, AgentCall, CallOutcome
from web.components import formats
from web.components.texts import TextCutter, visible
from web.trajectories.episodes import names_of
from web.trajectories.views import calls_summary

CALLS_SHOWN = 200
"""Most calls in the list of a page; the JSON of the session has all of them."""

OUTCOME_LABELS = {
    CallOutcome.ANSWERED: "answered",
    CallOutcome.REPLAYED: "retry, replayed",
    CallOutcome.REFUSED: "refused",
    CallOutcome.ABORTED: "aborted by the client",
}

_TONES = {CallOutcome.ANSWERED: "good", CallOutcome.REFUSED: "bad"}
"""Tones of outcomes; of all others `warn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCall:
    """A call of a session."""

    number: int
    """Position in the session, from 1."""
    call: AgentCall
    owner: SampledTrajectory
    """Trajectory with which it was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBody:
    """A request or a reply."""

    title: str
    text: str
    size: str
    """Number of recorded characters, in words."""
    is_cut: bool
    """Whether the node recorded its begin only."""
    hidden: int
    """Recorded characters that the page leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A call in the list."""

    number: int
    began: str
    duration: str
    dialect: str
    model: str
    outcome: str
    tone: str
    turn: str
    """Turn that the reply became, in words; empty when it became none."""
    turn_ordinal: int
    """Ordinal of the trajectory of the turn."""
    turn_id: str
    """Id of the turn on the page of its trajectory."""
    is_own: bool
    """Whether the turn is on the page."""
    bodies: tuple[CallBody, ...] = ()
    """Request and reply of an open call; empty for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallList:
    """Calls of a session, as the page of one of its trajectories shows them."""

    total: int
    summary: str
    rows: tuple[CallRow, ...]
    hidden: int
    """Calls that are left out."""
    outcomes: tuple[tuple[CallOutcome, str, int], ...]
    """Outcomes to choose from, with label and number of calls; empty when all calls have the same outcome."""
    chosen: CallOutcome | None
    of_turns: Mapping[int, tuple[int, ...]]
    """Numbers of the calls behind each turn of the trajectory; turns count from 1."""


def session_calls(members: Sequence[SampledTrajectory]) -> tuple[SessionCall, ...]:
    """Returns the recorded calls of an episode's trajectories, in order of time."""
    every = [(call, member) for member in members for call in member.calls]
    every.sort(key=lambda pair: pair[0].began_s)
    return tuple(
        SessionCall(number=number, call=call, owner=owner) for number, (call, owner) in enumerate(every, start=1)
    )


def call_list(
    members: Sequence[SampledTrajectory], shown: int, *, outcome: CallOutcome | None = None, number: int | None = None
) -> CallList | None:
    """Returns the calls of an episode; None without any.

    shown: ordinal of the trajectory on the page. outcome: calls to list; None for all. number: call to open.
    """
    calls = session_calls(members)
    if not calls:
        return None
    matching = [call for call in calls if outcome is None or call.call.outcome is outcome]
    listed = matching[:CALLS_SHOWN]
    listed += [call for call in matching[CALLS_SHOWN:] if call.number == number]
    counts = Counter(call.call.outcome for call in calls)
    names = names_of(members)
    return CallList(
        total=len(calls),
        summary=calls_summary({key.value: count for key, count in counts.items()}),
        rows=tuple(_row(call, shown, names, is_open=call.number == number) for call in listed),
        hidden=len(matching) - len(listed),
        outcomes=tuple((key, label, counts[key]) for key, label in OUTCOME_LABELS.items() if key in counts)
        if len(counts) > 1
        else (),
        chosen=outcome,
        of_turns=_calls_of_turns(calls, shown),
    )


def call_bodies(call: AgentCall) -> tuple[CallBody, ...]:
    """Returns the request and the reply, with line breaks where they are complete JSON."""
    return tuple(_body(title, text) for title, text in (("Request", call.request), ("Reply", call.reply)) if text)


def _calls_of_turns(calls: Sequence[SessionCall], shown: int) -> dict[int, tuple[int, ...]]:
    turns: dict[int, tuple[int, ...]] = {}
    for call in calls:
        if call.owner.ordinal == shown and call.call.turn is not None:
            turns[call.call.turn + 1] = (*turns.get(call.call.turn + 1, ()), call.number)
    return turns


def _row(call: SessionCall, shown: int, names: Mapping[int, str], *, is_open: bool) -> CallRow:
    recorded, owner = call.call, call.owner
    is_own = owner.ordinal == shown
    turn = "" if recorded.turn is None else f"turn {recorded.turn + 1}"
    return CallRow(
        number=call.number,
        began=f"+{_seconds(recorded.began_s)}",
        duration=_seconds(recorded.duration_s),
        dialect=visible(recorded.dialect),
        model=visible(recorded.model),
        outcome=OUTCOME_LABELS[recorded.outcome],
        tone=_TONES.get(recorded.outcome, "warn"),
        turn=turn if is_own or not turn else f"{turn} of {names[owner.index]}",
        turn_ordinal=owner.ordinal,
        turn_id="" if recorded.turn is None else f"turn-{recorded.turn + 1}",
        is_own=is_own,
        bodies=call_bodies(recorded) if is_open else (),
    )


def _seconds(value_s: float) -> str:
    return formats.seconds(value_s if isfinite(value_s) else None)


def _body(title: str, text: str) -> CallBody:
    shown, hidden = TextCutter(is_complete=True).cut(_pretty(text))
    return CallBody(
        title=title,
        text=shown,
        size=formats.several(len(text), "character"),
        is_cut=len(text) >= MAX_BODY_CHARACTERS,
        hidden=hidden,
    )


def _pretty(text: str) -> str:
    """Returns JSON with a line for each value; any other text, such as a cut body, as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (RecursionError, ValueError):
        return text
