"""Reads and writes of the database, named. Each takes a session and is one step of a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col, delete, select

from web.tables import RunPoint, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A run as the newest report shows it."""

    name: str
    recipe: str
    dataflow: str
    started_at: float
    at: float
    sequence: int
    report_json: str


def see_run(session: Session, sighting: Sighting, *, record_id: int | None) -> int:
    """Bring the run's record up to date and return its id.

    record_id: the record this process writes to; None finds the latest one that the report can continue, or makes one.
    """
    record = session.get(RunRecord, record_id) if record_id is not None else _record_continued_by(session, sighting)
    if record is None:
        record = RunRecord(
            name=sighting.name,
            recipe=sighting.recipe,
            dataflow=sighting.dataflow,
            started_at=sighting.started_at,
            last_at=sighting.at,
            last_sequence=sighting.sequence,
            report_json=sighting.report_json,
        )
        session.add(record)
    record.last_at = sighting.at
    record.last_sequence = sighting.sequence
    record.report_json = sighting.report_json
    record.dataflow = sighting.dataflow
    record.recipe = sighting.recipe or record.recipe
    session.flush()
    if record.id is None:
        raise RuntimeError("a flushed record has an id")
    return record.id


def add_points(session: Session, points: Sequence[RunPoint]) -> None:
    """Keep points; those that are there already stay as they are."""
    if points:
        rows = [point.model_dump() for point in points]
        dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
        session.execute(dialect.insert(RunPoint).on_conflict_do_nothing(), rows)


def prune_points(session: Session, run_id: int, *, before_sequence: int) -> None:
    """Drop the run's points that are older."""
    session.exec(delete(RunPoint).where(col(RunPoint.run_id) == run_id, col(RunPoint.sequence) < before_sequence))


def runs(session: Session) -> Sequence[RunRecord]:
    """Every recorded run, newest first."""
    return session.exec(select(RunRecord).order_by(col(RunRecord.last_at).desc())).all()


def run(session: Session, run_id: int) -> RunRecord | None:
    """One recorded run."""
    return session.get(RunRecord, run_id)


def run_policies(session: Session, run_id: int) -> Sequence[str]:
    """Policies of which the run has points, in order of their names."""
    query = select(RunPoint.policy).where(RunPoint.run_id == run_id).distinct().order_by(col(RunPoint.policy))
    return session.exec(query).all()


def run_points(session: Session, run_id: int, policy: str, *, at_most: int) -> Sequence[RunPoint]:
    """The run's points of one policy, oldest first, thinned evenly to about `at_most`; the newest is always there."""
    bounds = select(func.min(RunPoint.sequence), func.max(RunPoint.sequence)).where(
        col(RunPoint.run_id) == run_id, col(RunPoint.policy) == policy
    )
    first, last = session.exec(bounds).one()
    if last is None:
        return []
    stride = max(1, -(-(last - first + 1) // at_most))
    chosen = select(RunPoint).where(
        RunPoint.run_id == run_id, RunPoint.policy == policy, (last - col(RunPoint.sequence)) % stride == 0
    )
    return session.exec(chosen.order_by(col(RunPoint.sequence))).all()


def _record_continued_by(session: Session, sighting: Sighting) -> RunRecord | None:
    """The newest record of the same run; a report whose sequence went back belongs to another run of that name."""
    query = select(RunRecord).where(RunRecord.name == sighting.name)
    newest = session.exec(query.order_by(col(RunRecord.id).desc())).first()
    if newest is None or newest.last_sequence > sighting.sequence:
        return None
    return newest
