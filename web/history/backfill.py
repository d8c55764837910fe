"""Fills a page's database from the archive of a run's dataflow, for a run that the page did not follow."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from astraflow.client.offline_run import OfflineRun, offline_reports
from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Event, Report
from astraflow.contract.values import Value
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.logs import get_logger
from web.database.db import Database
from web.history.points import Point, Series
from web.history.recorder import Recorder
from web.history.report_checker import MAX_TEXT, ReportChecker
from web.history.step_recorder import copy_steps

log = get_logger()

REPORTS_PER_FLUSH = 300
"""Reports between two flushes; reports of a large fleet are many megabytes."""

MAX_EVENTS = 100
"""Latest events added to the last report, as a page would have received them."""


async def backfill_database(
    folder: RunFolder, database: Database, *, record_id: int | None = None, after_sequence: int = 0
) -> int:
    """Records the archived reports of a run, up to an unreadable one; returns their number.

    record_id: its record; None for a new one. after_sequence: sequence up to which its time series are recorded.

    Raises: InvalidInput for a folder without readable reports, DBAPIError.
    """
    facts = folder.facts
    run_folder = str(folder.path.absolute())
    recorder = Recorder(
        database,
        dataflow=facts.dataflow,
        recipe=facts.recipe,
        folder=run_folder,
        clock=SystemClock(),
        run_id=record_id,
    )
    last: Report | None = None
    recorded = 0
    skipped: list[str] = []
    for report, point in _readable(folder.path, skipped):
        if report.sequence <= after_sequence:
            continue
        recorder.add(report, point)
        last, recorded = report, recorded + 1
        if recorded % REPORTS_PER_FLUSH == 1:  # flush the first alone: it sets the start of the run
            await recorder.flush()
    if last is None:
        raise InvalidInput(
            f"cannot fill the database: the archive of {str(folder.path)!r} has no readable report; give another run",
            code="history.no_report",
        )
    events = await _events(folder.path)
    recorder.add(replace(last, events=(*events, *_with_skipped_event(skipped, last, events))), None)
    await recorder.flush()
    await _copy_steps(folder.path, recorder, database)
    return recorded


async def _copy_steps(folder: Path, recorder: Recorder, database: Database) -> None:
    """Copies the training steps of the archive. One that cannot be read leaves the run without them."""
    if recorder.report is None or recorder.run_id is None:
        return
    policies = [stream.policy for stream in recorder.report.streams]
    try:
        await copy_steps(OfflineRun(folder), database, recorder.run_id, policies)
    except AstraFlowError as problem:
        log.warning("steps_read_failed", folder=str(folder), problem=str(problem))


def _with_skipped_event(skipped: list[str], last: Report, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Event about the reports that were left out; none if all are shown."""
    if not skipped:
        return ()
    ordinal = max([0, *(event.ordinal for event in events)]) + 1
    values: dict[str, Value] = {"reports": len(skipped), "error": skipped[0]}
    kind = RecordKind.REPORTS_SKIPPED
    return (Event(ordinal=ordinal, at=last.at, kind=kind, subject=last.run, severity=kind.severity, values=values),)


def _readable(folder: Path, skipped: list[str]) -> Iterator[tuple[Report, Point | None]]:
    """Yields the valid reports with their points, up to the end of the readable file.

    skipped: receives the cause for each report that is left out.
    """
    checker, series = ReportChecker(), Series()

    def skip(problem: Exception) -> None:
        skipped.append(f"{type(problem).__name__}: {problem}"[:MAX_TEXT])

    try:
        for report in offline_reports(folder, on_skipped=skip):
            try:
                checked = checker.checked(report)
                point = series.add(checked)
            except Exception as problem:  # a recorded report's content never ends the process
                skip(problem)
            else:
                yield checked, point
    except (CorruptData, InvalidInput) as problem:
        log.warning("archive_truncated", folder=str(folder), problem=str(problem))
    if skipped:
        log.warning("reports_skipped", folder=str(folder), skipped=len(skipped), problem=skipped[0])


async def _events(folder: Path) -> tuple[Event, ...]:
    try:
        page = await OfflineRun(folder).events(EventQuery(limit=MAX_EVENTS))
    except AstraFlowError as problem:
        log.warning("events_read_failed", folder=str(folder), problem=str(problem))
        return ()
    return page.events[::-1]
