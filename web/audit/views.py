"""Audit entries as table rows and as files."""

import json
from collections.abc import Sequence
from typing import Any

from web.components.downloads import csv_text
from web.database.tables import AuditEntry
from web.security.audit_log import HASHED_COLUMNS, ChainCheck

COLUMNS = (*HASHED_COLUMNS, "entry_hash")

TONES = {"done": "good", "refused": "warn", "failed": "bad", "unknown": "warn"}


def chain_sentence(verdict: ChainCheck) -> str:
    """Returns the result of a chain check as a sentence."""
    if verdict.problem:
        return f"Chain broken: {verdict.problem}."
    if not verdict.checked:
        return "Chain intact: no entries yet."
    return (
        f"Chain intact: {verdict.checked} {'entry' if verdict.checked == 1 else 'entries'}, from "
        f"{verdict.first_sequence} to {verdict.last_sequence}, ending in {verdict.last_hash[:16]}."
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


def change_text(before: str, after: str) -> str:
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
