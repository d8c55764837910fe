"""`python -m web.history.retelling`: fills a page's database from what a run's dataflow kept, and ends.

So a run that had no page can be looked at like one that had. It is a process of its own: what unpacks reports, and the
reports, are not needed afterwards.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from astraflow.client.kept import KeptRun
from astraflow.client.kept_reports import kept_reports
from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput
from astraflow.contract.lookups import EventQuery
from astraflow.contract.reports import Event, Report
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.runs import RunFolder
from astraflow.runtime.service import print_error
from web.db import Database, open_database
from web.history.checking import MAX_TEXT, ReportChecker
from web.history.points import Point, Series
from web.history.recorder import Recorder

log = get_logger()

AT_ONCE = 300
"""Reports between two flushes: those of a large fleet are many megabytes."""

RETOLD_EVENTS = 100
"""The latest so many come with the last report, as a page that was there would have seen them."""


async def retell(folder: RunFolder, database: Database) -> int:
    """Record what was kept of a run, up to where it can be read; returns the number of reports.

    Raises: InvalidInput for a folder that holds none, DBAPIError.
    """
    facts = folder.facts
    place = str(folder.path.absolute())
    recorder = Recorder(database, dataflow=facts.dataflow, recipe=facts.recipe, folder=place, clock=SystemClock())
    last: Report | None = None
    told = 0
    skipped: list[str] = []
    for report, point in _readable(folder.path, skipped):
        recorder.add(report, point)
        last, told = report, told + 1
        if told % AT_ONCE == 1:  # the first by itself: it says when the run began
            await recorder.flush()
    if last is None:
        raise InvalidInput(f"the archive of {folder.path} holds no report that can be read")
    events = await _events(folder.path)
    recorder.add(replace(last, events=(*events, *_told_skipped(skipped, last, events))), None)
    await recorder.flush()
    return told


def _told_skipped(skipped: list[str], last: Report, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Says on the page of the run how many of its reports are left out."""
    if not skipped:
        return ()
    ordinal = max([0, *(event.ordinal for event in events)]) + 1
    message = f"{len(skipped)} recorded reports cannot be shown and are left out; the first: {skipped[0]}"
    return (Event(ordinal=ordinal, at=last.at, kind="reports_skipped", subject=last.run, message=message),)


def _readable(folder: Path, skipped: list[str]) -> Iterator[tuple[Report, Point | None]]:
    """Yields the reports that can be shown, with their points, up to where the file is torn.

    skipped: gets why, for each that cannot be shown.
    """
    checker, series = ReportChecker(), Series()

    def skip(problem: Exception) -> None:
        skipped.append(f"{type(problem).__name__}: {problem}"[:MAX_TEXT])

    try:
        for report in kept_reports(folder, on_skipped=skip):
            try:
                checked = checker.checked(report)
                point = series.add(checked)
            except Exception as problem:  # a recorded report's content never ends the process
                skip(problem)
            else:
                yield checked, point
    except (CorruptData, InvalidInput) as problem:
        log.warning("history_is_torn", folder=str(folder), problem=str(problem))
    if skipped:
        log.warning("reports_skipped", folder=str(folder), skipped=len(skipped), problem=skipped[0])


async def _events(folder: Path) -> tuple[Event, ...]:
    try:
        page = await KeptRun(folder).events(EventQuery(limit=RETOLD_EVENTS))
    except AstraFlowError as problem:
        log.warning("events_not_read", folder=str(folder), problem=str(problem))
        return ()
    return page.events[::-1]


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m web.history.retelling", description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path, help="the run's directory")
    parser.add_argument("--directory", required=True, type=Path, help="where the page's database is made")
    chosen = parser.parse_args(arguments)
    try:
        database = open_database(chosen.directory)
        try:
            asyncio.run(retell(RunFolder(chosen.run_dir), database))
        finally:
            database.close()
    except AstraFlowError as problem:
        print_error(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
