"""Audit entries as table rows and as files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from web.components.downloads import csv_text
from web.database.tables import AuditEntry
from web.security.audit_log import HASHED_COLUMNS, ChainCheck

COLUMNS = (*HASHED_COLUMNS, "entry_hash")

TONES = {"done": "good", "refused": "warn", "failed": "bad", "unknown": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One entry."""

    sequence: int
    at: float
    time_text: str
    """UTC, to the second."""
    actor: str
    role_and_means: str
    client_address: str
    action: str
    target: str
    change: str
    result: str
    tone: str
    reason: str
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """Result of the check of the hash chain, as a sentence."""

    tone: str
    sentence: str


def audit_row(entry: AuditEntry) -> AuditRow:
    """Returns the table row of an entry."""
    return AuditRow(
        sequence=entry.sequence,
        at=entry.at,
        time_text=datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        actor=entry.actor or "unknown",
        role_and_means=", ".join(part for part in (entry.role, entry.via) if part),
        client_address=entry.came_from,
        action=entry.action,
        target=entry.target,
        change=_change(entry.before, entry.after),
        result=entry.result,
        tone=TONES.get(entry.result, ""),
        reason=entry.reason,
        entry_hash=entry.entry_hash,
    )


def chain_view(verdict: ChainCheck) -> ChainView:
    """Returns the result of a chain check as a sentence with a tone."""
    if verdict.problem:
        return ChainView(tone="bad", sentence=f"Chain broken: {verdict.problem}.")
    if not verdict.checked:
        return ChainView(tone="good", sentence="Chain intact: no entries yet.")
    return ChainView(
        tone="good",
        sentence=(
            f"Chain intact: {verdict.checked} {'entry' if verdict.checked == 1 else 'entries'}, from "
            f"{verdict.first_sequence} to {verdict.last_sequence}, ending in {verdict.last_hash[:16]}."
        ),
    )


def as_row(entry: AuditEntry) -> dict[str, Any]:
    """Returns the columns that the entry's hash covers, and the hash."""
    return {name: getattr(entry, name) for name in COLUMNS}


def as_ndjson(entries: Sequence[AuditEntry]) -> str:
    """Returns one JSON object per line, with the columns of `as_row`."""
    return "".join(json.dumps(as_row(entry), ensure_ascii=False) + "\n" for entry in entries)


def csv_header() -> str:
    """Returns the header line of the CSV file."""
    return csv_text([COLUMNS])


def as_csv(entries: Sequence[AuditEntry]) -> str:
    """Returns the entries as CSV; values that a spreadsheet would read as a formula are quoted."""
    return csv_text([list(as_row(entry).values()) for entry in entries])


def _change(before: str, after: str) -> str:
    """Returns the change in one line: `role: viewer → operator`. Leaves out values that are empty before and after."""
    old_values, new_values = _values(before), _values(after)
    parts = []
    for name in {**old_values, **new_values}:
        sides = [_word(values[name], name) for values in (old_values, new_values) if name in values]
        if any(sides):
            label = _LABELS.get(name, name.replace("_", " "))
            parts.append(f"{label}: {' → '.join(side or 'nothing' for side in sides)}")
    return ", ".join(parts)


def _values(text: str) -> dict[str, Any]:
    """Returns the recorded values by name. Those of a damaged entry are shown as they are: it must not hide others."""
    try:
        values = json.loads(text) if text else {}
    except ValueError:
        values = None
    return values if isinstance(values, dict) else {"unreadable": text}


_LABELS = {"victims": "nodes removed", "launches": "nodes launched", "share": "share of the ready nodes"}
"""Names of recorded values in words, where the name itself does not say it."""


def _word(value: str | float | None, name: str) -> str:
    if name == "share" and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.0%}"
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
