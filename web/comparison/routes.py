"""`/runs/compare`: two to eight runs side by side, and each of their charts."""

import asyncio
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.exceptions import HTTPException

from web.comparison import views
from web.comparison.queries import MAX_RUNS, MIN_RUNS, ComparedRun, compared_runs
from web.comparison.views import Comparison, ComparisonAxis, comparison
from web.components.downloads import FileFormat, sheet_response
from web.database.tables import MAX_ID
from web.history.report_json import report_from_json
from web.requests.dependencies import PagesDep, RunIndexDep
from web.requests.responses import redirect_with_flash
from web.requests.run_lookup import RunIndex
from web.runs.training import SHOWN_STEPS
from web.security.flash import Flash
from web.security.roles import Permission, needs

router = APIRouter()

Chosen = Annotated[tuple[Annotated[int, Field(le=MAX_ID)], ...], Query(max_length=100)]
ChartName = Annotated[str, Path(max_length=80)]


@router.get("/runs/compare")
@needs(Permission.READ)
async def compare(
    request: Request,
    pages: PagesDep,
    index: RunIndexDep,
    run: Chosen = (),
    policy: str = "",
) -> Response:
    """Shows two to eight runs side by side; with fewer, redirects to the list of runs."""
    runs = await _compared_runs(index, run, policy, training_at_most=SHOWN_STEPS)
    if runs is None:
        return _too_few_runs(run)
    return pages.page(
        request,
        "comparison/page.html",
        page="runs",
        **_view(runs, comparison(runs, policies=_policies(runs)), policy),
    )


@router.get("/runs/compare.{ending}")
@needs(Permission.READ)
async def export(
    index: RunIndexDep, ending: FileFormat, run: Chosen = (), policy: str = "", by: ComparisonAxis = "step"
) -> Response:
    """Returns the series that the page plots, as a file."""
    return sheet_response(views.sheet(await compared_runs(index, run[:MAX_RUNS], policy), by=by), ending)


@router.get("/runs/compare/training.{ending}")
@needs(Permission.READ)
async def export_training(
    index: RunIndexDep, ending: FileFormat, run: Chosen = (), policy: str = "", by: ComparisonAxis = "step"
) -> Response:
    """Returns the training metrics of the runs, one row for each run and step, as a file."""
    runs = await compared_runs(index, run[:MAX_RUNS], policy, training_at_most=None)
    return await asyncio.to_thread(lambda: sheet_response(views.training_sheet(runs, by=by), ending))


@router.get("/runs/compare/charts/{name}.{ending}")
@needs(Permission.READ)
async def export_chart(
    index: RunIndexDep,
    name: ChartName,
    ending: FileFormat,
    run: Chosen = (),
    policy: str = "",
    by: ComparisonAxis = "step",
) -> Response:
    """Returns the series of one chart, as a file."""
    runs = await compared_runs(index, run[:MAX_RUNS], policy, training_at_most=None)
    _chart_label(runs, name)
    return sheet_response(views.chart_sheet(runs, name, by=by), ending)


@router.get("/runs/compare/charts/{name}")
@needs(Permission.READ)
async def show_item(
    request: Request,
    pages: PagesDep,
    index: RunIndexDep,
    name: ChartName,
    run: Chosen = (),
    policy: str = "",
) -> Response:
    """Shows one chart in full width with its table."""
    runs = await _compared_runs(index, run, policy, training_at_most=SHOWN_STEPS)
    if runs is None:
        return _too_few_runs(run)
    label = _chart_label(runs, name)
    view = comparison(runs, policies=_policies(runs), only=name)
    heads, rows = views.chart_table(runs, name, by="step")
    return pages.page(
        request,
        "comparison/chart.html",
        page="runs",
        **_view(runs, view, policy),
        name=name,
        label=label,
        heads=heads,
        rows=rows,
    )


async def _compared_runs(
    index: RunIndex, run: tuple[int, ...], policy: str, *, training_at_most: int | None
) -> list[ComparedRun] | None:
    if not MIN_RUNS <= len(set(run)) <= MAX_RUNS:
        return None
    return await compared_runs(index, run, policy, training_at_most=training_at_most)


def _too_few_runs(run: tuple[int, ...]) -> Response:
    text = f"Select {MIN_RUNS} to {MAX_RUNS} runs in the list to compare them ({len(set(run))} selected)"
    return redirect_with_flash(Flash(text=text, tone="bad"), page="/runs")


def _policies(runs: list[ComparedRun]) -> list[str]:
    return sorted({stream.policy for run in runs for stream in report_from_json(run.record.report_json).streams})


def _view(runs: list[ComparedRun], view: Comparison, policy: str) -> dict[str, Any]:
    query = urlencode([("run", run.record.id) for run in runs])
    full_query = urlencode([("run", run.record.id) for run in runs] + ([("policy", policy)] if policy else []))
    return {
        "view": view,
        "policy": policy,
        "query": query,
        "whole": full_query,
    }


def _chart_label(runs: list[ComparedRun], name: str) -> str:
    label = views.chart_label(runs, name)
    if label is None:
        names = [*views.SPECS, *(metric.name for metric in views.compared_metrics(runs))]
        raise HTTPException(404, f"No chart with this name. Charts of this comparison: {', '.join(names)}.")
    return label
