"""Durability: writes every change of state to disk in order, many changes per commit.

The service's memory is authoritative while it runs; the journal is what it is rebuilt from. The journal consists of a
SQLite file for state, and append-only segments (`segments.py`) for the payload of results, which the file points to.
Changes are committed in the order in which they were made, so after a crash the journal holds a prefix of the run's
history, and every answer that waited for `wait_durable()` is inside that prefix. Small states (cursors, counters) are
not written change by change: they are dumped when a commit is collected, which makes them exact for that prefix. One
that returns the same object again is unchanged, and is not written again. A state that grows with the data is stored in
rows, and a commit writes the changed ones (`prompt_rows.py`).
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError, CorruptData, StorageFull
from astraflow.contract.values import Json
from astraflow.dataflow.storage.journal_file import CommittedRecords
from astraflow.dataflow.storage.segments import RecordLocation, SegmentFiles, SegmentMap
from astraflow.runtime.logs import get_logger
from astraflow.wire.errors import is_disk_full

log = get_logger()

RETRY_S = 1.0
"""Pause before a failed commit is tried again. Seconds."""

_SELECT_LOCATIONS = "select number, segment, offset, length from payloads order by number"
_DELETE_PAYLOAD = "delete from payloads where number = ?"


@dataclass(slots=True)
class _Changes:
    """Changes of one commit, carried out in this order: payloads, statements that point to them, removals."""

    payloads: list[tuple[RecordLocation, bytes]] = field(default_factory=list)
    moves: list[list[tuple[RecordLocation, RecordLocation]]] = field(default_factory=list)
    """Old and new locations of the records of each compaction: a later compaction may move the same record again."""
    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    unneeded_segments: list[int] = field(default_factory=list)
    """Segments without references after this commit."""

    def followed_by(self, later: "_Changes") -> "_Changes":
        """Returns both, in order."""
        return _Changes(
            payloads=self.payloads + later.payloads,
            moves=self.moves + later.moves,
            statements=self.statements + later.statements,
            unneeded_segments=self.unneeded_segments + later.unneeded_segments,
        )


class Journal(CommittedRecords):
    """SQLite file in WAL mode with full synchronisation, and its segments; one commit at a time, in a thread.

    `run()` commits until it is cancelled, then commits the remaining changes.
    """

    is_durable = True

    def __init__(self, path: Path) -> None:
        self._pending = _Changes()
        self._ordinal = 0
        self._wake = asyncio.Event()
        super().__init__(path)
        self._files = SegmentFiles(path.parent / "payload")
        locations = self._payload_locations()
        self._map = self._saved_map(locations)
        self._last_payload = max(locations, default=0)
        self._new_payloads: dict[int, bytes] = {}
        """Payloads that no commit has collected yet."""
        self._in_flight: _Changes | None = None
        """Changes of the commit that is being written; None once it succeeded, or they are pending again."""
        self._unremoved: list[int] = []
        """Segments without references that could not be removed. Only `_write` uses it."""
        self._states: dict[str, Callable[[], Mapping[str, Json]]] = {}
        self._saved: dict[str, Mapping[str, Json]] = {}
        """States of the latest successful commit."""
        self._rows: dict[str, Callable[[], Mapping[int, Json]]] = {}
        self._committed = 0
        self._changed = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self.failure: AstraFlowError | None = None
        """Error of the latest commits; None when commits work. Callers begin nothing new while it is set."""

    def register_state(self, name: str, dump: Callable[[], Mapping[str, Json]]) -> None:
        """Registers `dump()`, whose result every commit saves under `name`, unless it is the object saved last."""
        self._states[name] = dump

    def register_rows(self, owner: str, changed_rows: Callable[[], Mapping[int, Json]]) -> None:
        """Registers `changed_rows()`, whose result every commit saves for `owner`; None deletes a row.

        The previous provider of this owner is called once more, so that rows may change providers.
        """
        self._pending.statements += self._changed_rows(owner)
        self._rows[owner] = changed_rows
        self.touch()

    def delete_rows(self, owner: str) -> None:
        """Deletes all rows of `owner` and its provider."""
        self._rows.pop(owner, None)
        self.put("delete from rows where owner = ?", owner)

    def put(self, statement: str, *values: Any) -> None:
        """Adds a change; it is durable when a later `wait_durable()` returns."""
        self._pending.statements.append((statement, values))
        self.touch()

    def store_payload(self, body: bytes) -> int:
        """Stores these bytes until they are dropped; returns their number."""
        self._last_payload += 1
        self._new_payloads[self._last_payload] = body
        self.touch()
        return self._last_payload

    def drop_payload(self, number: int) -> None:
        """Drops a payload; a payload that no commit has collected is never written."""
        if self._new_payloads.pop(number, None) is None:
            self._map.drop(number)
            self.put(_DELETE_PAYLOAD, number)

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yields all committed payloads by number; sets damaged ones aside. Meant for start-up: it blocks."""
        for number, location in self._payload_locations().items():
            try:
                body = self._files.read(location)
            except CorruptData as problem:
                self.set_aside("result", number, problem)
                self.drop_payload(number)
            else:
                yield number, body

    def _payload_locations(self) -> dict[int, RecordLocation]:
        return dict(self.decoded(_SELECT_LOCATIONS, _location, what="location", delete=_DELETE_PAYLOAD))

    def touch(self) -> None:
        """Requests a commit of the states although no row changed."""
        self._ordinal += 1
        self._wake.set()

    async def wait_durable(self) -> None:
        """Waits until everything put so far is on disk. Raises: StorageFull while the disk is full."""
        target = self._ordinal
        while self._committed < target:
            if self.failure is not None:
                raise self.failure
            changed = self._changed
            await changed.wait()

    async def run(self) -> None:
        """Commits until cancelled, then once more, and closes the files.

        After any other error there is no last commit: later changes without those that failed would leave a gap.
        """
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._commit()
        except asyncio.CancelledError:
            await self._settle_in_flight()
            self._last_commit()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Closes the files; changes since the last commit are lost, as in a crash. It may be called again."""
        self._files.close()
        self._database.close()

    async def _commit(self) -> None:
        """Commits all pending changes in one transaction; on failure they stay pending and are tried again."""
        ordinal, changes, states = self._ordinal, *self._collected()
        self._in_flight = changes
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, changes, _bodies(states)))
        try:
            await asyncio.shield(self._writing)
        except (OSError, sqlite3.Error) as problem:
            self._take_back(changes)
            self._fail(problem)
            await asyncio.sleep(RETRY_S)
            self._wake.set()
        else:
            if self.failure is not None:
                log.warning("journal_recovered", path=str(self._path))
            self.failure, self._in_flight = None, None
            self._saved |= states
            self._committed = ordinal
            self._announce()

    async def _settle_in_flight(self) -> None:
        """Waits for the commit that a cancellation left behind; if it failed, its changes are pending again.

        Raises: the error of that commit if it cannot be tried again.
        """
        if self._writing is None or self._in_flight is None:
            return
        await asyncio.wait({self._writing})
        problem = self._writing.exception()
        if problem is None:
            self._in_flight = None
        elif isinstance(problem, (OSError, sqlite3.Error)):
            self._take_back(self._in_flight)
        else:
            raise problem

    def _take_back(self, changes: _Changes) -> None:
        """Makes the changes of a failed commit pending again, before those that were made since."""
        self._pending, self._in_flight = changes.followed_by(self._pending), None

    def _last_commit(self) -> None:
        try:
            changes, states = self._collected()
            self._write(changes, _bodies(states))
        except (OSError, sqlite3.Error) as problem:
            self._fail(problem)

    def _collected(self) -> tuple[_Changes, dict[str, Mapping[str, Json]]]:
        self._place_payloads()
        self._compact()
        changes, self._pending = self._pending, _Changes()
        changes.statements += [statement for owner in self._rows for statement in self._changed_rows(owner)]
        changes.unneeded_segments += self._map.take_unneeded_segments()
        states = {name: dump() for name, dump in self._states.items()}
        return changes, {name: state for name, state in states.items() if state is not self._saved.get(name)}

    def _place_payloads(self) -> None:
        new, self._new_payloads = self._new_payloads, {}
        locations = self._map.append([(number, len(body)) for number, body in new.items()])
        for number, location in zip(new, locations, strict=True):
            self._pending.payloads.append((location, new[number]))
            self._pending.statements.append(("insert into payloads values (?, ?, ?, ?)", (number, *_columns(location))))

    def _compact(self) -> None:
        """Moves the remaining records of one segment that is mostly unused."""
        records = [(number, self._map.location(number)) for number in self._map.records_to_compact()]
        for number, _ in records:
            self._map.drop(number)
        new_locations = self._map.append([(number, old.length) for number, old in records])
        if records:
            old_locations = [old for _, old in records]
            self._pending.moves.append(list(zip(old_locations, new_locations, strict=True)))
        for (number, _), location in zip(records, new_locations, strict=True):
            self._pending.statements.append(
                (
                    "update payloads set segment = ?, offset = ?, length = ? where number = ?",
                    (*_columns(location), number),
                )
            )

    def _changed_rows(self, owner: str) -> list[tuple[str, tuple[Any, ...]]]:
        """Returns the changed rows as statements, so that they survive a failed commit; none without a provider."""
        return [
            ("delete from rows where owner = ? and key = ?", (owner, key))
            if row is None
            else ("insert or replace into rows values (?, ?, ?)", (owner, key, json.dumps(row)))
            for key, row in (self._rows[owner]() if owner in self._rows else {}).items()
        ]

    def _write(self, changes: _Changes, states: Mapping[str, str]) -> None:
        self._files.write(changes.payloads)
        for moves in changes.moves:
            self._files.write([(new, self._files.read(old)) for old, new in moves])
        with self._database:
            for statement, group in groupby(changes.statements, key=itemgetter(0)):
                self._database.executemany(statement, [values for _, values in group])
            self._database.executemany("insert or replace into states values (?, ?)", list(states.items()))
        self._remove(changes.unneeded_segments)

    def _remove(self, segments: list[int]) -> None:
        """Removes segments, or retains their numbers for the next commit.

        An error is only logged: the changes are committed by now, and must not be tried again.
        """
        is_first_failure = not self._unremoved
        self._unremoved += segments
        try:
            self._files.remove(self._unremoved)
        except OSError as problem:
            if is_first_failure:
                log.warning("journal_segments_not_removed", problem=str(problem), path=str(self._path))
        else:
            self._unremoved = []

    def _saved_map(self, locations: Mapping[int, RecordLocation]) -> SegmentMap:
        """Loads the map and removes unreferenced segments that a crash left. New records begin a new segment."""
        numbers = self._files.segment_numbers()
        pointed_to = {location.segment for location in locations.values()}
        saved = SegmentMap(locations.items(), first_free=max((*numbers, *pointed_to), default=0) + 1)
        self._files.remove(number for number in numbers if number not in pointed_to)
        return saved

    def _fail(self, problem: Exception) -> None:
        if self.failure is None:
            log.error("journal_failed", problem=str(problem), path=str(self._path))
        self.failure = _explained(problem, self._path)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _location(row: tuple[Any, ...]) -> tuple[int, RecordLocation]:
    """Returns number and location of a payload. Raises: ValueError for columns that are no position."""
    number, *position = row
    if not all(isinstance(value, int) and value >= 0 for value in position):
        raise ValueError(f"{position} is no position in a segment")
    segment, offset, length = position
    return number, RecordLocation(segment=segment, offset=offset, length=length)


def _bodies(states: Mapping[str, Mapping[str, Json]]) -> dict[str, str]:
    return {name: json.dumps(dict(state)) for name, state in states.items()}


def _columns(location: RecordLocation) -> tuple[int, int, int]:
    return (location.segment, location.offset, location.length)


def _explained(problem: Exception, path: Path) -> AstraFlowError:
    if is_disk_full(problem):
        return StorageFull(
            f"cannot write {str(path)!r}: the disk is full; free some space, then the run continues by itself",
            code="journal.disk_full",
        )
    return CorruptData(
        f"cannot write {str(path)!r}: {problem}; check the disk and its permissions", code="journal.write_failed"
    )
