"""Runs of this machine that this page did not follow: a record for each, and their history when it is opened."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from astraflow.client.local_runs import LocalRun, LocalRuns
from astraflow.client.offline_run import OfflineRun, archive_signature, last_report
from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.runtime.clock import Clock
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from web.database import run_records
from web.database.db import Database
from web.database.run_records import SeenRun
from web.database.tables import RunRecord
from web.history.backfill import backfill_database
from web.history.report_json import recorded_json, report_from_json
from web.history.step_recorder import copy_steps

log = get_logger()

IMPORT_INTERVAL_S = 2.0
"""Interval between two scans for ended runs without a record, in seconds."""

RUNS_PER_TRANSACTION = 20

PATIENCE_S = 1.0
"""Time for which a page waits for the history of a run, so that a short one is complete at once. Seconds."""


class MachineRuns:
    """Records of this machine's runs. A record is made from the facts and the last report in the run's archive; all
    other reports are read once, in a thread, when the page of the run is opened.

    is_followed: returns whether the reports of this run arrive, which makes its record. includes_active: also records
    active runs, for a page that follows none.
    """

    def __init__(
        self,
        local: LocalRuns,
        database: Database,
        *,
        clock: Clock,
        is_followed: Callable[[str], bool],
        includes_active: bool = False,
    ) -> None:
        self._local = local
        self._database = database
        self._clock = clock
        self._is_followed = is_followed
        self._includes_active = includes_active
        self._imported: dict[Path, object] = {}
        """Signature of the archive by folder."""
        self._readers: dict[int, asyncio.Task[None]] = {}
        """Tasks that read the history of a run, by record."""
        self._failed: dict[int, object] = {}
        """Signature of an archive whose history could not be read, by record."""
        self._complete: dict[int, object] = {}
        """Signature of an archive whose training steps are all recorded, by record."""

    async def run(self) -> None:
        """Records new runs until cancelled."""

        async def import_runs() -> None:
            try:
                await self.import_runs()
            except (DBAPIError, Unavailable, OSError) as problem:
                log.warning("runs_not_imported", problem=str(problem))

        try:
            await periodic(import_runs, every_s=IMPORT_INTERVAL_S, clock=self._clock)
        finally:
            for reader in self._readers.values():
                reader.cancel()

    async def import_runs(self) -> None:
        """Records the last report of each run that this page does not follow and whose archive has changed."""
        runs = await asyncio.to_thread(self._local.all)
        waiting = [
            run for run in runs if (self._includes_active or not run.is_active) and not self._is_followed(run.name)
        ]
        changed = await asyncio.to_thread(self._changed, waiting)
        for first in range(0, len(changed), RUNS_PER_TRANSACTION):
            await asyncio.to_thread(self._import, changed[first : first + RUNS_PER_TRANSACTION])

    def _changed(self, runs: Sequence[LocalRun]) -> list[tuple[LocalRun, object]]:
        signed = [(run, archive_signature(run.folder.path)) for run in runs]
        return [(run, signature) for run, signature in signed if self._imported.get(run.folder.path) != signature]

    def _import(self, runs: Sequence[tuple[LocalRun, object]]) -> None:
        sightings = list(_sightings(run for run, _ in runs))

        def write(session: Session) -> None:
            for sighting in sightings:
                run_records.import_run(session, sighting)

        self._database.write_sync(write)
        self._imported |= {run.folder.path: signature for run, signature in runs}

    async def read_history(self, record: RunRecord) -> bool:
        """Starts to read the history of a run that is not recorded; returns whether it is complete, or cannot be read,
        after a moment."""
        if not record.folder or record.id is None:
            return True
        signature = archive_signature(Path(record.folder))
        if record.history_sequence >= record.last_sequence:
            if self._complete.get(record.id) != signature and not self._is_followed(record.name):
                self._complete[record.id] = signature
                await self._copy_last_steps(record, record.id)
            return True
        if record.id not in self._readers:
            if self._failed.get(record.id) == signature:
                return True
            self._readers[record.id] = asyncio.create_task(self._read(record, signature))
        await asyncio.wait([self._readers[record.id]], timeout=PATIENCE_S)
        return record.id not in self._readers

    async def _copy_last_steps(self, record: RunRecord, record_id: int) -> None:
        """Copies the steps that a run made after the last report that this page received."""
        policies = [stream.policy for stream in report_from_json(record.report_json).streams]
        try:
            await copy_steps(OfflineRun(Path(record.folder)), self._database, record_id, policies)
        except (AstraFlowError, DBAPIError) as problem:
            log.warning("steps_not_copied", run=record.name, folder=record.folder, problem=str(problem))

    async def _read(self, record: RunRecord, signature: object) -> None:
        record_id = record.id or 0

        def fill() -> None:
            work = backfill_database(
                RunFolder(Path(record.folder)),
                self._database,
                record_id=record_id,
                after_sequence=record.history_sequence,
            )
            asyncio.run(work)  # in a thread of its own, so that requests do not wait

        try:
            await asyncio.to_thread(fill)
        except (AstraFlowError, DBAPIError, OSError) as problem:
            self._failed[record_id] = signature
            log.warning("history_not_read", run=record.name, folder=record.folder, problem=str(problem))
        finally:
            del self._readers[record_id]


def _sightings(runs: Iterator[LocalRun]) -> Iterator[SeenRun]:
    for run in runs:
        report = last_report(run.folder.path)
        if report is not None:
            yield SeenRun(
                name=run.name,
                recipe=run.recipe,
                dataflow=run.facts.dataflow if run.facts else "",
                started_at=min(report.at - report.uptime_s, run.started_at or report.at),
                at=report.at,
                sequence=report.sequence,
                report_json=recorded_json(report),
                folder=str(run.folder.path.absolute()),
            )
