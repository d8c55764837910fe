"""Evaluation rounds in the archive: stored for display, the latest ones only, and restored from the journal."""

from pathlib import Path

import pytest

from astraflow.archive.reports import find_rounds
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.dataflow.evaluation import rounds as rounds_module
from astraflow.dataflow.evaluation.rounds import RoundArchive
from astraflow.dataflow.history.archive import Archive
from tests import make
from tests.dataflow.running import archive_in

pytestmark = pytest.mark.anyio


async def kept(archive: Archive) -> list[EvaluationReport]:
    return await archive.read(lambda database: find_rounds(database, before=None, limit=100))


async def test_only_the_latest_rounds_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds_module, "MAX_STORED_ROUNDS", 3)
    archive = archive_in(tmp_path)
    rows = RoundArchive(archive)
    for number in range(1, 6):
        rows.add(make.round_report(number))
    assert await kept(archive) == [make.round_report(5), make.round_report(4), make.round_report(3)]
    archive.close()


async def test_rounds_missing_in_the_archive_are_restored_once(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    rows = RoundArchive(archive)
    rows.add(make.round_report(2))
    rows.restore([make.round_report(1), make.round_report(2)])
    assert [evaluation.round for evaluation in await kept(archive)] == [2, 1]
    archive.close()
