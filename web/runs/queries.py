"""View of one run over a time range, from recorded data, for its pages and downloads."""

from collections.abc import Mapping, Sequence

from sqlmodel import Session

from web.alerting.store import latest_alerts
from web.database.tables import RunRecord
from web.history import series_queries as history
from web.history.points import MAX_CHARTED_NODES, VALUES
from web.history.report_json import report_from_json
from web.history.samples import node_subject, policy_subject
from web.history.series_queries import Row
from web.history.time_ranges import TimeRange, range_from
from web.history.training_steps import TrainingRows, training_rows
from web.requests.run_lookup import ShownRun, annotations_of, state_of
from web.runs.views import SHOWN_POINTS, RunHistory, RunView, run_view
from web.state.annotations import Annotation, alert_annotation, annotation_of


async def load_run_view(
    shown: ShownRun, policy: str, *, span: TimeRange | None = None, at_most: int = SHOWN_POINTS
) -> RunView:
    """Returns the view model of the page. Raises: HTTPException for an unknown run."""
    return (await load_run_view_and_history(shown, policy, span=span, at_most=at_most))[0]


async def load_run_view_and_history(
    shown: ShownRun,
    policy: str,
    *,
    span: TimeRange | None = None,
    at_most: int = SHOWN_POINTS,
    training_at_most: int | None = 0,
    metric: str = "",
) -> tuple[RunView, RunHistory]:
    """Returns the view model with the figures behind it. Raises: HTTPException for an unknown run.

    at_most: maximum rows of the charts over time. training_at_most, metric: which training steps, as in
    `training_rows`; 0 for none.
    """
    record, shown_policy, past = await _load_history(
        shown, policy, span=span, at_most=at_most, training_at_most=training_at_most, metric=metric
    )
    run = await shown.local(record)
    if run is not None and run.recipe:
        record.recipe = run.recipe  # the name that it was launched by; reports know the title of the recipe
    state = state_of(run, folder=record.folder, is_heard=shown.is_live)
    return run_view(record, past, policy=shown_policy, live=shown.report, dataflow=record.dataflow, state=state), past


async def _load_history(
    shown: ShownRun, policy: str, *, span: TimeRange | None, at_most: int, training_at_most: int | None, metric: str
) -> tuple[RunRecord, str, RunHistory]:
    """Returns the record, the shown policy, and the figures. Raises: as `load_run_view`."""
    record = await shown.record()
    live, run_id = shown.report, shown.id
    end = record.last_at if span is None or span.end is None else span.end
    since = None if span is None else end - span.duration_s
    shown_policy, rows, lags = await shown.database.read(
        lambda session: _read_history(session, run_id, policy, since=since, until=end + 1.0, at_most=at_most)
    )
    training = TrainingRows(rows=[])
    if training_at_most != 0:
        training = await shown.database.read(
            lambda session: training_rows(
                session, run_id, shown_policy, since=since, until=end + 1.0, at_most=training_at_most, metric=metric
            )
        )
    alerts = await shown.database.read(lambda session: latest_alerts(session, record.name))
    if live is not None and at_most > 1:
        shown.run.state.annotation_log.add_alerts(alerts)
        annotations: Sequence[Annotation] = await annotations_of(shown.run.state, shown.run.control)
    else:
        events = report_from_json(record.report_json).events
        annotations = [annotation for event in events if (annotation := annotation_of(event)) is not None]
        annotations += map(alert_annotation, alerts)
    past = RunHistory(
        rows=rows,
        lags=lags,
        training=training.rows,
        training_thinned_from=training.thinned_from,
        annotations=annotations,
        span=span,
    )
    return record, shown_policy, past


def _read_history(
    session: Session, run_id: int, policy: str, *, since: float | None, until: float, at_most: int
) -> tuple[str, list[Row], dict[str, list[Row]]]:
    """Returns the shown policy, its figures, and the version lag of the nodes that lag most."""
    policies = history.subjects(session, run_id, "policy")
    shown_policy = policy if policy in policies else next(iter(policies), "")
    rows = history.rows(
        session, run_id, policy_subject(shown_policy), VALUES, since=since, until=until, at_most=at_most
    )
    names = history.highest_subjects(session, run_id, "node", "lag", at_most=MAX_CHARTED_NODES) if at_most > 1 else []
    lags = {
        name: history.rows(session, run_id, node_subject(name), ("lag",), since=since, until=until, at_most=at_most)
        for name in names
    }
    return shown_policy, rows, lags


def time_range_from(query: Mapping[str, str]) -> TimeRange | None:
    """Returns the time range of an address; None for the whole run."""
    span = range_from(query)
    return span if query.get("range") or not span.is_moving else None
