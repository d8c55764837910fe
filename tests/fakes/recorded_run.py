"""The folder of an ended run: its facts, and the archive that dataflow's own modules write."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from astraflow.archive.training_steps import INSERT_STEP, step_columns
from astraflow.contract.ids import FlowId, GroupId, NodeId, PolicyId, TaskId
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.tasks import Group
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.dataflow.evaluation.rounds import RoundArchive
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.history.history import History
from astraflow.dataflow.history.samples import TrajectorySamples
from astraflow.dataflow.storage.null_journal import NullJournal
from astraflow.runtime.folders.run_folders import RunFacts
from tests import make
from tests.fakes.clock import ManualClock

SOLVER = PolicyId("solver")


def run_folder(path: Path, *, run: str = "reverse-0001") -> Path:
    """Creates the folder with the facts and the recipe only."""
    path.mkdir(parents=True, exist_ok=True)
    facts = RunFacts(
        run=run,
        recipe="reverse",
        seed=1,
        started_at="2026-01-01T00:00:00+00:00",
        release="0",
        commit="",
        python="3",
        pid=1,
    )
    (path / "run.json").write_text(json.dumps(asdict(facts)))
    (path / "recipe.json").write_text("{}")
    return path


def recorded_archive(folder: Path) -> Archive:
    """Opens the archive of the run in this folder for writing."""
    return Archive(folder / "dataflow" / "history.sqlite", clock=ManualClock())


def fill(
    archive: Archive,
    *,
    groups: int = 3,
    text: str = "answer",
    rounds: tuple[EvaluationReport, ...] = (),
    reports: tuple[Report, ...] = (),
    steps: tuple[TrainingStep, ...] = (),
) -> TrajectorySamples:
    """Adds groups of three (one right, one wrong, one failed), rounds, reports and training steps."""
    samples = TrajectorySamples(archive, limit=1000, limit_bytes=10**9)
    for number in range(1, groups + 1):
        samples.add(_group(number, text), {SOLVER: "buffered"}, at=1000.0 + number)
        samples.set_outcome(SOLVER, GroupId(f"train:{number}"), outcome="trained", step=number)
    archive_writer = RoundArchive(archive)
    for round_ in rounds:
        archive_writer.add(round_)
    history = History(NullJournal(), archive, seconds=60, minutes=1000)
    for report in reports:
        history.add(report)
    for step in steps:
        archive.put(INSERT_STEP, *step_columns(step))
    return samples


def _group(number: int, text: str) -> Group:
    name = GroupId(f"train:{number}")
    members = [
        Episode(
            task=TaskId(f"{name}/{member}"),
            node=NodeId("n0"),
            trajectories=(
                replace(
                    make.trajectory(reward=reward, version=number - 1),
                    prompt_text=f"prompt {number} {text}",
                    completion_text=f"{text} {number}.{member}",
                ),
            ),
            duration_s=0.5,
        )
        for member, reward in enumerate((1.0, 0.0))
    ]
    failure = Failure(boundary=Boundary.ENGINE, message=f"out of memory {text}")
    broken = Episode(task=TaskId(f"{name}/2"), node=NodeId("n0"), trajectories=(), failure=failure, duration_s=2.0)
    return Group(id=name, flow=FlowId("train"), prompt=make.prompt(number), episodes=(*members, broken))
