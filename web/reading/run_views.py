"""One run over a stretch of time, for its pages and its files: read from what is kept, whether it goes on or not."""

from collections.abc import Mapping, Sequence

from sqlmodel import Session

from web.feed.pins import Pin, pin_of
from web.feed.report_json import report_from_json
from web.history import reading as history
from web.history.points import CHARTED_NODES, VALUES
from web.history.ranges import TimeRange, range_from
from web.history.reading import Row
from web.history.samples import node_subject, policy_subject
from web.parts import Parts
from web.present.runs import SHOWN_POINTS, RunPast, RunView, run_view
from web.reading.run_pages import is_live, pins_of, record_of
from web.tables import RunRecord


async def view_of(
    parts: Parts, run_id: int, policy: str, *, span: TimeRange | None = None, at_most: int = SHOWN_POINTS
) -> RunView:
    """Everything that its page shows. Raises: HTTPException for a run that was never recorded."""
    return (await seen_of(parts, run_id, policy, span=span, at_most=at_most))[0]


async def seen_of(
    parts: Parts, run_id: int, policy: str, *, span: TimeRange | None = None, at_most: int = SHOWN_POINTS
) -> tuple[RunView, RunPast]:
    """The same, with the numbers that it is made from."""
    record, chosen, past = await _past_of(parts, run_id, policy, span=span, at_most=at_most)
    live = parts.state.report if is_live(parts, run_id) else None
    return run_view(record, past, policy=chosen, live=live, dataflow=record.dataflow), past


async def _past_of(
    parts: Parts, run_id: int, policy: str, *, span: TimeRange | None = None, at_most: int = SHOWN_POINTS
) -> tuple[RunRecord, str, RunPast]:
    """The run's record, the policy that is shown, and what is known of it. Raises: as `view_of`."""
    record = await record_of(parts, run_id)
    live = parts.state.report if is_live(parts, run_id) else None
    end = record.last_at if span is None or span.end is None else span.end
    since = None if span is None else end - span.duration_s
    chosen, rows, lags = await parts.database.look(
        lambda session: _past(session, run_id, policy, since=since, until=end + 1.0, at_most=at_most)
    )
    if live is not None and at_most > 1:
        pins: Sequence[Pin] = await pins_of(parts)
    else:
        events = report_from_json(record.report_json).events
        pins = [pin for event in events if (pin := pin_of(event)) is not None]
    return record, chosen, RunPast(rows=rows, lags=lags, pins=pins, span=span)


def _past(
    session: Session, run_id: int, policy: str, *, since: float | None, until: float, at_most: int
) -> tuple[str, list[Row], dict[str, list[Row]]]:
    """The policy that is shown, its numbers, and how far those nodes were behind that were farthest."""
    known = history.subjects(session, run_id, "policy")
    chosen = policy if policy in known else next(iter(known), "")
    rows = history.rows(session, run_id, policy_subject(chosen), VALUES, since=since, until=until, at_most=at_most)
    names = history.leaders(session, run_id, "node", "lag", at_most=CHARTED_NODES) if at_most > 1 else []
    lags = {
        name: history.rows(session, run_id, node_subject(name), ("lag",), since=since, until=until, at_most=at_most)
        for name in names
    }
    return chosen, rows, lags


def span_from(query: Mapping[str, str]) -> TimeRange | None:
    """The stretch of time that an address asks for; None for the whole run."""
    return range_from(query) if query.get("range") or query.get("from") else None
