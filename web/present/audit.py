"""Entries of the audit as a page and as files show them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from web.audit.entries import HASHED, Verdict
from web.reading.exports import csv_text
from web.tables import AuditEntry

COLUMNS = (*HASHED, "entry_hash")

TONES = {"done": "good", "refused": "warn", "failed": "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One entry."""

    sequence: int
    at: float
    moment: str
    """UTC, to the second."""
    actor: str
    how: str
    """Role and means."""
    came_from: str
    action: str
    target: str
    change: str
    result: str
    tone: str
    reason: str
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """What checking the chain found, as a sentence."""

    tone: str
    sentence: str


def audit_row(entry: AuditEntry) -> AuditRow:
    """An entry for the table."""
    return AuditRow(
        sequence=entry.sequence,
        at=entry.at,
        moment=datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        actor=entry.actor or "nobody known",
        how=", ".join(part for part in (entry.role, entry.via) if part),
        came_from=entry.came_from,
        action=entry.action,
        target=entry.target,
        change=_change(entry.before, entry.after),
        result=entry.result,
        tone=TONES.get(entry.result, ""),
        reason=entry.reason,
        entry_hash=entry.entry_hash,
    )


def chain_view(verdict: Verdict) -> ChainView:
    """The verdict in words."""
    if verdict.problem:
        return ChainView(tone="bad", sentence=f"The chain is broken: {verdict.problem}.")
    if not verdict.checked:
        return ChainView(tone="good", sentence="The chain is whole: it has no entry yet.")
    return ChainView(
        tone="good",
        sentence=(
            f"The chain is whole: {verdict.checked} {'entry' if verdict.checked == 1 else 'entries'}, from "
            f"{verdict.first_sequence} to {verdict.last_sequence}, ending in {verdict.last_hash[:16]}."
        ),
    )


def as_row(entry: AuditEntry) -> dict[str, Any]:
    """Everything that the entry's hash covers, and the hash."""
    return {name: getattr(entry, name) for name in COLUMNS}


def as_ndjson(entries: Sequence[AuditEntry]) -> str:
    """One JSON object a line, with everything that the entry's hash covers."""
    return "".join(json.dumps(as_row(entry), ensure_ascii=False) + "\n" for entry in entries)


def csv_head() -> str:
    """The first line of the file."""
    return csv_text([COLUMNS])


def as_csv(entries: Sequence[AuditEntry]) -> str:
    """The same as comma-separated values; what a spreadsheet would take for a formula is quoted."""
    return csv_text([list(as_row(entry).values()) for entry in entries])


def _change(before: str, after: str) -> str:
    """What changed, in one line: `role: viewer → operator`. What was empty and stayed so is left out."""
    was, then = (json.loads(text) if text else {} for text in (before, after))
    parts = []
    for name in {**was, **then}:
        sides = [_word(facts[name]) for facts in (was, then) if name in facts]
        if any(sides):
            parts.append(f"{name}: {' → '.join(side or 'nothing' for side in sides)}")
    return ", ".join(parts)


def _word(value: str | float | None) -> str:
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
