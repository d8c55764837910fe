"""Events as lists show them: what matters by itself, what is routine as one line with a count."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from astraflow.contract.reports import Event
from web.present.sentences import bare_event, grounded
from web.reading.exports import Sheet

COLUMNS = ("ordinal", "unix_s", "kind", "subject", "message", "folded")

ROUTINE = {
    "join_token_minted": "join tokens handed out",
    "join_token_used": "join tokens used",
    "credential_revoked": "credentials ended",
    "node_joined": "nodes joined",
    "node_left": "nodes left",
    "node_draining": "nodes drain",
    "node_drained": "nodes asked to drain",
    "evaluation_began": "evaluations began",
    "evaluation_done": "evaluations done",
    "trainer_attached": "trainers attached",
}
"""What happens all the time in a run that is well, and what many of them are called."""

CROWDS = {
    "node_lost": "nodes lost",
    "leases_expired": "nodes whose leases ran out",
    "push_refused": "results refused",
    "node_refused": "nodes refused",
    "join_token_refused": "join tokens refused",
}
"""What matters, and comes in crowds: those of one moment are one line."""

_FOLDED = re.compile(r"^\d+ more within a minute; the last: ")
"""How an event that stands for others begins to tell the last of them."""

WORDS = {
    "join_token_minted": "Join token handed out",
    "credential_revoked": "Credential ended",
    "node_drained": "Node asked to drain",
    "target_capped": "Held back",
    "cap_ended": "Free again",
    "trainer_moves": "Trainer goes on",
    "trouble_over": "Trouble is over",
}
"""What one is called; a kind that is not here has its own words."""

ABOUT: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fleet": ("Fleet", ("target_moved", "target_capped", "cap_ended", "node_lost", "node_drained")),
    "nodes": (
        "Nodes",
        (
            *("node_joined", "node_left", "node_lost", "node_draining", "node_drained", "node_refused"),
            *("leases_expired", "push_refused"),
        ),
    ),
    "learning": (
        "Learning",
        (
            *("trainer_attached", "trainer_stalled", "trainer_moves", "stream_starved", "stream_fed"),
            *("batch_redelivered", "flow_paused", "flow_resumed", "plugins_planned", "plugins_changed", "plugins_kept"),
            *("evaluation_asked", "evaluation_began", "evaluation_done", "evaluation_stopped"),
        ),
    ),
    "troubles": (
        "Troubles",
        (
            *("node_lost", "trainer_stalled", "stream_starved", "leases_expired", "push_refused"),
            *("node_refused", "join_token_refused", "batch_redelivered", "trouble", "trouble_over"),
        ),
    ),
    "access": (
        "Access",
        ("join_token_minted", "join_token_used", "join_token_revoked", "join_token_refused", "credential_revoked"),
    ),
}
"""What a list can be about: a label, and the kinds."""

KINDS = tuple(sorted({kind for _, kinds in ABOUT.values() for kind in kinds} | {"service_started"}))

SAME_MOMENT_S = 10.0
"""One tick of the rule, which looks at every pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One line: an event, or several that say the same."""

    title: str
    at: float
    """Of the newest."""
    href: str
    """Of the event, or of the list of those it stands for."""
    parts: tuple[tuple[str, str], ...]
    """What each is about, and what happened to it."""
    ground: str
    """Why, for all of them; empty where that is not said apart."""
    count: int


def event_rows(events: Sequence[Event]) -> tuple[EventRow, ...]:
    """Lines for a list, newest first. Between two events that matter, routine ones of a kind are one line."""
    rows: list[EventRow] = []
    routine: dict[str, list[Event]] = {}
    alike: list[Event] = []
    for event in events:
        if event.kind in ROUTINE:
            rows += _alike(alike)
            alike = []
            routine.setdefault(event.kind, []).append(event)
            continue
        rows += [_many(of_kind) for of_kind in routine.values()]
        routine = {}
        if alike and not _is_alike(alike[0], event):
            rows += _alike(alike)
            alike = []
        alike.append(event)
    return (*rows, *_alike(alike), *(_many(of_kind) for of_kind in routine.values()))


def plain_rows(events: Iterable[Event]) -> tuple[EventRow, ...]:
    """A line for each event."""
    return tuple(_one(event) for event in events)


def event_sheet(events: Sequence[Event]) -> Sheet:
    """The same to take away, each by itself."""
    rows = [(one.ordinal, one.at, one.kind, one.subject, one.message, one.folded) for one in events]
    return Sheet(name="events", columns=COLUMNS, rows=rows)


def word(kind: str) -> str:
    """What one event of a kind is called."""
    return WORDS.get(kind, kind.replace("_", " ").capitalize())


def _one(event: Event) -> EventRow:
    return EventRow(
        title=word(event.kind),
        at=event.at,
        href=f"/events/{event.ordinal}",
        parts=((event.subject, bare_event(event) if event.folded else _told(event)),),
        ground="",
        count=1,
    )


def _many(events: Sequence[Event]) -> EventRow:
    """Events of one kind: how many, and the newest of them."""
    newest, count = events[0], sum(1 + event.folded for event in events)
    if count == 1:
        return _one(newest)
    query = urlencode({"kind": newest.kind, "before": newest.ordinal + 1})
    return EventRow(
        title=f"{count} {(ROUTINE | CROWDS)[newest.kind]}",
        at=newest.at,
        href=f"/events?{query}",
        parts=((newest.subject, _told(newest)),),
        ground="",
        count=count,
    )


def _told(event: Event) -> str:
    """What happened last, of an event that stands for others: how many is said by the line."""
    return _FOLDED.sub("", bare_event(event))


def _alike(events: Sequence[Event]) -> list[EventRow]:
    """Neighbours of one moment: a crowd as a count, and those that have one ground as one line that says it once."""
    if len(events) < 2:
        return [_one(event) for event in events]
    newest = events[0]
    if newest.kind in CROWDS:
        return [_many(events)]
    return [
        EventRow(
            title=word(newest.kind),
            at=newest.at,
            href=f"/events/{newest.ordinal}",
            parts=tuple((event.subject, grounded(bare_event(event))[0]) for event in events),
            ground=grounded(bare_event(newest))[1],
            count=len(events),
        )
    ]


def _is_alike(first: Event, other: Event) -> bool:
    if first.kind != other.kind or abs(first.at - other.at) > SAME_MOMENT_S:
        return False
    if first.kind in CROWDS:
        return True
    ground = grounded(bare_event(first))[1]
    return bool(ground) and ground == grounded(bare_event(other))[1]
