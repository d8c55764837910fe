"""`/runs`: every run that was seen, and each of them with its trajectories."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from astraflow.contract.errors import AstraFlowError, Unavailable
from web.door.roles import Need, needs
from web.launching.launcher import UnknownRun
from web.parts import Parts, PartsOf
from web.present import run_list
from web.present.evaluations import EvaluationTable, evaluation_tables
from web.present.runs import RunView
from web.present.sample_filter import SampleFilter
from web.present.shell import shell
from web.present.spread import Histogram, histogram
from web.reading import again
from web.reading.exports import Ending, sheet_answer
from web.reading.kept_runs import Told, told_of
from web.reading.run_list import STATES, asked_from, runs_page
from web.reading.run_pages import RunNumber, showing
from web.reading.run_views import span_from, view_of
from web.reading.sampled import reward_spread

router = APIRouter()

PAGE_ROUNDS = 20

RoundNumber = Annotated[int | None, Query(le=2**53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPage:
    """One page of rounds of evaluations, newest first."""

    tables: tuple[EvaluationTable, ...]
    before: int | None
    older: int | None
    """`before` of the next page; None on the last."""
    standing: str = ""
    """What is said of a record; empty for a run that goes on."""
    problem: str = ""


@router.get("/runs")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """The list."""
    return parts.pages.page(
        request,
        "runs/page.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        states=STATES,
        admins=await parts.accounts.users.admins(),
        **await _listed(request, parts),
    )


@router.get("/runs/table")
@needs(Need.READ)
async def show_table(request: Request, parts: PartsOf) -> Response:
    """The table alone, for the live page."""
    return again.answered(request, parts.pages.page(request, "runs/_table.html", **await _listed(request, parts)))


@router.get("/runs.{ending}")
@needs(Need.READ)
async def take(request: Request, parts: PartsOf, ending: Ending) -> Response:
    """Exactly what the page with the same query shows."""
    return sheet_answer(run_list.sheet(await runs_page(parts, asked_from(request.query_params))), ending)


@router.get("/runs/{run_id}")
@needs(Need.READ)
async def show_run(
    request: Request,
    parts: PartsOf,
    run_id: RunNumber,
    policy: str = "",
    rounds_before: RoundNumber = None,
) -> Response:
    """One run: counts, charts, evaluations and trajectories."""
    parts = showing(parts, run_id)
    view = await view_of(parts, run_id, policy, span=span_from(request.query_params))
    told = await _told(parts, run_id)
    return parts.pages.page(
        request,
        "runs/run.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        cells=parts.frames.cells if view.is_live else {},
        view=view,
        spread=await _spread(told, view),
        rounds=await _rounds(told, rounds_before),
        launch=await _launch(parts, view.row.name),
    )


@router.get("/runs/{run_id}/course")
@needs(Need.READ)
async def show_course(request: Request, parts: PartsOf, run_id: RunNumber, policy: str = "") -> Response:
    """What the page draws on the server alone, for the live page: the trainer's time, versions, what happened."""
    parts = showing(parts, run_id)
    view = await view_of(parts, run_id, policy, span=span_from(request.query_params))
    return again.answered(request, parts.pages.page(request, "runs/_course_now.html", view=view))


@router.get("/runs/{run_id}/ledger")
@needs(Need.READ)
async def show_ledger(request: Request, parts: PartsOf, run_id: RunNumber, policy: str = "") -> Response:
    """The balance tables alone, for the live page."""
    parts = showing(parts, run_id)
    view = await view_of(parts, run_id, policy, at_most=1)
    return again.answered(request, parts.pages.page(request, "runs/_ledger.html", view=view))


@router.get("/runs/{run_id}/evaluations")
@needs(Need.READ)
async def show_evaluations(request: Request, parts: PartsOf, run_id: RunNumber) -> Response:
    """The newest rounds alone, for the live page."""
    parts = showing(parts, run_id)
    view = await view_of(parts, run_id, "", at_most=1)
    rounds = await _rounds(await _told(parts, run_id), None)
    return again.answered(request, parts.pages.page(request, "runs/_evaluations.html", view=view, rounds=rounds))


async def _listed(request: Request, parts: Parts) -> dict[str, Any]:
    asked = asked_from(request.query_params)
    found = await runs_page(parts, asked)
    number = min(asked.page, found.pages)
    return {
        "list": found,
        "rows": run_list.rows(found),
        "heads": run_list.heads(asked),
        "query": asked.query(),
        "number": number,
        "newer": f"/runs{asked.query(page=number - 1)}" if number > 1 else "",
        "older": f"/runs{asked.query(page=number + 1)}" if number < found.pages else "",
    }


async def _launch(parts: Parts, name: str) -> str:
    """Its name when it was launched from here; else empty."""
    try:
        return (await parts.launcher.launch(name)).name
    except UnknownRun:
        return ""


async def _told(parts: Parts, run_id: int) -> Told | Unavailable:
    """Who tells what the run sampled and evaluated, or why nobody does."""
    try:
        return await told_of(parts, run_id)
    except Unavailable as problem:
        return problem


async def _spread(told: Told | Unavailable, view: RunView) -> Histogram | None:
    """How the rewards of what was sampled are spread; None while that cannot be asked."""
    asked = SampleFilter(policy=view.policy)
    if isinstance(told, Unavailable):
        return None
    try:
        return histogram(await reward_spread(told, asked), asked, path=f"/runs/{view.row.id}/trajectories")
    except AstraFlowError:
        return None  # the page of trajectories says why


async def _rounds(told: Told | Unavailable, before: int | None) -> RoundPage:
    if isinstance(told, Unavailable):
        return RoundPage(tables=(), before=before, older=None, problem=str(told))
    try:
        rounds = await told.source.evaluations(before=before, limit=PAGE_ROUNDS)
    except AstraFlowError as problem:
        return RoundPage(tables=(), before=before, older=None, standing=told.standing, problem=str(problem))
    older = rounds[-1].round if len(rounds) == PAGE_ROUNDS else None
    tables = evaluation_tables(rounds)
    return RoundPage(tables=tables, before=before, older=older, standing=told.standing)
