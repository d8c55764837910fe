"""`/pools`: how large each pool is and may be, and changing that: bounds, a size, a hold, everything gone."""

import time
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet import KillScope, Plan, PlanId, PlanRequest, Role
from astraflow.contract.ids import PoolId
from web.accounts.viewer import Viewer
from web.acts import fleet as fleet_acts
from web.acts.pool_form import MOST_TEXT, number_from, spec_from
from web.acts.steering import told
from web.door.flash import Flash, Undo
from web.door.roles import Need, On, needs
from web.parts import Parts, PartsOf, ViewerOf
from web.present.plans import plan_view
from web.present.pools import (
    fleet_view,
    pool_row,
    pool_sheet,
)
from web.present.shell import shell
from web.reading import again
from web.reading.exports import Ending, sheet_answer
from web.reading.pool_page import made_from, page_of, pool_now, pool_of

router = APIRouter()

Reason = Annotated[str, Form(max_length=MOST_TEXT)]


@router.get("/pools")
@needs(Need.READ)
async def show(request: Request, parts: PartsOf) -> Response:
    """Every pool."""
    return parts.pages.page(request, "pools/page.html", page="pools", **_fleet(parts))


@router.get("/pools/table")
@needs(Need.READ)
async def table(request: Request, parts: PartsOf) -> Response:
    """The figures and the table alone, for the live page."""
    return again.answered(request, parts.pages.page(request, "pools/_fleet.html", **_fleet(parts)))


@router.get("/pools.{ending}")
@needs(Need.READ)
async def take(parts: PartsOf, ending: Ending) -> Response:
    """The table as a file."""
    status = parts.fleet_state.status
    return sheet_answer(pool_sheet(status.pools if status else (), now=parts.clock.wall()), ending)


@router.get("/pools/{pool:path}/plans/{plan}")
@needs(Need.OPERATE, on=On.PLAN)
async def show_plan(request: Request, parts: PartsOf, viewer: ViewerOf, pool: str, plan: str) -> Response:
    """What applying a plan would do, and the question whether to."""
    known = _plan(parts, pool, plan)
    return parts.pages.page(
        request,
        "pools/plan.html",
        page="pools",
        shell=shell(parts.state, parts.settings),
        view=plan_view(known, parts.fleet_state.pool(pool)),
        may_apply=_may_apply(parts, viewer, known),
        admins=await parts.accounts.users.admins(),
        key=fleet_acts.form_key("apply", plan),
    )


@router.post("/pools/{pool:path}/plans/{plan}/apply")
@needs(Need.OPERATE, on=On.PLAN)
async def apply(
    parts: PartsOf,
    viewer: ViewerOf,
    pool: str,
    plan: str,
    key: Annotated[str, Form(max_length=100)] = "",
    name: Annotated[str, Form(max_length=200)] = "",
    reason: Reason = "",
) -> Response:
    """Carry it out."""
    known = _plan(parts, pool, plan)
    if plan_view(known, None).asks_name and name.strip() != known.request.pool:
        text = f"Nothing was done: type the name of the pool, {known.request.pool}, to do that"
        return told(Flash(text=text, tone="bad"), back=f"{_path(pool)}/plans/{plan}")
    reason = reason.strip() or known.request.reason

    async def asked() -> str:
        done = await fleet_acts.apply_plan(parts, viewer, PlanId(plan), key=key, reason=reason)
        return f"Pool {pool}: {done.message or 'as it was'}"

    return await _told(asked(), if_failed="The plan was not applied", back=_path(pool))


@router.post("/pools/{pool:path}/plans")
@needs(Need.OPERATE, on=On.POOL)
async def plan(
    parts: PartsOf,
    viewer: ViewerOf,
    pool: str,
    target: Annotated[int, Form(ge=0, le=1_000_000)] = 0,
    is_kill: Annotated[bool, Form()] = False,
    reason: Reason = "",
) -> Response:
    """Ask what a size would mean, and show that."""
    try:
        request = PlanRequest(
            pool=PoolId(pool),
            actor=fleet_acts.actor_of(parts, viewer, pool=pool),
            reason=reason,
            target=target,
            is_kill=is_kill,
        )
        made = await fleet_acts.plan_change(parts, request)
    except AstraFlowError as problem:
        return told(Flash(text=f"Nothing was planned: {problem}", tone="bad"), back=_path(pool))
    return RedirectResponse(f"{_path(pool)}/plans/{made.id}", 303)


@router.get("/pools/{pool:path}/drain-all")
@needs(Need.OPERATE, on=On.POOL)
async def ask_drain_all(request: Request, parts: PartsOf, pool: str) -> Response:
    """Say what ending a whole pool means, and ask."""
    known = pool_of(parts, pool)
    return parts.pages.page(
        request,
        "pools/drain_all.html",
        page="pools",
        shell=shell(parts.state, parts.settings),
        pool=known.spec,
        row=pool_row(known, now=parts.clock.wall()),
        admins=await parts.accounts.users.admins(),
    )


@router.get("/pools/{pool:path}/lose")
@needs(Need.ADMINISTER, on=On.POOL)
async def ask_lose(request: Request, parts: PartsOf, pool: str, back: Literal["", "overview"] = "") -> Response:
    """Say what the simulated fault does, and ask."""
    known = pool_of(parts, pool)
    return parts.pages.page(
        request,
        "pools/lose.html",
        page="pools",
        shell=shell(parts.state, parts.settings),
        pool=known.spec,
        row=pool_row(known, now=parts.clock.wall()),
        back=back,
        key=fleet_acts.form_key("lose", pool, time.time_ns()),
    )


@router.post("/pools/{pool:path}/lose")
@needs(Need.ADMINISTER, on=On.POOL)
async def lose(
    parts: PartsOf,
    viewer: ViewerOf,
    pool: str,
    percent: Annotated[float, Form(gt=0, le=100)] = 30.0,
    back: Annotated[Literal["", "overview"], Form()] = "",
    key: Annotated[str, Form(max_length=100)] = "",
    reason: Reason = "",
) -> Response:
    """Have that share of the nodes that work fail."""

    async def asked() -> str:
        done = await fleet_acts.lose_nodes(
            parts, viewer, PoolId(pool), share=percent / 100, key=key, reason=reason.strip() or "a drill"
        )
        return f"Pool {pool}, {done.decision.message}; what the rule makes of it stands here within half a minute"

    return await _told(asked(), if_failed="No node was lost", back="/" if back else _path(pool))


@router.post("/pools/{pool:path}/hold")
@needs(Need.OPERATE, on=On.POOL)
async def hold(
    parts: PartsOf,
    viewer: ViewerOf,
    pool: str,
    minutes: Annotated[float, Form(ge=0, le=60)] = 30.0,
    reason: Reason = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Take no node away for so long; 0 ends it."""

    async def asked() -> str:
        why = reason.strip() or ("held on the page" if minutes else "released on the page")
        return (await fleet_acts.hold_pool(parts, viewer, PoolId(pool), minutes=minutes, key=key, reason=why)).message

    undo = Undo.RELEASE if minutes else None
    return await _told(asked(), if_failed="The pool was not held", back=_path(pool), undo=undo, of=pool)


@router.post("/pools/{pool:path}/spec")
@needs(Need.ADMINISTER, on=On.POOL)
async def change(request: Request, parts: PartsOf, viewer: ViewerOf, pool: str) -> Response:
    """Other bounds, mode or spec; or, with `undo`, those of before."""
    form = {name: str(value) for name, value in (await request.form(max_fields=40)).items()}

    async def asked() -> str:
        known = pool_of(parts, pool)
        observed = int(number_from(form.get("observed_version", ""), low=0, high=2**53, what="the observed version"))
        before = parts.shelf.specs.get((parts.run, pool, observed)) if "undo" in form else None
        if "undo" in form and before is None:
            raise InvalidInput("what was before is not known any more: set it by hand")
        spec = before or spec_from(known.spec, form)
        reason = form.get("reason", "").strip()[:MOST_TEXT] or ("undone on the page" if before else "")
        done = await fleet_acts.put_pool(
            parts, viewer, spec, observed_version=observed, key=form.get("key", ""), reason=reason
        )
        bounds = f"{spec.min_nodes} to {spec.max_nodes} nodes, mode {spec.mode.value}"
        return f"Pool {pool} is {'again ' if before else ''}{bounds} (version {done.version})"

    return await _told(asked(), if_failed="The pool was not changed", back=_path(pool))


@router.get("/pools/{pool:path}/now")
@needs(Need.READ)
async def show_now(request: Request, parts: PartsOf, viewer: ViewerOf, pool: str) -> Response:
    """What changes of its page by itself. Its machines and journal are read when something moved, or is not new."""
    known = pool_of(parts, pool)
    made = made_from(parts, viewer, known)
    return again.nothing_new(request, made) or again.answered(
        request,
        parts.pages.page(request, "pools/_live.html", cells=parts.frames.cells, **await pool_now(parts, known)),
        made=made,
    )


@router.get("/pools/{pool:path}")
@needs(Need.READ)
async def show_pool(request: Request, parts: PartsOf, pool: str) -> Response:
    """One pool."""
    return await page_of(request, parts, pool_of(parts, pool))


def _fleet(parts: Parts) -> dict[str, Any]:
    return {
        "shell": shell(parts.state, parts.settings),
        "fleet": fleet_view(parts.fleet_state, parts.settings, now=parts.clock.wall()),
        "scopes": KillScope,
    }


def _path(pool: str) -> str:
    return f"/pools/{quote(pool)}"


async def _told(asked: Any, *, if_failed: str, back: str, undo: Undo | None = None, of: str = "") -> Response:
    """Await what was asked, and say on the page what came of it; the audit has it already."""
    try:
        return told(Flash(text=await asked, tone="good", undo=undo, of=of), back=back)
    except AstraFlowError as problem:
        return told(Flash(text=f"{if_failed}: {problem}", tone="bad"), back=back)


def _plan(parts: Parts, pool: str, plan: str) -> Plan:
    """The plan of that pool. Raises: HTTPException for one that is not known, or was made for another pool."""
    known = parts.shelf.plans.get((parts.run, PlanId.known(plan)))
    if known is None or known.request.pool != pool:
        raise HTTPException(404, "That plan is not known (any more): plans are good for five minutes. Plan again.")
    return known


def _may_apply(parts: Parts, viewer: Viewer, plan: Plan) -> bool:
    """As the fleet service will say: this only chooses what the page offers."""
    pool = plan.request.pool
    is_admin = viewer.may(Need.ADMINISTER, run=parts.run, pool=pool)
    if plan.request.is_kill:
        return is_admin
    is_of_program = plan.request.actor.role in (Role.AGENT, Role.RULE)
    may_approve = viewer.may(Need.APPROVE, run=parts.run, pool=pool) and is_of_program
    return not plan.needs_approval or is_admin or may_approve
