"""`/runs/compare`: two to four runs beside each other, and each of their charts by itself."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.exceptions import HTTPException

from web.acts.steering import told
from web.door.flash import Flash
from web.door.roles import Need, needs
from web.feed.report_json import report_from_json
from web.parts import Parts, PartsOf
from web.present import comparing
from web.present.comparing import By, Comparison, comparison
from web.present.shell import shell
from web.reading.comparing import FEWEST, MOST, ComparedRun, compared
from web.reading.exports import Ending, sheet_answer

router = APIRouter()

Chosen = Annotated[tuple[Annotated[int, Field(le=2**53)], ...], Query(max_length=100)]
ChartName = Annotated[str, Path(max_length=40)]


@router.get("/runs/compare")
@needs(Need.READ)
async def compare(request: Request, parts: PartsOf, run: Chosen = (), policy: str = "", by: By = "step") -> Response:
    """Two to four runs beside each other; with fewer, the list to choose from."""
    many = await _many(parts, run, policy)
    if many is None:
        return _too_few(run)
    return parts.pages.page(
        request,
        "runs/compare.html",
        page="runs",
        **_view(parts, many, comparison(many, by=by, policies=_known(many)), policy),
    )


@router.get("/runs/compare.{ending}")
@needs(Need.READ)
async def take(parts: PartsOf, ending: Ending, run: Chosen = (), policy: str = "", by: By = "step") -> Response:
    """What the page plots."""
    return sheet_answer(comparing.sheet(await compared(parts, run[:MOST], policy), by=by), ending)


@router.get("/runs/compare/charts/{name}.{ending}")
@needs(Need.READ)
async def take_one(
    parts: PartsOf, name: ChartName, ending: Ending, run: Chosen = (), policy: str = "", by: By = "step"
) -> Response:
    """What one of its charts plots."""
    _chart(name)
    return sheet_answer(comparing.chart_sheet(await compared(parts, run[:MOST], policy), name, by=by), ending)


@router.get("/runs/compare/charts/{name}")
@needs(Need.READ)
async def show_one(
    request: Request, parts: PartsOf, name: ChartName, run: Chosen = (), policy: str = "", by: By = "step"
) -> Response:
    """One of its charts, large, and its table."""
    _chart(name)
    many = await _many(parts, run, policy)
    if many is None:
        return _too_few(run)
    view = comparison(many, by=by, policies=_known(many), only=name)
    heads, rows = comparing.chart_table(many, name, by=by)
    return parts.pages.page(
        request,
        "runs/compared_chart.html",
        page="runs",
        **_view(parts, many, view, policy),
        name=name,
        label=comparing.SPECS[name].label,
        heads=heads,
        rows=rows,
    )


async def _many(parts: Parts, run: tuple[int, ...], policy: str) -> list[ComparedRun] | None:
    return await compared(parts, run, policy) if FEWEST <= len(set(run)) <= MOST else None


def _too_few(run: tuple[int, ...]) -> Response:
    text = f"Choose {FEWEST} to {MOST} runs in the list to compare them (found {len(set(run))})"
    return told(Flash(text=text, tone="bad"), back="/runs")


def _known(many: list[ComparedRun]) -> list[str]:
    return sorted({stream.policy for one in many for stream in report_from_json(one.record.report_json).streams})


def _view(parts: Parts, many: list[ComparedRun], view: Comparison, policy: str) -> dict[str, Any]:
    query = urlencode([("run", one.record.id) for one in many])
    whole = urlencode(
        [("run", one.record.id) for one in many] + [("by", view.by)] + ([("policy", policy)] if policy else [])
    )
    return {
        "shell": shell(parts.state, parts.settings),
        "view": view,
        "policy": policy,
        "query": query,
        "whole": whole,
    }


def _chart(name: str) -> None:
    if name not in comparing.SPECS:
        raise HTTPException(404, f"Runs are not compared by that: their charts are {', '.join(comparing.SPECS)}.")
