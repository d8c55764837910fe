"""Transcript of the maintainer: a file of JSON lines, each durable before the next action.

{"ordinal": 7, "at": ..., "wake": "w-00000003", "kind": "verdict", "body": {...}, "previous": "…", "hash": "…"}

Each hash covers all other fields of its line, including the hash of the previous line: changing, removing or inserting
a line breaks the chain from there on. An incomplete last line (the process stopped during a write) is cut off when the
file is opened, and recorded as the next entry.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull
from astraflow.contract.fleet.maintainer import TranscriptEntry
from astraflow.contract.fleet.transcript_chain import GENESIS_HASH, canonical_json, digest, entry_hash
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock


class Kind(Enum):
    """Kinds of entries, with the fields of their bodies. Values are stored in hash-chained files and never change."""

    OPENED = "opened"
    """run, model, is_simulated, prompt_hash, tools_hash, system, release: a process of the maintainer started."""
    INCOMPLETE_LINE = "torn"
    """size_bytes, hash: an incomplete last line was cut off when the file was opened."""
    WAKE = "wake"
    """signals (name, pool, value), mode."""
    REQUEST = "request"
    """turn, messages (new ones only), max_tokens, prompt_hash, tools_hash."""
    RESPONSE = "response"
    """turn, parts, usage, usd, model, duration_s: a complete answer."""
    TOOL = "tool"
    """call, name, arguments, is_error, result."""
    VERDICT = "verdict"
    """phase (plan, apply), plan, pool, target, retire, guard (its complete inputs), findings, verdict: input of
    `replay`."""
    ACTION = "action"
    """plan, pool, nodes, target, launches, eta_s, outcome, key, message, decision, launched, retired, proposal (plan
    that waits for a person). For a hold or escalation: what, pool, outcome, message, decision."""
    PROPOSAL = "proposal"
    """plan, pool, state, decided_at: a person decided on a proposal, or it expired."""
    VERIFY = "verify"
    """plan, pool, target, ready, nodes, after_s, is_reached."""
    NOTE = "note"
    """pool, text, decision: note in the journal."""
    FAILURE = "failure"
    """failure, problem, rest_s, usage, usd, is_estimated, said: a turn without an answer, after which no action was
    taken. said: the partial answer, cut to a few thousand characters; data only."""
    BUDGET = "budget"
    """scope, unit, used, limit: a budget was spent, and the wake ended."""
    SLEEP = "sleep"
    """tool_calls, tokens, usd, duration_s, outcome: the wake ended."""
    CONTROL_STATE = "orders"
    """mode, kill: the control state changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptFile:
    """Content of a transcript file."""

    entries: tuple[TranscriptEntry, ...]
    torn: bytes = b""
    """Bytes after the last complete line: an interrupted write."""


def read(path: Path) -> TranscriptFile:
    """Reads all entries of a file. Raises: InvalidInput if it is unreadable, CorruptData if the chain is broken."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the transcript {str(path)!r}: {problem.strerror}; check the path and its permissions",
            code="transcript.unreadable",
        ) from None
    whole, _, torn = content.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    entries: list[TranscriptEntry] = []
    previous = GENESIS_HASH
    for number, line in enumerate(lines):
        entry = _parsed(line, path, number + 1)
        if entry.ordinal != number or entry.previous != previous or entry_hash(entry) != entry.hash:
            raise CorruptData(
                f"cannot read the transcript {str(path)!r}: the hash chain breaks at line {number + 1}; this line or "
                "an earlier one was changed, restore the file from a copy",
                code="transcript.broken_chain",
            )
        entries.append(entry)
        previous = entry.hash
    return TranscriptFile(entries=tuple(entries), torn=torn)


class Transcript:
    """Append-only transcript file, written by one process. A context manager."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._descriptor = -1
        self._next = 0
        self._previous = GENESIS_HASH
        self._lock = asyncio.Lock()
        self.known: tuple[TranscriptEntry, ...] = ()
        """Entries that were in the file when it was opened."""
        self.torn = b""
        """Incomplete last line that was cut off."""

    def __enter__(self) -> Self:
        """Raises: Conflict while another process writes the file, CorruptData, InvalidInput."""
        self._descriptor = self._opened()
        try:
            readout = read(self.path)
            if readout.torn:
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - len(readout.torn))
                os.fsync(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.known, self.torn = readout.entries, readout.torn
        self._next = len(readout.entries)
        self._previous = readout.entries[-1].hash if readout.entries else GENESIS_HASH
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    async def add(self, kind: Kind, body: Mapping[str, Json], *, wake: str = "") -> TranscriptEntry:
        """Appends an entry; returns once it is durable. Cancelling the caller does not interrupt the write.

        Raises: StorageFull; InvalidInput for values that JSON cannot represent.
        """
        return await asyncio.shield(asyncio.create_task(self._add(kind, body, wake)))

    async def _add(self, kind: Kind, body: Mapping[str, Json], wake: str) -> TranscriptEntry:
        async with self._lock:
            at = self._clock.wall()
            json_body: dict[str, Json] = json.loads(canonical_json(body))
            entry = TranscriptEntry(
                ordinal=self._next,
                at=at,
                wake=wake,
                kind=kind.value,
                body=json_body,
                previous=self._previous,
                hash=digest(self._next, at, wake, kind.value, json_body, self._previous),
            )
            await asyncio.to_thread(self._write, line_of(entry))
            self._next, self._previous = self._next + 1, entry.hash
            return entry

    def _opened(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as problem:
            raise InvalidInput(
                f"cannot open the transcript {str(self.path)!r}: {problem.strerror}; check the directory's permissions",
                code="transcript.unwritable",
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(
                f"cannot open the transcript {str(self.path)!r}: another maintainer writes it; to wake that one, run "
                "`astraflow maintainer wake`, else stop it or give another --directory",
                code="transcript.in_use",
            ) from None
        return descriptor

    def _write(self, line: bytes) -> None:
        """Writes the whole line, or (except in a crash) nothing."""
        size = os.fstat(self._descriptor).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError as problem:
            os.ftruncate(self._descriptor, size)
            raise StorageFull(
                f"cannot write the transcript {str(self.path)!r}: {problem.strerror}; free disk space",
                code="transcript.storage_full",
            ) from problem


def line_of(entry: TranscriptEntry) -> bytes:
    """Line of the file for an entry."""
    fields = ("ordinal", "at", "wake", "kind", "body", "previous", "hash")
    return canonical_json({name: getattr(entry, name) for name in fields}).encode() + b"\n"


def _parsed(line: bytes, path: Path, number: int) -> TranscriptEntry:
    try:
        return TranscriptEntry(**json.loads(line))
    except (ValueError, TypeError):
        raise CorruptData(
            f"cannot read the transcript {str(path)!r}: line {number} is not an entry; restore the file from a copy",
            code="transcript.invalid_entry",
        ) from None
