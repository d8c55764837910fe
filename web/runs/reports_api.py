"""`/api/v1/report`, `/reports` and `/series`: dataflow's reports and time series."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from astraflow.contract.errors import Unavailable
from astraflow.contract.reports.report import Report
from astraflow.contract.training_metrics import training_metric
from web.charts import panels
from web.charts.tables import as_sheet, rows_of
from web.charts.version_lag import lag_sheet
from web.components.downloads import FileFormat, sheet_response
from web.components.layout import page_selection
from web.database.tables import MAX_ID
from web.history import series_queries
from web.history.capacity import FLEET_VALUES
from web.history.points import VALUES
from web.history.samples import NODE_VALUES, node_subject
from web.history.series_queries import Row
from web.requests.dependencies import ControlDep, HistoryDep, ReportDep, RunIndexDep, StateDep
from web.requests.range_points import HistorySource, points_in_range
from web.requests.run_lookup import ShownRun
from web.rest.common import MAX_EXACT_INTEGER, PREFIX, ApiRouter, ItemList, ResponseModel
from web.rest.contract_models import fields_of
from web.runs.queries import load_run_view_and_history, time_range_from
from web.runs.sheets import LABELS, TIMELINE, has_chart, run_sheet
from web.runs.training import TRAINING
from web.security.roles import Permission, needs

router = ApiRouter(tags=["reports"])

RangeName = Literal["", "15m", "1h", "6h", "24h"]
MAX_REPORTS = 900
MAX_NODE_NAME = 128
MAX_NODE_ROWS = 10_000
"""Maximum rows of a node's series; of more, neighbours are merged."""

Chart = Annotated[
    str,
    Query(
        max_length=80,
        pattern="^[A-Za-z0-9_.-]*$",
        description=f"Chart whose series to return: {', '.join((*panels.ALL_CHARTS, panels.VERSION_LAG))}; of a run "
        f"also {TIMELINE}, a training metric, or {TRAINING} for all training metrics by step; empty for the series "
        "over time.",
    ),
]
Policy = Annotated[str, Query(max_length=128, description="Policy; the first if empty or unknown.")]
Range = Annotated[RangeName, Query(description="Time range back from now; empty for 15m.")]
Begin = Annotated[
    str,
    Query(
        alias="from", max_length=40, description="Begin of the range, instead of `range`: Unix seconds or a UTC time."
    ),
]
RunFilter = Annotated[
    int | None,
    Query(ge=1, le=MAX_ID, description="Id of a recorded run, whole without a range; default: the live run."),
]
Node = Annotated[
    str,
    Query(
        max_length=MAX_NODE_NAME,
        description=f"Name of a node: its recorded {', '.join(NODE_VALUES)} for each ten seconds, older ones for each "
        "five minutes, instead of a chart.",
    ),
]
End = Annotated[str, Query(alias="to", max_length=40, description="End of the range; send both or neither.")]


@fields_of(Report)
class RunReport(ResponseModel):
    """Report of the run at one second, with the tables of `astraflow report --json`."""


class NewestReport(RunReport):
    """Newest report."""

    age_s: float | None = Field(description="Seconds since the report arrived.")


class ReportList(ItemList[RunReport]):
    """Reports, oldest first."""


class LoginStatusResponse(ResponseModel):
    """Validity of a session or token."""

    status: Literal["ok"] = Field(description="Always `ok`.")


@router.get("/report", response_model=NewestReport)
@needs(Permission.READ)
async def report(report: ReportDep, state: StateDep) -> dict[str, Any]:
    """Returns the newest report and its age."""
    return NewestReport.values_of(report, age_s=state.age_s)


@router.get("/reports", response_model=ReportList)
@needs(Permission.READ)
async def reports(
    control: ControlDep,
    after_sequence: Annotated[int, Query(ge=0, le=MAX_EXACT_INTEGER, description="Only newer reports.")] = 0,
    resolution_s: Annotated[
        Literal["1", "60"], Query(description="1: each second of the last 15 minutes; 60: each minute.")
    ] = "60",
    limit: Annotated[int, Query(ge=1, le=MAX_REPORTS, description="Maximum number; the latest are returned.")] = 60,
) -> dict[str, Any]:
    """Lists recorded reports, oldest first, without node errors and events."""
    return {"items": await control.history(after_sequence=after_sequence, limit=limit, resolution_s=int(resolution_s))}


@router.get("/session", response_model=LoginStatusResponse)
@needs(Permission.READ)
async def session() -> Response:
    """Checks the session or token; responds with 401 if it is invalid."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/series.{ending}",
    response_class=Response,
    responses={
        200: {
            "content": {
                "text/csv": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            }
        }
    },
)
@needs(Permission.READ)
async def series(
    request: Request,
    index: RunIndexDep,
    state: StateDep,
    history: HistoryDep,
    ending: FileFormat,
    chart: Chart = "",
    policy: Policy = "",
    range: Range = "",  # noqa: A002 (the name in the address)
    begin: Begin = "",
    end: End = "",
    run_id: RunFilter = None,
    node: Node = "",
) -> Response:
    """Returns a chart's series, all series, or those of a node, as CSV or JSON with one row per time or step."""
    if node:
        return await _of_node(request, history, run_id or history.recorder.run_id, node, ending)
    if run_id is not None:
        return await _of_run(request, index.shown(run_id), policy, chart, ending)
    live_charts = (*panels.ALL_CHARTS, panels.VERSION_LAG)
    if chart and chart not in live_charts:
        names = ", ".join(live_charts)
        raise HTTPException(
            404, f"cannot return chart {chart!r}: without a run there are {names}; send run_id, from GET {PREFIX}/runs"
        )
    choice = page_selection(state, request.query_params)
    if choice.policy is None:
        raise Unavailable(
            "cannot show the run: dataflow has not reported yet; try again in a few seconds", code="report.none_yet"
        )
    points = await points_in_range(history, choice)
    if chart == panels.VERSION_LAG:
        return sheet_response(lag_sheet(points, choice.policy), ending)
    values = tuple(line.value for line in panels.ALL_CHARTS[chart].series) if chart else (*VALUES, *FLEET_VALUES)
    name = f"astraflow-{chart or 'series'}-{choice.policy}-{choice.range}".replace("/", "_").replace(":", "_")
    return sheet_response(as_sheet(name, rows_of(points, choice.policy), values), ending)


async def _of_node(
    request: Request, history: HistorySource, run_id: int | None, node: str, ending: FileFormat
) -> Response:
    """Returns the recorded series of a node of a run, whole without a range; empty for an unknown node."""
    span = time_range_from(request.query_params)
    until = None if span is None or span.end is None else span.end + 1.0
    since = None if span is None else (span.end or history.state.clock.wall()) - span.duration_s
    rows: list[Row] = []
    if run_id is not None:
        rows = await history.database.read(
            lambda session: series_queries.rows(
                session, run_id, node_subject(node), NODE_VALUES, since=since, until=until, at_most=MAX_NODE_ROWS
            )
        )
    return sheet_response(as_sheet("astraflow-node", rows, NODE_VALUES), ending)


async def _of_run(request: Request, shown: ShownRun, policy: str, chart: str, ending: FileFormat) -> Response:
    """Returns a recorded run's series. Raises: HTTPException for an unknown chart or run."""
    view, past = await load_run_view_and_history(
        shown,
        policy,
        span=time_range_from(request.query_params),
        training_at_most=None if training_metric(chart) is not None else 0,
    )
    if chart not in ("", TRAINING) and not has_chart(past, chart):
        names = ", ".join((*LABELS, TRAINING))
        raise HTTPException(404, f"cannot return chart {chart!r}: the run does not have it; use one of {names}")
    if not chart:
        return sheet_response(as_sheet(f"astraflow-run-{shown.id}", past.rows, VALUES), ending)
    return await asyncio.to_thread(lambda: sheet_response(run_sheet(view, past, chart), ending))
