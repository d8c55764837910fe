"""Hash chain of transcript entries: each entry carries the hash of the previous one, so any edit, deletion or insertion
breaks it.

>>> from astraflow.contract.fleet.maintainer import TranscriptEntry
>>> hash = digest(0, 1.0, "", "opened", {}, GENESIS_HASH)
>>> entry = TranscriptEntry(ordinal=0, at=1.0, wake="", kind="opened", body={}, previous=GENESIS_HASH, hash=hash)
>>> first_broken_entry([entry])
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import TranscriptEntry
from astraflow.contract.values import Json

GENESIS_HASH = "0" * 64
"""Value of `previous` in the first entry."""


def digest(ordinal: int, at: float, wake: str, kind: str, body: Mapping[str, Json], previous: str) -> str:
    """Returns the hash of an entry: SHA-256 of its canonical JSON."""
    content = {"ordinal": ordinal, "at": at, "wake": wake, "kind": kind, "body": body, "previous": previous}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Returns the canonical JSON text of a value; equal values have equal texts. Raises: InvalidInput for values
    without a JSON form."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise InvalidInput(
            f"cannot encode a transcript entry: {problem}; use JSON values only", code="transcript.not_json"
        ) from None


def entry_hash(entry: TranscriptEntry) -> str:
    """Returns the hash that an entry must have."""
    return digest(entry.ordinal, entry.at, entry.wake, entry.kind, entry.body, entry.previous)


def first_broken_entry(entries: Sequence[TranscriptEntry]) -> int | None:
    """Returns the ordinal of the first entry that was altered or does not follow its predecessor; None if all are
    intact.

    entries: oldest first, without gaps; they may begin anywhere in the transcript.
    """
    before: TranscriptEntry | None = None
    for entry in entries:
        follows = (
            entry.previous == before.hash
            if before is not None
            else (entry.ordinal > 0) != (entry.previous == GENESIS_HASH)
        )
        is_next = before is None or entry.ordinal == before.ordinal + 1
        if not follows or not is_next or entry_hash(entry) != entry.hash:
            return entry.ordinal
        before = entry
    return None
