"""Entries that each carry the hash of the one before: what is changed, taken out or put in breaks the chain.

>>> from astraflow.contract.maintenance import TranscriptEntry
>>> hash = digest(0, 1.0, "", "opened", {}, FIRST)
>>> chain_break([TranscriptEntry(ordinal=0, at=1.0, wake="", kind="opened", body={}, previous=FIRST, hash=hash)])
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.maintenance import TranscriptEntry
from astraflow.contract.values import Json

FIRST = "0" * 64
"""What the first entry has as `previous`."""


def digest(ordinal: int, at: float, wake: str, kind: str, body: Mapping[str, Json], previous: str) -> str:
    """The hash of an entry: SHA-256 of its canonical JSON."""
    content = {"ordinal": ordinal, "at": at, "wake": wake, "kind": kind, "body": body, "previous": previous}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def canonical(value: Any) -> str:
    """One text for equal values. Raises: InvalidInput for what JSON has no form for."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise InvalidInput(f"an entry of the transcript is to be JSON: {problem}") from None


def digest_of(entry: TranscriptEntry) -> str:
    """The hash that an entry has to have."""
    return digest(entry.ordinal, entry.at, entry.wake, entry.kind, entry.body, entry.previous)


def chain_break(entries: Sequence[TranscriptEntry]) -> int | None:
    """Ordinal of the first entry that is not as it was written, or does not follow; None for a stretch that is whole.

    entries: oldest first, without gaps; the stretch may begin anywhere in the transcript.
    """
    before: TranscriptEntry | None = None
    for entry in entries:
        follows = (
            entry.previous == before.hash if before is not None else (entry.ordinal > 0) != (entry.previous == FIRST)
        )
        is_next = before is None or entry.ordinal == before.ordinal + 1
        if not follows or not is_next or digest_of(entry) != entry.hash:
            return entry.ordinal
        before = entry
    return None
