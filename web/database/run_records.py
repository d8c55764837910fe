"""Database queries of runs. Each takes a session and is one step of a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, select

from web.database.tables import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRun:
    """State of a run in the newest report."""

    name: str
    recipe: str
    dataflow: str
    started_at: float
    at: float
    sequence: int
    report_json: str
    folder: str = ""
    """Directory of the run; empty if unknown."""


def upsert_run_record(session: Session, sighting: SeenRun, *, record_id: int | None) -> int:
    """Updates the run's record and returns its id.

    record_id: record of this process; None for the latest record that the report continues, or a new one.
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
    record.folder = sighting.folder or record.folder
    session.flush()
    if record.id is None:
        raise RuntimeError("a flushed record has an id")
    return record.id


def runs(session: Session) -> Sequence[RunRecord]:
    """All recorded runs, newest first."""
    return session.exec(select(RunRecord).order_by(col(RunRecord.last_at).desc())).all()


def run(session: Session, run_id: int) -> RunRecord | None:
    """Recorded run with this id; None if unknown."""
    return session.get(RunRecord, run_id)


def recorded_until(session: Session, name: str) -> int:
    """Sequence of the newest recorded report of the run with this name; 0 if it is unknown."""
    query = select(RunRecord).where(RunRecord.name == name).order_by(col(RunRecord.id).desc())
    newest = session.exec(query).first()
    return 0 if newest is None else newest.last_sequence


def _record_continued_by(session: Session, sighting: SeenRun) -> RunRecord | None:
    """Newest record of the same run; a report whose sequence went back belongs to another run of that name."""
    query = select(RunRecord).where(RunRecord.name == sighting.name)
    newest = session.exec(query.order_by(col(RunRecord.id).desc())).first()
    if newest is None or newest.last_sequence > sighting.sequence:
        return None
    return newest
