"""`/maintainer`: how the maintainer is, what it wants, and what people decide about that."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet import PlanId
from astraflow.contract.maintenance import MaintainerMode, TranscriptPage
from web.acts import fleet as fleet_acts
from web.acts import maintainer as maintainer_acts
from web.acts.pool_form import MOST_TEXT
from web.acts.steering import told
from web.door.flash import Flash
from web.door.roles import Need, On, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.present.maintainer import MODE_TEXTS, maintainer_view, note_rows, proposal_row
from web.present.pools import fleet_view
from web.present.shell import shell
from web.present.transcript import transcript_sheet, transcript_view
from web.reading import again
from web.reading.exports import Ending, sheet_answer

router = APIRouter()

HERE = "/maintainer"
SHOWN_ENTRIES = 60
PAGE_ENTRIES = 200
SEARCHED_DECISIONS = 250

Reason = Annotated[str, Form(max_length=MOST_TEXT)]
Key = Annotated[str, Form(max_length=100)]
PlanName = Annotated[str, Path(max_length=128)]
Chain = Annotated[str, Query(pattern="^[0-9a-f]{0,64}$")]
Wake = Annotated[str, Query(max_length=128)]
Newest = Annotated[int, Query(ge=-1, le=2**53)]
Before = Annotated[int | None, Query(ge=0, le=2**53)]


@router.get("/maintainer")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """All of it: status, proposals, notes, and the latest of the transcript."""
    notes, notes_problem = await _notes(parts)
    page, problem = await _transcript(parts, limit=SHOWN_ENTRIES)
    return parts.pages.page(
        request,
        "maintainer/page.html",
        page="maintainer",
        **await _now(parts),
        notes=notes,
        notes_problem=notes_problem,
        transcript=transcript_view(page),
        transcript_problem=problem,
        modes=[(mode.value, MODE_TEXTS[mode][1]) for mode in MaintainerMode],
        admins=await parts.accounts.users.admins(),
        key=fleet_acts.form_key("maintainer", time.time_ns()),
    )


@router.get("/maintainer/state")
@needs(Need.READ)
async def state(request: Request, parts: PartsOf) -> Response:
    """What changes by itself, for the live page."""
    return again.answered(request, parts.pages.page(request, "maintainer/_state.html", **await _now(parts)))


@router.get("/maintainer/lately")
@needs(Need.READ)
async def lately(request: Request, parts: PartsOf) -> Response:
    """What was decided and noted, for the live page."""
    notes, problem = await _notes(parts)
    now = await _now(parts)
    part = parts.pages.page(request, "maintainer/_lately.html", **now, notes=notes, notes_problem=problem)
    return again.answered(request, part)


@router.get("/maintainer/newer")
@needs(Need.READ)
async def newer(request: Request, parts: PartsOf, chain: Chain = "", than: Newest = -1) -> Response:
    """How much the transcript has that a page, which ends at `than`, does not show."""
    page, _ = await _transcript(parts, limit=1)
    ordinal = page.entries[0].ordinal if page.entries else -1
    count = ordinal - than if page.chain == chain else ordinal + 1
    return again.answered(request, parts.pages.page(request, "maintainer/_newer.html", newer=max(0, count)))


@router.get("/maintainer/transcript")
@needs(Need.READ)
async def transcript(
    request: Request, parts: PartsOf, chain: Chain = "", wake: Wake = "", before: Before = None
) -> Response:
    """A stretch of a transcript, or one wake of it."""
    page, problem = await _transcript(parts, chain=chain, wake=wake, before=before, limit=PAGE_ENTRIES)
    return parts.pages.page(
        request,
        "maintainer/transcript.html",
        page="maintainer",
        shell=shell(parts.state, parts.settings),
        fleet=fleet_view(parts.fleet_state, parts.settings, now=parts.clock.wall()),
        transcript=transcript_view(page, wake=wake),
        transcript_problem=problem,
        before=before,
        now=parts.clock.wall(),
    )


@router.get("/maintainer/transcript.{ending}")
@needs(Need.READ)
async def take(parts: PartsOf, ending: Ending, chain: Chain = "", wake: Wake = "", before: Before = None) -> Response:
    """The same stretch as a file."""
    page = await fleet_acts.fleet_of(parts).transcript(chain=chain, wake=wake, before=before, limit=PAGE_ENTRIES)
    return sheet_answer(transcript_sheet(page), ending)


@router.get("/maintainer/proposals/{plan}")
@needs(Need.READ)
async def show_proposal(request: Request, parts: PartsOf, plan: PlanName) -> Response:
    """What a proposal would do, and the question what to do with it."""
    found = (await parts.maintainer.look()).proposal(PlanId.known(plan))
    if found is None:
        raise HTTPException(404, "No such proposal is kept (any more): look at the newest ones.")
    return parts.pages.page(
        request,
        "maintainer/proposal.html",
        page="maintainer",
        shell=shell(parts.state, parts.settings),
        row=proposal_row(found, parts.fleet_state.status),
        admins=await parts.accounts.users.admins(),
        key=fleet_acts.form_key("decide", plan),
        now=parts.clock.wall(),
    )


@router.post("/maintainer/proposals/{plan}/approve")
@needs(Need.APPROVE, on=On.PLAN)
async def approve(parts: PartsOf, viewer: ViewerOf, plan: PlanName, key: Key = "", reason: Reason = "") -> Response:
    """Have it done."""

    async def asked() -> str:
        why = reason.strip() or "approved on the page"
        done = await maintainer_acts.approve(parts, viewer, PlanId.known(plan), key=key, reason=why)
        return f"Approved: {done.message or 'as it was'}"

    return await _told(asked(), if_failed="It was not approved")


@router.post("/maintainer/proposals/{plan}/reject")
@needs(Need.APPROVE, on=On.PLAN)
async def reject(parts: PartsOf, viewer: ViewerOf, plan: PlanName, key: Key = "", reason: Reason = "") -> Response:
    """Say no, and why."""

    async def asked() -> str:
        if not reason.strip():
            raise InvalidInput("a rejection needs a reason: the maintainer's journal keeps it")
        done = await maintainer_acts.reject(parts, viewer, PlanId.known(plan), key=key, reason=reason.strip())
        return f"Rejected: {done.message}"

    return await _told(asked(), if_failed="It was not rejected")


@router.post("/maintainer/mode")
@needs(Need.APPROVE, on=On.RUN)
async def set_mode(
    parts: PartsOf,
    viewer: ViewerOf,
    mode: Annotated[str, Form(max_length=20)] = "",
    key: Key = "",
    reason: Reason = "",
) -> Response:
    """Say how far it may go."""

    async def asked() -> str:
        if mode not in {known.value for known in MaintainerMode}:
            raise InvalidInput(f"{mode!r} is no mode: {', '.join(known.value for known in MaintainerMode)}")
        why = reason.strip() or "set on the page"
        done = await maintainer_acts.set_mode(parts, viewer, MaintainerMode(mode), key=key, reason=why)
        return done.message[:1].upper() + done.message[1:]

    return await _told(asked(), if_failed="The mode was not changed")


async def _now(parts: Parts) -> dict[str, Any]:
    now = parts.clock.wall()
    look = await parts.maintainer.look()
    return {
        "now": now,
        "shell": shell(parts.state, parts.settings),
        "fleet": fleet_view(parts.fleet_state, parts.settings, now=now),
        "view": maintainer_view(look, parts.fleet_state.status, parts.settings),
    }


async def _notes(parts: Parts) -> tuple[tuple[Any, ...], str]:
    if parts.fleet is None:
        return (), ""
    try:
        return note_rows(await parts.fleet.decisions(limit=SEARCHED_DECISIONS)), ""
    except AstraFlowError as problem:
        return (), str(problem)


async def _transcript(parts: Parts, **asked: Any) -> tuple[TranscriptPage, str]:
    nothing = TranscriptPage(chain=asked.get("chain", ""), entries=(), has_older=False)
    if parts.fleet is None:
        return nothing, ""
    try:
        return await parts.fleet.transcript(**asked), ""
    except AstraFlowError as problem:
        return nothing, str(problem)


async def _told(asked: Any, *, if_failed: str) -> Response:
    """Await what was asked, and say on the page what came of it; the audit has it already."""
    try:
        return told(Flash(text=await asked, tone="good"), back=HERE)
    except AstraFlowError as problem:
        return told(Flash(text=f"{if_failed}: {problem}", tone="bad"), back=HERE)
