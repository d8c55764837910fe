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
        record = _new_record(sighting)
        session.add(record)
    if sighting.sequence >= record.last_sequence:  # an earlier one while the history is read from the run's folder
        _update_last(record, sighting)
    record.history_sequence = sighting.sequence
    session.flush()
    if record.id is None:
        raise RuntimeError("a flushed record has an id")
    return record.id


def import_run(session: Session, sighting: SeenRun) -> None:
    """Records the last report of a run that this page did not follow, unless a newer one is recorded. Its time series
    are read when its page is opened."""
    record = _newest(session, sighting.name)
    if record is None:
        record = _new_record(sighting)
        session.add(record)
    elif sighting.sequence > record.last_sequence:
        _update_last(record, sighting)
    record.folder, record.recipe = sighting.folder, sighting.recipe or record.recipe


def runs(session: Session) -> Sequence[RunRecord]:
    """All recorded runs, newest first."""
    return session.exec(select(RunRecord).order_by(col(RunRecord.last_at).desc())).all()


def run(session: Session, run_id: int) -> RunRecord | None:
    """Recorded run with this id; None if unknown."""
    return session.get(RunRecord, run_id)


def id_of(session: Session, name: str) -> int | None:
    """Id of the newest record of the run with this name; None if it is unknown."""
    return session.exec(select(RunRecord.id).where(RunRecord.name == name).order_by(col(RunRecord.id).desc())).first()


def recorded_until(session: Session, name: str) -> int:
    """Sequence up to which the time series of the run with this name are recorded; 0 if it is unknown."""
    newest = _newest(session, name)
    return 0 if newest is None else newest.history_sequence


def _new_record(sighting: SeenRun) -> RunRecord:
    return RunRecord(
        name=sighting.name,
        recipe=sighting.recipe,
        dataflow=sighting.dataflow,
        started_at=sighting.started_at,
        last_at=sighting.at,
        last_sequence=sighting.sequence,
        report_json=sighting.report_json,
        folder=sighting.folder,
    )


def _update_last(record: RunRecord, sighting: SeenRun) -> None:
    record.last_at = sighting.at
    record.last_sequence = sighting.sequence
    record.report_json = sighting.report_json
    record.dataflow = sighting.dataflow
    record.recipe = sighting.recipe or record.recipe
    record.folder = sighting.folder or record.folder


def _newest(session: Session, name: str) -> RunRecord | None:
    query = select(RunRecord).where(RunRecord.name == name).order_by(col(RunRecord.id).desc())
    return session.exec(query).first()


def _record_continued_by(session: Session, sighting: SeenRun) -> RunRecord | None:
    """Newest record of the same run. A newer report whose sequence went back belongs to another run of that name; an
    older one is from the history that a restarted page reads."""
    newest = _newest(session, sighting.name)
    if newest is None or (newest.last_sequence > sighting.sequence and sighting.at > newest.last_at):
        return None
    return newest
