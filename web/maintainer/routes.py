"""`/maintainer`: status and transcript of the maintainer, its proposals, and decisions about them."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet.maintainer import MaintainerMode, TranscriptPage
from astraflow.contract.fleet.plans import PlanId
from astraflow.contract.records import render_summary
from web.components.downloads import FileFormat, sheet_response
from web.database.tables import MAX_ID
from web.decisions.queries import KIND_TONES
from web.live.followed_fleet import FollowedFleet
from web.maintainer import commands as maintainer_commands
from web.maintainer.transcript import transcript_sheet, transcript_view
from web.maintainer.views import MODE_TEXTS, NOTE_KINDS, latest_notes, maintainer_view, proposal_row
from web.pools.pool_form import MOST_TEXT
from web.pools.views import fleet_view
from web.requests import responses
from web.requests.commands import form_key
from web.requests.dependencies import AdminsDep, CommandsDep, FleetDep, MaintainerDep, PagesDep
from web.requests.responses import redirects
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter()

PAGE_PATH = "/maintainer"
SHOWN_ENTRIES = 60
PAGE_ENTRIES = 200
SEARCHED_NOTES = 250

Reason = Annotated[str, Form(max_length=MOST_TEXT)]
Key = Annotated[str, Form(max_length=100)]
PlanName = Annotated[str, Path(max_length=128)]
Chain = Annotated[str, Query(pattern="^[0-9a-f]{0,64}$")]
Wake = Annotated[str, Query(max_length=128)]
Newest = Annotated[int, Query(ge=-1, le=MAX_ID)]
Before = Annotated[int | None, Query(ge=0, le=MAX_ID)]


async def _now(fleet: FleetDep, maintainer: MaintainerDep) -> dict[str, Any]:
    now = fleet.now
    snapshot = await maintainer.snapshot()
    return {
        "now": now,
        "fleet": fleet_view(fleet),
        "view": maintainer_view(snapshot, fleet.state.status, fleet.settings),
        "mode_texts": MODE_TEXTS,
    }


async def _notes(fleet: FleetDep) -> dict[str, Any]:
    notes, problem = [], ""
    if fleet.client is not None:
        try:
            notes = latest_notes(await fleet.client.decisions(kinds=NOTE_KINDS, limit=SEARCHED_NOTES))
        except AstraFlowError as error:
            problem = str(error)
    return {"notes": notes, "notes_problem": problem, "kind_tones": KIND_TONES}


async def _transcript(fleet: FollowedFleet, **query: Any) -> tuple[TranscriptPage, str]:
    nothing = TranscriptPage(chain=query.get("chain", ""), entries=(), has_older=False)
    if fleet.client is None:
        return nothing, ""
    try:
        return await fleet.client.transcript(**query), ""
    except AstraFlowError as problem:
        return nothing, str(problem)


NowDep = Annotated[dict[str, Any], Depends(_now)]
NotesDep = Annotated[dict[str, Any], Depends(_notes)]


@router.get("/maintainer")
@needs(Permission.READ)
async def show(
    request: Request, pages: PagesDep, fleet: FleetDep, now: NowDep, noted: NotesDep, admins: AdminsDep
) -> Response:
    """Shows status, proposals, notes, and the latest transcript entries."""
    page, problem = await _transcript(fleet, limit=SHOWN_ENTRIES)
    return pages.page(
        request,
        "maintainer/page.html",
        page="maintainer",
        **now,
        **noted,
        transcript=transcript_view(page),
        transcript_problem=problem,
        modes=[(mode.value, MODE_TEXTS[mode][1]) for mode in MaintainerMode],
        admins=admins,
        key=form_key("maintainer", time.time_ns()),
    )


@router.get("/maintainer/state")
@needs(Permission.READ)
async def state(request: Request, pages: PagesDep, now: NowDep) -> Response:
    """Returns the status as a fragment, for the live page."""
    return responses.with_etag(request, pages.page(request, "maintainer/_state.html", **now))


@router.get("/maintainer/recent")
@needs(Permission.READ)
async def recent(request: Request, pages: PagesDep, now: NowDep, noted: NotesDep) -> Response:
    """Returns recent decisions and notes as a fragment, for the live page."""
    return responses.with_etag(request, pages.page(request, "maintainer/_recent.html", **now, **noted))


@router.get("/maintainer/newer")
@needs(Permission.READ)
async def newer(request: Request, pages: PagesDep, fleet: FleetDep, chain: Chain = "", than: Newest = -1) -> Response:
    """Returns the number of transcript entries newer than ordinal `than`, as a fragment."""
    page, _ = await _transcript(fleet, limit=1)
    ordinal = page.entries[0].ordinal if page.entries else -1
    count = ordinal - than if page.chain == chain else ordinal + 1
    return responses.with_etag(request, pages.page(request, "maintainer/_newer.html", newer=max(0, count)))


@router.get("/maintainer/transcript")
@needs(Permission.READ)
async def transcript(
    request: Request, pages: PagesDep, fleet: FleetDep, chain: Chain = "", wake: Wake = "", before: Before = None
) -> Response:
    """Shows one page of a transcript, or one wake of it."""
    page, problem = await _transcript(fleet, chain=chain, wake=wake, before=before, limit=PAGE_ENTRIES)
    return pages.page(
        request,
        "maintainer/transcript.html",
        page="maintainer",
        fleet=fleet_view(fleet),
        transcript=transcript_view(page, wake=wake),
        transcript_problem=problem,
        before=before,
        now=fleet.now,
    )


@router.get("/maintainer/transcript.{ending}")
@needs(Permission.READ)
async def export(
    fleet: FleetDep, ending: FileFormat, chain: Chain = "", wake: Wake = "", before: Before = None
) -> Response:
    """Returns the same page of the transcript as a file."""
    page = await fleet.require_client().transcript(chain=chain, wake=wake, before=before, limit=PAGE_ENTRIES)
    return sheet_response(transcript_sheet(page), ending)


@router.get("/maintainer/proposals/{plan}")
@needs(Permission.READ)
async def show_proposal(
    request: Request, pages: PagesDep, fleet: FleetDep, maintainer: MaintainerDep, admins: AdminsDep, plan: PlanName
) -> Response:
    """Shows what a proposal would change, with buttons to approve or reject it."""
    proposal = (await maintainer.snapshot()).proposal(PlanId.unchecked(plan))
    if proposal is None:
        raise HTTPException(404, "No proposal with this id. Only the latest proposals are stored.")
    return pages.page(
        request,
        "maintainer/proposal.html",
        page="maintainer",
        row=proposal_row(proposal, fleet.state.status),
        admins=admins,
        key=form_key("decide", plan),
        now=fleet.now,
    )


@router.post("/maintainer/proposals/{plan}/approve")
@needs(Permission.APPROVE, on=ResourceKind.PLAN)
@redirects(PAGE_PATH, failed="The proposal was not approved")
async def approve(commands: CommandsDep, plan: PlanName, key: Key = "", reason: Reason = "") -> str:
    """Approves a proposal, which applies its plan."""
    why = reason.strip() or "approved on the page"
    done = await maintainer_commands.approve(commands, PlanId.unchecked(plan), key=key, reason=why)
    return f"Approved: {done.message or 'no change'}"


@router.post("/maintainer/proposals/{plan}/reject")
@needs(Permission.APPROVE, on=ResourceKind.PLAN)
@redirects(PAGE_PATH, failed="The proposal was not rejected")
async def reject(commands: CommandsDep, plan: PlanName, key: Key = "", reason: Reason = "") -> str:
    """Rejects a proposal, with a reason."""
    if not reason.strip():
        raise InvalidInput(
            "cannot reject a proposal: the reason is missing; enter one", code="maintainer.reason_missing"
        )
    done = await maintainer_commands.reject(commands, PlanId.unchecked(plan), key=key, reason=reason.strip())
    return f"Rejected: {render_summary(done)}"


@router.post("/maintainer/mode")
@needs(Permission.APPROVE, on=ResourceKind.RUN)
@redirects(PAGE_PATH, failed="The mode was not changed")
async def set_mode(
    commands: CommandsDep, mode: Annotated[str, Form(max_length=20)] = "", key: Key = "", reason: Reason = ""
) -> str:
    """Sets the maintainer's mode."""
    if mode not in {known_mode.value for known_mode in MaintainerMode}:
        known_modes = ", ".join(known_mode.value for known_mode in MaintainerMode)
        raise InvalidInput(
            f"cannot set the mode: unknown mode {mode!r}; use {known_modes}", code="maintainer.unknown_mode"
        )
    why = reason.strip() or "set on the page"
    done = await maintainer_commands.set_mode(commands, MaintainerMode(mode), key=key, reason=why)
    return render_summary(done)[:1].upper() + render_summary(done)[1:]


@router.post("/maintainer/wake")
@needs(Permission.APPROVE, on=ResourceKind.RUN)
@redirects(PAGE_PATH, failed="The maintainer was not woken")
async def wake(commands: CommandsDep, key: Key = "", reason: Reason = "") -> str:
    """Lets the maintainer wake once, without a signal and within its budgets."""
    await maintainer_commands.wake(commands, key=key, reason=reason.strip() or "woken on the page")
    return "The maintainer wakes within seconds; its transcript shows what it does"
