"""The database of a page, filled from the archive of an ended run."""

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlmodel import select

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import RunFolder
from tests.errors import raises_code
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.synthetic_run import SyntheticRun
from web.database.db import open_database
from web.database.tables import RunRecord
from web.history.backfill import backfill_database

pytestmark = pytest.mark.anyio


async def test_unreadable_reports_are_left_out_and_the_page_says_so(tmp_path: Path) -> None:
    synthetic_run, folder = SyntheticRun(began_at=1200.0), run_folder(tmp_path / "run")
    archive = recorded_archive(folder)
    fill(archive, reports=tuple(synthetic_run.report(second) for second in range(1, 31)))
    for sequence in (10, 20):
        archive.put("update seconds set body = ? where sequence = ?", b"no frame", sequence)
    archive.close()

    recorded, events = await backfilled(folder, tmp_path / "page")

    assert recorded == 28
    (event,) = [event for event in events if event["kind"] == "reports_skipped"]
    assert event["values"]["reports"] == 2
    assert event["values"]["error"].startswith("CorruptData:")


async def test_a_damaged_archive_is_refused_and_the_log_has_the_cause(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    archive = recorded_archive(folder)
    fill(archive, reports=(SyntheticRun().report(1),))
    archive.close()
    file = folder / ARCHIVE_PATH
    file.write_bytes(file.read_bytes()[:5000])

    with structlog.testing.capture_logs() as entries, raises_code(InvalidInput, "history.no_report"):
        await backfilled(folder, tmp_path / "page")

    (entry,) = entries
    assert entry["event"] == "archive_truncated"
    assert "malformed; restore it from a backup if it is damaged" in entry["problem"]


async def backfilled(folder: Path, page: Path) -> tuple[int, list[dict[str, Any]]]:
    """Fills a new database from the archive in the folder; returns the number of reports, and the run's events."""
    database = open_database(page)
    try:
        recorded = await backfill_database(RunFolder(folder), database)
        report = await database.read(lambda session: session.exec(select(RunRecord.report_json)).one())
    finally:
        database.close()
    return recorded, json.loads(report)["events"]
