"""Labels that people give to sampled trajectories: checked, stored with a copy of the trajectory, and audited."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import isfinite

from sqlmodel import Session, col, select
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from astraflow.contract.reports.report import SampledTrajectory
from web.database.db import Database
from web.database.tables import RunRecord, TrajectoryLabel
from web.requests.commands import Commands
from web.security.audit_log import AuditedCommand
from web.trajectories.data_sets import (
    BAD,
    GOOD,
    WRONG_REWARD,
    LabelledRollout,
    rollout_from_json,
    rollout_json,
    rollout_of,
)

LABEL_KEYS = {GOOD: "1", BAD: "2", WRONG_REWARD: "3"}
"""Labels with a button, and its key."""

MAX_LABEL_CHARS = 60
MAX_NOTE_CHARS = 2000
MAX_LABELS = 10_000
"""Most labels of a run that are listed and saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest:
    """Checked label for a trajectory."""

    label: str
    note: str = ""
    expected_reward: float | None = None


def label_request(label: str, note: str = "", expected_reward: float | None = None) -> LabelRequest:
    """Returns a checked label. Raises: InvalidInput."""
    shown = "".join(letter if letter.isprintable() else " " for letter in label)
    label, note = " ".join(shown.split()), note.strip()
    if len(label) > MAX_LABEL_CHARS or not re.search(r"\w", label):
        raise InvalidInput(
            f"cannot label the trajectory: the label has {len(label)} characters or no letter; use up to "
            f"{MAX_LABEL_CHARS} characters",
            code="label.invalid",
        )
    if len(note) > MAX_NOTE_CHARS or (expected_reward is not None and not isfinite(expected_reward)):
        raise InvalidInput(
            f"cannot label the trajectory: the note has {len(note)} characters or the expected reward is not finite; "
            f"use at most {MAX_NOTE_CHARS} characters and a number",
            code="label.invalid",
        )
    return LabelRequest(label=label, note=note, expected_reward=expected_reward)


async def put_label(
    commands: Commands, database: Database, run: RunRecord, sample: SampledTrajectory, request: LabelRequest, at: float
) -> str:
    """Adds a label to a trajectory, or replaces the same label of it; returns a sentence."""

    def write(session: Session) -> None:
        known = select(TrajectoryLabel).where(
            col(TrajectoryLabel.run_id) == run.id,
            col(TrajectoryLabel.ordinal) == sample.ordinal,
            col(TrajectoryLabel.label) == request.label,
        )
        row = session.exec(known).first() or TrajectoryLabel(
            run_id=run.id or 0, ordinal=sample.ordinal, label=request.label, note="", author="", at=at, rollout_json=""
        )
        row.note, row.expected_reward = request.note, request.expected_reward
        row.author, row.at, row.rollout_json = commands.viewer.name, at, rollout_json(rollout_of(sample))
        session.add(row)

    facts = {"label": request.label, "note": request.note, "expected_reward": request.expected_reward}
    command = AuditedCommand(action="trajectory.label", target=f"{run.name} trajectory {sample.ordinal}", after=facts)
    await _audited(commands, database, command, write)
    return f"trajectory {sample.ordinal} is labelled {request.label!r}"


async def remove_label(commands: Commands, database: Database, run: RunRecord, label_id: int) -> str:
    """Removes a label of a run; returns a sentence. Raises: HTTPException for an unknown one."""
    row = await database.read(lambda session: session.get(TrajectoryLabel, label_id))
    if row is None or row.run_id != run.id:
        raise HTTPException(404, f"cannot remove the label {label_id}: the run has no such label; reload the page")

    def delete(session: Session) -> None:
        if (current := session.get(TrajectoryLabel, label_id)) is not None:
            session.delete(current)

    facts = {"label": row.label, "note": row.note, "author": row.author}
    command = AuditedCommand(
        action="trajectory.remove_label", target=f"{run.name} trajectory {row.ordinal}", before=facts
    )
    await _audited(commands, database, command, delete)
    return f"label {row.label!r} of trajectory {row.ordinal} is removed"


async def _audited(
    commands: Commands, database: Database, command: AuditedCommand, change: Callable[[Session], None]
) -> None:
    async def write() -> None:
        await database.write(change)

    await commands.audit_log.record(commands.viewer.author, command, write)


async def labels_of_run(
    database: Database, run_id: int, *, label: str = "", ordinals: Collection[int] | None = None
) -> Sequence[TrajectoryLabel]:
    """Returns labels of a run, newest first. label: only these. ordinals: only those of these trajectories."""

    def read(session: Session) -> Sequence[TrajectoryLabel]:
        query = select(TrajectoryLabel).where(col(TrajectoryLabel.run_id) == run_id)
        if label:
            query = query.where(col(TrajectoryLabel.label) == label)
        if ordinals is not None:
            query = query.where(col(TrajectoryLabel.ordinal).in_(ordinals))
        return session.exec(query.order_by(col(TrajectoryLabel.id).desc()).limit(MAX_LABELS)).all()

    return await database.read(read)


def labelled_rollouts(labels: Sequence[TrajectoryLabel]) -> list[LabelledRollout]:
    """Returns the rollouts of these labels, oldest first, each once with all its labels."""
    by_ordinal: dict[int, list[TrajectoryLabel]] = {}
    for label in reversed(labels):
        by_ordinal.setdefault(label.ordinal, []).append(label)
    return [
        LabelledRollout(
            rollout=rollout_from_json(members[-1].rollout_json),
            labels=frozenset(label.label for label in members),
            expected_reward=next(
                (label.expected_reward for label in reversed(members) if label.expected_reward is not None), None
            ),
        )
        for members in by_ordinal.values()
    ]
