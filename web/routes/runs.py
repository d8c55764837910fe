"""`/runs`: every run that was seen, and each of them with its trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field
from sqlmodel import Session
from starlette.datastructures import QueryParams

from astraflow.contract.errors import AstraFlowError
from web.comparing import FEWEST, MOST, compared
from web.exports import Ending, sheet_answer
from web.flash import Flash
from web.history import reading as history
from web.history.reading import Row
from web.history.samples import node_subject, policy_subject
from web.launching.launcher import UnknownRun
from web.parts import Parts, PartsOf
from web.pins import Pin, pin_of
from web.points import CHARTED_NODES, VALUES
from web.present import comparing, run_list
from web.present.comparing import By, comparison
from web.present.evaluations import EvaluationTable, evaluation_tables
from web.present.runs import SHOWN_POINTS, RunPast, RunView, run_view
from web.present.sample_filter import SampleFilter
from web.present.shell import shell
from web.present.spread import Histogram, histogram
from web.ranges import TimeRange, range_from
from web.report_json import report_from_json
from web.roles import Need, needs
from web.run_list import STATES, asked_from, runs_page
from web.run_pages import RunNumber, is_live, pins_of, record_of, showing
from web.sampled import reward_spread
from web.steering import told

router = APIRouter()

PAGE_ROUNDS = 20

RoundNumber = Annotated[int | None, Query(le=2**53)]


Chosen = Annotated[tuple[Annotated[int, Field(le=2**53)], ...], Query(max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPage:
    """One page of rounds of evaluations, newest first."""

    tables: tuple[EvaluationTable, ...]
    before: int | None
    older: int | None
    """`before` of the next page; None on the last."""
    problem: str = ""


@router.get("/runs")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """The list."""
    asked = asked_from(request.query_params)
    found = await runs_page(parts, asked)
    number = min(asked.page, found.pages)
    return parts.pages.page(
        request,
        "runs/page.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        list=found,
        rows=run_list.rows(found),
        heads=run_list.heads(asked),
        states=STATES,
        query=asked.query(),
        number=number,
        newer=f"/runs{asked.query(page=number - 1)}" if number > 1 else "",
        older=f"/runs{asked.query(page=number + 1)}" if number < found.pages else "",
    )


@router.get("/runs.{ending}")
@needs(Need.READ)
async def take(request: Request, parts: PartsOf, ending: Ending) -> Response:
    """Exactly what the page with the same query shows."""
    return sheet_answer(run_list.sheet(await runs_page(parts, asked_from(request.query_params))), ending)


@router.get("/runs/compare")
@needs(Need.READ)
async def compare(request: Request, parts: PartsOf, run: Chosen = (), policy: str = "", by: By = "step") -> Response:
    """Two to four runs beside each other; with fewer, the list to choose from."""
    if not FEWEST <= len(set(run)) <= MOST:
        text = f"Choose {FEWEST} to {MOST} runs in the list to compare them (found {len(set(run))})"
        return told(Flash(text=text, tone="bad"), back="/runs")
    many = await compared(parts, run, policy)
    ids = [("run", one.record.id) for one in many]
    known = sorted({stream.policy for one in many for stream in report_from_json(one.record.report_json).streams})
    return parts.pages.page(
        request,
        "runs/compare.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        view=comparison(many, by=by, policies=known),
        policy=policy,
        query=urlencode(ids),
    )


@router.get("/runs/compare.{ending}")
@needs(Need.READ)
async def take_compared(
    parts: PartsOf, ending: Ending, run: Chosen = (), policy: str = "", by: By = "step"
) -> Response:
    """What the page plots."""
    return sheet_answer(comparing.sheet(await compared(parts, run[:MOST], policy), by=by), ending)


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
    view = await _view(parts, run_id, policy, span=_span(request.query_params))
    spread = await _spread(parts, view)
    return parts.pages.page(
        request,
        "runs/run.html",
        page="runs",
        shell=shell(parts.state, parts.settings),
        cells=parts.frames.cells if view.is_live else {},
        view=view,
        spread=spread,
        rounds=await _rounds(parts, view, rounds_before),
        launch=await _launch(parts, view.row.name),
    )


@router.get("/runs/{run_id}/course")
@needs(Need.READ)
async def show_course(request: Request, parts: PartsOf, run_id: RunNumber, policy: str = "") -> Response:
    """What the page draws on the server alone, for the live page: the trainer's time, versions, what happened."""
    parts = showing(parts, run_id)
    view = await _view(parts, run_id, policy, span=_span(request.query_params))
    return parts.pages.page(request, "runs/_course_now.html", view=view)


@router.get("/runs/{run_id}/ledger")
@needs(Need.READ)
async def show_ledger(request: Request, parts: PartsOf, run_id: RunNumber, policy: str = "") -> Response:
    """The balance tables alone, for the live page."""
    parts = showing(parts, run_id)
    return parts.pages.page(request, "runs/_ledger.html", view=await _view(parts, run_id, policy, at_most=1))


@router.get("/runs/{run_id}/evaluations")
@needs(Need.READ)
async def show_evaluations(request: Request, parts: PartsOf, run_id: RunNumber) -> Response:
    """The newest rounds alone, for the live page."""
    parts = showing(parts, run_id)
    view = await _view(parts, run_id, "", at_most=1)
    rounds = await _rounds(parts, view, None)
    return parts.pages.page(request, "runs/_evaluations.html", view=view, rounds=rounds)


async def _view(
    parts: Parts, run_id: RunNumber, policy: str, *, span: TimeRange | None = None, at_most: int = SHOWN_POINTS
) -> RunView:
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
    past = RunPast(rows=rows, lags=lags, pins=pins, span=span)
    return run_view(record, past, policy=chosen, live=live, dataflow=record.dataflow)


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


def _span(query: QueryParams) -> TimeRange | None:
    """The stretch of time that an address asks for; None for the whole run."""
    return range_from(query) if query.get("range") or query.get("from") else None


async def _launch(parts: Parts, name: str) -> str:
    """Its name when it was launched from here; else empty."""
    try:
        return (await parts.launcher.launch(name)).name
    except UnknownRun:
        return ""


async def _spread(parts: Parts, view: RunView) -> Histogram | None:
    """How the rewards of what was sampled are spread; None while that cannot be asked."""
    if not view.is_live:
        return None
    asked = SampleFilter(policy=view.policy)
    try:
        return histogram(await reward_spread(parts, asked), asked, path=f"/runs/{view.row.id}/trajectories")
    except AstraFlowError:
        return None  # the page of trajectories says why


async def _rounds(parts: Parts, view: RunView, before: int | None) -> RoundPage:
    if not view.is_live:
        return RoundPage(tables=(), before=before, older=None)
    try:
        rounds = await parts.control.evaluations(before=before, limit=PAGE_ROUNDS)
    except AstraFlowError as problem:
        return RoundPage(tables=(), before=before, older=None, problem=str(problem))
    older = rounds[-1].round if len(rounds) == PAGE_ROUNDS else None
    return RoundPage(tables=evaluation_tables(rounds), before=before, older=older)
