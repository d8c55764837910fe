"""Reads the facts of all policies from the archive of a run, which may go on or have ended."""

import sqlite3
from collections.abc import Mapping, Sequence

from astraflow.archive.reports import find_rounds
from astraflow.archive.samples import find_groups, find_trajectories
from astraflow.archive.training_steps import find_steps
from astraflow.contract.ids import PolicyId
from astraflow.contract.records import Record
from astraflow.contract.reports.queries import GroupQuery, TrajectoryQuery
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepQuery
from astraflow.learning.examine import examine
from astraflow.learning.facts import ENOUGH_STEPS, LearningFacts

FIRST_STEPS = ENOUGH_STEPS
LATEST_STEPS = 300
LATEST_GROUPS = 200
LATEST_ROLLOUTS = 400
LATEST_ROUNDS = 100


def examine_archive(
    database: sqlite3.Connection, steps: Mapping[PolicyId, int], *, earlier: Sequence[Record] = (), is_learned: bool
) -> tuple[Record, ...]:
    """Returns the faults of all policies. steps: number of steps of each policy. earlier: latest result.

    Raises: errors of SQLite.
    """
    courses = {policy: _steps(database, policy, count) for policy, count in steps.items()}
    rounds = [
        report for report in find_rounds(database, before=None, limit=LATEST_ROUNDS) if report.finished_at is not None
    ]
    records: list[Record] = []
    for policy, course in courses.items():
        facts = LearningFacts(
            policy=policy,
            steps=course,
            groups=find_groups(database, GroupQuery(policy=policy, limit=LATEST_GROUPS)).groups,
            rollouts=find_trajectories(database, TrajectoryQuery(policy=policy, limit=LATEST_ROLLOUTS)).trajectories,
            rounds=rounds[::-1],
            others={other: of_other for other, of_other in courses.items() if other != policy},
            is_learned=is_learned,
        )
        records += examine(facts, [record for record in earlier if record.subject == policy])
    return tuple(records)


def _steps(database: sqlite3.Connection, policy: PolicyId, count: int) -> tuple[TrainingStep, ...]:
    first = _read(database, policy, after=0, limit=FIRST_STEPS)
    return first + _read(database, policy, after=max(FIRST_STEPS, count - LATEST_STEPS), limit=LATEST_STEPS)


def _read(database: sqlite3.Connection, policy: PolicyId, *, after: int, limit: int) -> tuple[TrainingStep, ...]:
    return find_steps(database, TrainingStepQuery(policy=policy, after=after, limit=limit)).steps
