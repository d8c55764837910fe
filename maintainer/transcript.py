"""What the maintainer saw, was told and did: a file of JSON lines, each durable before the next thing happens.

    {"ordinal": 7, "at": ..., "wake": "w-00000003", "kind": "verdict", "body": {...}, "previous": "…", "hash": "…"}

Each line's hash covers all else in it, the hash of the line before included: a line that is changed, taken out or put
in breaks the chain from there on. A line that was being written when the machine stopped (a torn tail) is cut off when
the file is opened again, and that it was is the next entry.
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

from astraflow.contract.chains import FIRST, canonical, digest, digest_of
from astraflow.contract.errors import Conflict, CorruptData, InvalidInput, StorageFull
from astraflow.contract.maintenance import TranscriptEntry
from astraflow.contract.values import Json
from astraflow.runtime.clock import Clock


class Kind(Enum):
    """Words for what an entry is about, and what its body has."""

    OPENED = "opened"
    """run, model, is_simulated, prompt_hash, tools_hash, system, release: a process of the maintainer began."""
    TORN = "torn"
    """size_bytes, hash: the last line was cut off when the file was opened."""
    WAKE = "wake"
    """signals (name, pool, value), mode."""
    REQUEST = "request"
    """turn, messages (those that are new), max_tokens, prompt_hash, tools_hash."""
    RESPONSE = "response"
    """turn, parts, usage, usd, model, duration_s: an answer that was whole."""
    TOOL = "tool"
    """call, name, arguments, is_error, result."""
    VERDICT = "verdict"
    """phase (plan, apply), plan, pool, target, retire, guard (its complete inputs), findings, verdict: `replay` judges
    these again."""
    ACTION = "action"
    """plan, pool, nodes, target, launches, eta_s, outcome, key, message, decision, launched, retired, proposal: which
    plan waits for a person. Of a hold or an escalation: what, pool, outcome, message, decision."""
    PROPOSAL = "proposal"
    """plan, pool, state, decided_at: what people made of one."""
    VERIFY = "verify"
    """plan, pool, target, ready, nodes, after_s, is_reached."""
    NOTE = "note"
    """pool, text, decision: the hand-over."""
    FAILURE = "failure"
    """failure, problem, rest_s, usage, usd, is_estimated, said: a turn without an answer; nothing was done because of
    it. said: what came of an answer, cut to a few thousand characters: data, and nothing else."""
    BUDGET = "budget"
    """scope, unit, used, limit: it was spent, and the wake ended."""
    SLEEP = "sleep"
    """tool_calls, tokens, usd, duration_s, outcome: the wake is over."""
    ORDERS = "orders"
    """mode, kill: people changed one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """What a file holds."""

    entries: tuple[TranscriptEntry, ...]
    torn: bytes = b""
    """What follows the last whole line: it was being written when the machine stopped."""


def read(path: Path) -> Readout:
    """All entries of a file. Raises: InvalidInput for one that cannot be read, CorruptData where the chain breaks."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise InvalidInput(f"the transcript {path} cannot be read: {problem.strerror}") from None
    whole, _, torn = content.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    entries: list[TranscriptEntry] = []
    previous = FIRST
    for number, line in enumerate(lines):
        entry = _parsed(line, path, number + 1)
        if entry.ordinal != number or entry.previous != previous or digest_of(entry) != entry.hash:
            raise CorruptData(
                f"{path}, line {number + 1}: the chain of hashes breaks here: it or what came before was changed"
            )
        entries.append(entry)
        previous = entry.hash
    return Readout(entries=tuple(entries), torn=torn)


class Transcript:
    """A file that is only added to, by one process. A `with`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._descriptor = -1
        self._next = 0
        self._previous = FIRST
        self._lock = asyncio.Lock()
        self.known: tuple[TranscriptEntry, ...] = ()
        """What was there when it was opened."""
        self.torn = b""
        """What was cut off then."""

    def __enter__(self) -> Self:
        """Raises: Conflict while another process writes it, CorruptData, InvalidInput."""
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
        self._previous = readout.entries[-1].hash if readout.entries else FIRST
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    async def add(self, kind: Kind, body: Mapping[str, Json], *, wake: str = "") -> TranscriptEntry:
        """Write one more; returns once it is durable. A caller that gives up meanwhile changes nothing about that.

        Raises: StorageFull; InvalidInput for what is no JSON.
        """
        return await asyncio.shield(asyncio.create_task(self._add(kind, body, wake)))

    async def _add(self, kind: Kind, body: Mapping[str, Json], wake: str) -> TranscriptEntry:
        async with self._lock:
            at = self._clock.wall()
            plain: dict[str, Json] = json.loads(canonical(body))
            entry = TranscriptEntry(
                ordinal=self._next,
                at=at,
                wake=wake,
                kind=kind.value,
                body=plain,
                previous=self._previous,
                hash=digest(self._next, at, wake, kind.value, plain, self._previous),
            )
            await asyncio.to_thread(self._write, line_of(entry))
            self._next, self._previous = self._next + 1, entry.hash
            return entry

    def _opened(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as problem:
            raise InvalidInput(f"the transcript {self.path} cannot be opened: {problem.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(f"another maintainer writes {self.path}: stop it, or give another directory") from None
        return descriptor

    def _write(self, line: bytes) -> None:
        """All of it, or (but for a crash) nothing."""
        size = os.fstat(self._descriptor).st_size
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError as problem:
            os.ftruncate(self._descriptor, size)
            raise StorageFull(f"the transcript {self.path} cannot be written: {problem.strerror}") from problem


def line_of(entry: TranscriptEntry) -> bytes:
    """As it stands in the file."""
    fields = ("ordinal", "at", "wake", "kind", "body", "previous", "hash")
    return canonical({name: getattr(entry, name) for name in fields}).encode() + b"\n"


def _parsed(line: bytes, path: Path, number: int) -> TranscriptEntry:
    try:
        return TranscriptEntry(**json.loads(line))
    except (ValueError, TypeError):
        raise CorruptData(f"{path}, line {number} is no entry of a transcript") from None
