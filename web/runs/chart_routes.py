"""`/runs/{run_id}/charts/{name}`: one chart of a live or ended run, with its table and files."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.training_metrics import training_metric
from web.components.downloads import FileFormat, sheet_response
from web.requests import conditional_requests
from web.requests.dependencies import ShownRunDep
from web.requests.run_lookup import ShownRun
from web.runs.queries import MAX_STEPS, load_run_view_and_history, time_range_from
from web.runs.sheets import LABELS, has_chart, recorded_metric, run_sheet, run_table
from web.runs.training import SMALL_POINTS, TRAINING, large_chart, metric_finding, run_line, training_view
from web.runs.views import RUN_CHARTS, SHOWN_POINTS, RunHistory, RunView
from web.security.roles import Permission, needs

router = APIRouter()

ChartName = Annotated[str, Path(max_length=80)]


@router.get("/runs/{run_id}/charts/{name}.{ending}")
@needs(Permission.READ)
async def export(
    request: Request, shown: ShownRunDep, name: ChartName, ending: FileFormat, policy: str = ""
) -> Response:
    """Returns the chart's series for the time range in the address, by default the whole run, as a file."""
    view, past = await _load_chart(request, shown, name, policy, training_at_most=MAX_STEPS)
    return sheet_response(run_sheet(view, past, name), ending)


@router.get("/runs/{run_id}/training.{ending}")
@needs(Permission.READ)
async def export_training(request: Request, shown: ShownRunDep, ending: FileFormat, policy: str = "") -> Response:
    """Returns all training metrics for the time range in the address, one row for each step, as a file."""
    view, past = await load_run_view_and_history(
        shown, policy, span=time_range_from(request.query_params), training_at_most=MAX_STEPS
    )
    return await asyncio.to_thread(lambda: sheet_response(run_sheet(view, past, TRAINING), ending))


@router.get("/runs/{run_id}/training")
@needs(Permission.READ)
async def show_training(request: Request, shown: ShownRunDep, policy: str = "") -> Response:
    """Returns the small multiples of the training metrics as a fragment, for the live page."""
    span = time_range_from(request.query_params)
    view, past = await load_run_view_and_history(shown, policy, span=span, training_at_most=SMALL_POINTS)
    training = training_view(past.training)
    return conditional_requests.with_etag(
        request, shown.run.pages.page(request, "runs/_training.html", view=view, training=training)
    )


@router.get("/runs/{run_id}/charts/{name}")
@needs(Permission.READ)
async def show(request: Request, shown: ShownRunDep, name: ChartName, policy: str = "") -> Response:
    """Shows the chart in full width with its table."""
    view, past = await _load_chart(request, shown, name, policy, training_at_most=SHOWN_POINTS)
    heads, body = run_table(view, past, name)
    metric = recorded_metric(past, name)
    line = None if metric is None else run_line(metric, past.training)
    return shown.run.pages.page(
        request,
        "runs/chart.html",
        page="runs",
        live_texts=shown.run.frames.live_texts if view.is_live else {},
        view=view,
        name=name,
        label=LABELS.get(name, name),
        metric=None if name in RUN_CHARTS else metric,
        metric_chart=None if metric is None or line is None else large_chart(metric, [line]),
        finding="" if metric is None or line is None else metric_finding(metric, line),
        heads=heads,
        rows=body,
    )


async def _load_chart(
    request: Request, shown: ShownRun, name: str, policy: str, *, training_at_most: int
) -> tuple[RunView, RunHistory]:
    """Returns the run with the figures of a chart. Raises: HTTPException for an unknown run or chart."""
    view, past = await load_run_view_and_history(
        shown,
        policy,
        span=time_range_from(request.query_params),
        training_at_most=training_at_most if training_metric(name) is not None else 0,
    )
    if not has_chart(past, name):
        raise HTTPException(404, f"No chart with this name. Charts of a run: {', '.join(LABELS)}.")
    return view, past
