"""`/runs`: the list of recorded runs, one run's page with its trajectories, and its charts with tables and files."""

import asyncio
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.contract.training_metrics import training_metric
from astraflow.runtime.clock import Clock
from web.accounts.viewer import Viewer
from web.charts.tables import STEP_KINDS, kind_labels, steps_json
from web.components.downloads import FileFormat, sheet_response
from web.database.preferences import preferred_names
from web.exports.content import export_content, recorded_run
from web.exports.document import export_html, hash_of
from web.requests import responses
from web.requests.dependencies import (
    AdminsDep,
    AuditLogDep,
    ClockDep,
    PagesDep,
    RunIndexDep,
    ShownRunDep,
    ViewerDep,
)
from web.requests.run_lookup import RunIndex, ShownRun
from web.runs import list_view
from web.runs.columns import cell_text, shown_columns
from web.runs.details import record_metadata
from web.runs.evaluations import EvaluationTable, evaluation_tables
from web.runs.list_queries import STATES, run_list_query, runs_page
from web.runs.pins import PINS, change_pins
from web.runs.queries import load_run_view, load_run_view_and_history, time_range_from
from web.runs.sheets import LABELS, has_chart, recorded_metric, run_sheet, run_table
from web.runs.training import SHOWN_STEPS, TRAINING, TrainingView, large, metric_chart, metric_insight, training_view
from web.runs.views import SHOWN_POINTS, TONES, RunHistory, RunView
from web.security.addresses import local_path
from web.security.audit_log import AuditedCommand, AuditLog
from web.security.roles import Permission, needs
from web.trajectories.filters import SampleFilter
from web.trajectories.queries import RunSamples, reward_spread, samples_of_run
from web.trajectories.reward_histogram import Histogram, histogram

router = APIRouter()

PAGE_ROUNDS = 20

ChartName = Annotated[str, Path(max_length=80)]
RoundNumber = Annotated[int | None, Query(le=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPage:
    """One page of rounds of evaluations, newest first."""

    tables: tuple[EvaluationTable, ...]
    before: int | None
    older: int | None
    """`before` of the next page; None on the last."""
    record_note: str = ""
    """Note that the data comes from a record; empty for a live run."""
    problem: str = ""


@router.get("/runs")
@needs(Permission.READ)
async def show(request: Request, pages: PagesDep, index: RunIndexDep, viewer: ViewerDep, admins: AdminsDep) -> Response:
    """Shows the list of runs."""
    return pages.page(
        request, "runs/page.html", page="runs", states=STATES, admins=admins, **await _listed(request, index, viewer)
    )


@router.get("/runs/table")
@needs(Permission.READ)
async def show_table(request: Request, pages: PagesDep, index: RunIndexDep, viewer: ViewerDep) -> Response:
    """Returns the table as a fragment, for the live page."""
    return responses.with_etag(
        request, pages.page(request, "runs/_table.html", **await _listed(request, index, viewer))
    )


@router.get("/runs.{ending}")
@needs(Permission.READ)
async def export(request: Request, index: RunIndexDep, viewer: ViewerDep, ending: FileFormat) -> Response:
    """Returns the rows that the page with the same query shows, as a file."""
    columns = await shown_columns(index.database, viewer.user_id)
    page = await runs_page(index, run_list_query(request.query_params))
    return sheet_response(list_view.sheet(page, columns), ending)


@router.get("/runs/{run_id}")
@needs(Permission.READ)
async def show_run(
    request: Request, shown: ShownRunDep, viewer: ViewerDep, policy: str = "", rounds_before: RoundNumber = None
) -> Response:
    """Shows a run's page: counts, charts, evaluations and trajectories."""
    span = time_range_from(request.query_params)
    view, past = await load_run_view_and_history(shown, policy, span=span, training_at_most=SHOWN_STEPS)
    samples = await _sample_source(shown)
    record = await shown.record()
    run = await shown.local(record)
    return shown.run.pages.page(
        request,
        "runs/run.html",
        page="runs",
        live_texts=shown.run.frames.live_texts if view.is_live else {},
        view=view,
        training=await _training(shown, viewer, view, past),
        steps=(steps := _steps(view, past)),
        x_kinds=kind_labels(view.points, steps),
        spread=await _reward_histogram(samples, view),
        rounds=await _rounds(samples, rounds_before),
        local=run,
        metadata=record_metadata(record, run),
        tones=TONES,
        is_reading=shown.is_reading,
    )


@router.post("/runs/{run_id}/export")
@needs(Permission.READ)
async def export_run(shown: ShownRunDep, audit_log: AuditLogDep, viewer: ViewerDep, clock: ClockDep) -> Response:
    """Returns the run as one HTML file that opens without a network. The audit log gets its hash."""
    return await export_response(shown, audit_log, viewer, clock)


async def export_response(shown: ShownRun, audit_log: AuditLog, viewer: Viewer, clock: Clock) -> Response:
    """Returns the run as a file, for the page and the API. Raises: HTTPException for an unknown run."""
    record = await shown.record()
    recorded = await shown.database.read(lambda session: recorded_run(session, record))
    samples = await _sample_source(shown)
    source = None if isinstance(samples, Unavailable) else samples.source
    folder = await asyncio.to_thread(_folder_of, shown, record.folder)
    content = await export_content(recorded, source, folder, at=clock.wall(), release=version("astraflow"))
    file = await asyncio.to_thread(export_html, content)
    command = AuditedCommand(action="run.export", target=record.name, after={"sha256": hash_of(file)})
    await audit_log.write(viewer.author, command)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", record.name)[:100]
    headers = {"content-disposition": f'attachment; filename="{name}.html"'}
    return Response(file, media_type="text/html; charset=utf-8", headers=headers)


def _folder_of(shown: ShownRun, location: str) -> FilePath | None:
    """Returns the folder of a run that is on this machine."""
    path = shown.run.settings.run_dir if shown.is_live else None
    path = path or (FilePath(location) if location else None)
    return path if path is not None and path.is_dir() else None


@router.get("/runs/{run_id}/progress")
@needs(Permission.READ)
async def show_progress(request: Request, shown: ShownRunDep, policy: str = "") -> Response:
    """Returns the server-rendered charts (trainer time, versions, timeline) as a fragment, for the live page."""
    view = await load_run_view(shown, policy, span=time_range_from(request.query_params))
    return responses.with_etag(request, shown.run.pages.page(request, "runs/_progress_live.html", view=view))


@router.get("/runs/{run_id}/accounting")
@needs(Permission.READ)
async def show_accounting(request: Request, shown: ShownRunDep, policy: str = "") -> Response:
    """Returns the accounting tables as a fragment, for the live page."""
    view = await load_run_view(shown, policy, at_most=1)
    return responses.with_etag(request, shown.run.pages.page(request, "_accounting.html", view=view))


@router.get("/runs/{run_id}/evaluations")
@needs(Permission.READ)
async def show_evaluations(request: Request, shown: ShownRunDep) -> Response:
    """Returns the newest evaluation rounds as a fragment, for the live page."""
    view = await load_run_view(shown, "", at_most=1)
    rounds = await _rounds(await _sample_source(shown), None)
    return responses.with_etag(
        request, shown.run.pages.page(request, "runs/_evaluations.html", view=view, rounds=rounds)
    )


async def _listed(request: Request, index: RunIndex, viewer: Viewer) -> dict[str, Any]:
    query, columns = run_list_query(request.query_params), await shown_columns(index.database, viewer.user_id)
    runs_list = await runs_page(index, query)
    number = min(query.page, runs_list.pages)
    return {
        "list": runs_list,
        "columns": columns,
        "cell_text": cell_text,
        "tones": TONES,
        "column_headers": list_view.column_headers(query, columns),
        "query": query.query(),
        "number": number,
        "newer": f"/runs{query.query(page=number - 1)}" if number > 1 else "",
        "older": f"/runs{query.query(page=number + 1)}" if number < runs_list.pages else "",
    }


async def _sample_source(shown: ShownRun) -> RunSamples | Unavailable:
    """Returns the source of the run's samples and evaluations, or the error when there is none."""
    try:
        return await samples_of_run(shown)
    except Unavailable as problem:
        return problem


async def _reward_histogram(samples: RunSamples | Unavailable, view: RunView) -> Histogram | None:
    """Returns the histogram of sampled rewards; None while the samples cannot be read."""
    sample_filter = SampleFilter(policy=view.policy)
    if isinstance(samples, Unavailable):
        return None
    try:
        return histogram(
            await reward_spread(samples, sample_filter), sample_filter, path=f"/runs/{view.row.id}/trajectories"
        )
    except AstraFlowError:
        return None  # the trajectories page shows the error


async def _rounds(samples: RunSamples | Unavailable, before: int | None) -> RoundPage:
    if isinstance(samples, Unavailable):
        return RoundPage(tables=(), before=before, older=None, problem=str(samples))
    try:
        rounds = await samples.source.evaluations(before=before, limit=PAGE_ROUNDS)
    except AstraFlowError as problem:
        return RoundPage(tables=(), before=before, older=None, record_note=samples.record_note, problem=str(problem))
    older = rounds[-1].round if len(rounds) == PAGE_ROUNDS else None
    tables = evaluation_tables(rounds)
    return RoundPage(tables=tables, before=before, older=older, record_note=samples.record_note)


@router.get("/runs/{run_id}/charts/{name}.{ending}")
@needs(Permission.READ)
async def export_chart(
    request: Request, shown: ShownRunDep, name: ChartName, ending: FileFormat, policy: str = ""
) -> Response:
    """Returns the chart's series for the time range in the address, by default the whole run, as a file."""
    view, past = await _load_chart(request, shown, name, policy, training_at_most=None)
    return sheet_response(run_sheet(view, past, name), ending)


@router.get("/runs/{run_id}/training.{ending}")
@needs(Permission.READ)
async def export_training(request: Request, shown: ShownRunDep, ending: FileFormat, policy: str = "") -> Response:
    """Returns all training metrics for the time range in the address, one row for each step, as a file."""
    view, past = await load_run_view_and_history(
        shown, policy, span=time_range_from(request.query_params), training_at_most=None
    )
    return await asyncio.to_thread(lambda: sheet_response(run_sheet(view, past, TRAINING), ending))


@router.get("/runs/{run_id}/training")
@needs(Permission.READ)
async def show_training(request: Request, shown: ShownRunDep, viewer: ViewerDep, policy: str = "") -> Response:
    """Returns the small multiples of the training metrics as a fragment, for the live page."""
    span = time_range_from(request.query_params)
    view, past = await load_run_view_and_history(shown, policy, span=span, training_at_most=SHOWN_STEPS)
    training = await _training(shown, viewer, view, past)
    return responses.with_etag(
        request,
        shown.run.pages.page(request, "runs/_training.html", view=view, training=training, steps=_steps(view, past)),
    )


@router.get("/runs/{run_id}/charts/{name}")
@needs(Permission.READ)
async def show_chart(request: Request, shown: ShownRunDep, name: ChartName, policy: str = "") -> Response:
    """Shows the chart in full width with its table."""
    view, past = await _load_chart(request, shown, name, policy, training_at_most=SHOWN_POINTS)
    heads, body = run_table(view, past, name)
    metric = recorded_metric(past, name)
    return shown.run.pages.page(
        request,
        "runs/chart.html",
        page="runs",
        live_texts=shown.run.frames.live_texts if view.is_live else {},
        view=view,
        name=name,
        label=LABELS.get(name, name),
        metric=metric,
        chart=view.charts.get(name) or (None if metric is None else large(metric_chart(metric, past.training))),
        insight=view.insights.get(name) or (None if metric is None else metric_insight(metric, past.training)),
        steps=(steps := _steps(view, past, metric=name)),
        x_kinds=kind_labels(view.points, steps) if metric is None else kind_labels(steps),
        heads=heads,
        rows=body,
    )


@router.post("/runs/pins")
@needs(Permission.OWN)
async def pin_chart(
    index: RunIndexDep, viewer: ViewerDep, change: str = Form(""), next_path: Annotated[str, Form(alias="next")] = "/"
) -> Response:
    """Pins a chart to the top of the user's pages of runs, unpins it, or moves it to the front."""
    await index.database.write(lambda session: change_pins(session, viewer.user_id, change))
    return RedirectResponse(local_path(next_path), 303)


@router.get("/runs/{run_id}/steps.json")
@needs(Permission.READ)
async def show_steps(
    request: Request, shown: ShownRunDep, policy: str = "", metric: Annotated[str, Query(max_length=80)] = ""
) -> Response:
    """Returns the training steps of the time range in the address, at most 400, as the table of charts.

    metric: returns only its values; empty for all metrics.
    """
    view, past = await load_run_view_and_history(
        shown,
        policy,
        span=time_range_from(request.query_params),
        at_most=1,
        training_at_most=SHOWN_STEPS,
        metric=metric,
    )
    return JSONResponse(_steps(view, past, metric=metric))


async def _training(shown: ShownRun, viewer: Viewer, view: RunView, past: RunHistory) -> TrainingView:
    address = f"/runs/{view.row.id}/charts/{{}}?{view.query}"
    pins = await shown.database.read(lambda session: preferred_names(session, viewer.user_id, PINS))
    return training_view(past.training, thinned_from=past.training_thinned_from, address=address, pins=pins)


def _steps(view: RunView, past: RunHistory, *, metric: str = "") -> dict[str, Any]:
    """Returns the table of the run's training steps, which scripts continue from the address in `source`."""
    query = urlencode({"policy": view.policy, **({"metric": metric} if metric else {})})
    names = {metric, *STEP_KINDS.values()} if metric else None
    rows = [
        (at, {name: value for name, value in values.items() if names is None or name in names})
        for at, values in past.training
    ]
    return steps_json(
        rows,
        span=past.span,
        source=f"/runs/{view.row.id}/steps.json?{query}",
        isLive=view.is_moving,
        thinned=past.training_thinned_from,
    )


async def _load_chart(
    request: Request, shown: ShownRun, name: str, policy: str, *, training_at_most: int | None
) -> tuple[RunView, RunHistory]:
    """Returns the run with the figures of a chart. Raises: HTTPException for an unknown run or chart."""
    view, past = await load_run_view_and_history(
        shown,
        policy,
        span=time_range_from(request.query_params),
        training_at_most=training_at_most if training_metric(name) is not None else 0,
        metric=name,
    )
    if not has_chart(past, name):
        raise HTTPException(404, f"No chart with this name. Charts of a run: {', '.join(LABELS)}.")
    return view, past
