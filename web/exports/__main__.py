"""`python -m web.exports`: writes the export of a run from a copy of its page's database and its folder, and ends."""

import argparse
import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path

from sqlmodel import Session, col, select

from astraflow.client.offline_run import OfflineRun
from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.service import print_error
from web.database.db import open_database
from web.database.tables import RunRecord
from web.exports.content import RecordedRun, export_content, recorded_run
from web.exports.document import export_html
from web.history.backfill import backfill_database


async def write_export(folder: RunFolder, directory: Path, output: Path) -> None:
    """Writes the export. directory: of the database, which is filled from the run's archive if it lacks the run.

    Raises: InvalidInput for a run without readable records, OSError.
    """
    name, database = folder.facts.run, open_database(directory)
    try:
        recorded = await database.read(lambda session: _recorded(session, name))
        if recorded is None:
            await backfill_database(folder, database)
            recorded = await database.read(lambda session: _recorded(session, name))
    finally:
        database.close()
    if recorded is None:
        raise RuntimeError("a run that was filled in is recorded")
    offline = OfflineRun(folder.path)
    source, now = offline if offline.exists else None, SystemClock().wall()
    content = await export_content(recorded, source, folder.path, at=now, release=version("astraflow"))
    draft = output.with_name(f"{output.name}.{os.getpid()}")
    draft.write_bytes(await asyncio.to_thread(export_html, content))
    draft.replace(output)


def _recorded(session: Session, name: str) -> RecordedRun | None:
    query = select(RunRecord).where(RunRecord.name == name).order_by(col(RunRecord.id).desc())
    record = session.exec(query).first()
    return None if record is None else recorded_run(session, record)


def main(arguments: list[str] | None = None) -> int:
    """Writes the file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m web.exports", description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path, help="the run's directory")
    parser.add_argument("--directory", required=True, type=Path, help="directory of the page's database")
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(write_export(RunFolder(options.run_dir), options.directory, options.output))
    except AstraFlowError as problem:
        print_error(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
