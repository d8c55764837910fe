"""Trajectories are exported once, in order, with their final outcomes."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from astraflow.archive.connection import open_recorded
from astraflow.archive.samples import find_trajectories
from astraflow.cli.main import app
from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.ids import GroupId
from astraflow.contract.reports.queries import TrajectoryPage, TrajectoryQuery
from astraflow.contract.reports.report import Completion, Report
from astraflow.dataflow.history.samples import TrajectorySamples
from astraflow.tracking.trajectory_export import BUFFERED_S, TrajectoryExport, export_folder
from tests import make
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.fakes.recorded_run import SOLVER, fill, recorded_archive, run_folder

pytestmark = pytest.mark.anyio

FINISHED = Completion(at=1.0, reason="30 steps", has_learned=True, ends_run=True)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Returns all exported trajectories, in the order of the files' names."""
    files = sorted((folder / "trajectories").iterdir())
    return [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def export_of(run: Path, target: Path) -> TrajectoryExport:
    """Returns an export of the archive in a run's folder."""

    async def find(query: TrajectoryQuery) -> TrajectoryPage:
        with closing(open_recorded(run / "dataflow" / "history.sqlite")) as database:
            return find_trajectories(database, query)

    with export_folder(str(target), {}, state=target) as folder:
        return TrajectoryExport(folder, find, location=str(target))


def record(run: Path, *, buffered: tuple[int, ...] = (), groups: int = 3) -> None:
    """Records groups of three trajectories; these groups wait for a trainer."""
    archive = recorded_archive(run)
    fill(archive, groups=groups)
    for number in buffered:
        archive.put("update samples set outcome = 'buffered' where group_id = ?", f"train:{number}")
    archive.close()


async def test_trajectories_behind_a_buffered_group_are_exported_when_its_outcome_is_known(tmp_path: Path) -> None:
    run, target = run_folder(tmp_path / "run"), tmp_path / "export"
    record(run, buffered=(2,))
    export = export_of(run, target)
    await export.export(now=1000.0, is_over=False)
    assert [(line["group"], line["outcome"]) for line in lines(target)] == [("train:1", "trained")] * 3

    archive = recorded_archive(run)
    TrajectorySamples(archive, limit=100, limit_bytes=10**9).set_outcome(
        SOLVER, GroupId("train:2"), outcome="trained", step=9
    )
    archive.close()
    for again in (export, export_of(run, target)):
        await again.export(now=1000.0, is_over=False)
    assert [line["ordinal"] for line in lines(target)] == list(range(1, 10))
    assert [line["step"] for line in lines(target)][3:6] == [9] * 3
    assert export.count == 9


async def test_a_buffered_group_delays_newer_ones_for_a_limited_time(tmp_path: Path) -> None:
    run, target = run_folder(tmp_path / "run"), tmp_path / "export"
    record(run, buffered=(1,))
    await export_of(run, target).export(now=1001.0 + BUFFERED_S, is_over=False)
    assert not (target / "trajectories").exists()
    await export_of(run, target).export(now=1002.0 + BUFFERED_S, is_over=False)
    assert [line["outcome"] for line in lines(target)] == ["buffered"] * 3 + ["trained"] * 6


async def test_trajectories_of_another_run_are_not_mixed(tmp_path: Path) -> None:
    first, second = run_folder(tmp_path / "first"), run_folder(tmp_path / "second")
    record(first)
    record(second, groups=2)
    await export_of(first, tmp_path / "export").export(now=0.0, is_over=True)
    with raises_code(InvalidInput, "trajectories.another_run"):
        await export_of(second, tmp_path / "export").export(now=0.0, is_over=True)


async def test_an_export_follows_a_run_through_an_outage_until_it_is_complete(tmp_path: Path) -> None:
    run, target, problems = run_folder(tmp_path / "run"), tmp_path / "export", list[str]()
    record(run, buffered=(3,))
    export, clock = export_of(run, target), ManualClock(1000.0)
    counts = []

    async def reports() -> AsyncIterator[Report | AstraFlowError]:
        yield make.report()
        counts.append(export.count)
        yield make.report()
        yield Unavailable("away", code="channel.unreachable")
        yield Unavailable("away", code="channel.unreachable")
        counts.append(export.count)
        yield replace(make.report(), completion=FINISHED)
        raise AssertionError("the export follows a complete run")

    await export.follow(reports(), every_s=60.0, clock=clock, on_problem=problems.append)
    assert (counts, export.count) == ([6, 6], 9)
    assert len(problems) == 1


async def test_a_target_has_one_export_at_a_time(tmp_path: Path) -> None:
    with export_folder(str(tmp_path), {}, state=tmp_path), raises_code(InvalidInput, "trajectories.in_use"):
        await asyncio.to_thread(lambda: export_folder(str(tmp_path), {}, state=tmp_path).__enter__())


def test_the_command_exports_an_ended_run(tmp_path: Path) -> None:
    run, target = run_folder(tmp_path / "run"), tmp_path / "export"
    record(run)
    done = CliRunner().invoke(app, ["trajectories", str(target), "--run-dir", str(run)])
    assert done.exit_code == 0, done.output
    assert "9 trajectories" in done.output
    assert [line["reward"] for line in lines(target)] == [1.0, 0.0, 0.0] * 3
