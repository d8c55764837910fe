"""`/pools`: size and bounds of each pool, and changes: bounds, target size, hold, drain all."""

import time
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.plans import Plan, PlanId, PlanRequest, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.ids import PoolId
from astraflow.contract.records import render_summary
from web.components.downloads import FileFormat, sheet_response
from web.pools.plans import plan_view
from web.pools.pool_form import MOST_TEXT, number_from, spec_from
from web.pools.queries import PoolDep, PoolPageDep
from web.pools.views import fleet_view, pool_row, pool_sheet
from web.requests import responses
from web.requests.commands import Commands, form_key
from web.requests.dependencies import AdminsDep, CommandsDep, FleetDep, PagesDep
from web.requests.responses import redirect_with_flash, redirect_with_result, redirects
from web.security.flash import Flash, Undo
from web.security.roles import Permission, ResourceKind, needs

router = APIRouter()

Reason = Annotated[str, Form(max_length=MOST_TEXT)]


@router.get("/pools")
@needs(Permission.READ)
async def show(request: Request, pages: PagesDep, fleet: FleetDep) -> Response:
    """Shows all pools."""
    return pages.page(request, "pools/page.html", page="pools", fleet=fleet_view(fleet), scopes=KillScope)


@router.get("/pools/table")
@needs(Permission.READ)
async def table(request: Request, pages: PagesDep, fleet: FleetDep) -> Response:
    """Returns the figures and the table as a fragment, for the live page."""
    return responses.with_etag(
        request, pages.page(request, "pools/_fleet.html", fleet=fleet_view(fleet), scopes=KillScope)
    )


@router.get("/pools.{ending}")
@needs(Permission.READ)
async def export(fleet: FleetDep, ending: FileFormat) -> Response:
    """Returns the table as a file."""
    status = fleet.state.status
    return sheet_response(pool_sheet(status.pools if status else (), now=fleet.now), ending)


@router.get("/pools/{pool:path}/plans/{plan}")
@needs(Permission.OPERATE, on=ResourceKind.PLAN)
async def show_plan(
    request: Request, pages: PagesDep, commands: CommandsDep, fleet: FleetDep, admins: AdminsDep, pool: str, plan: str
) -> Response:
    """Shows the changes of a plan and the button that applies it."""
    stored_plan = _plan(commands, pool, plan)
    return pages.page(
        request,
        "pools/plan.html",
        page="pools",
        view=plan_view(stored_plan, fleet.state.pool(pool)),
        may_apply=_may_apply(commands, stored_plan),
        admins=admins,
        key=form_key("apply", plan),
    )


@router.post("/pools/{pool:path}/plans/{plan}/apply")
@needs(Permission.OPERATE, on=ResourceKind.PLAN)
@redirects("/pools/{pool}", failed="The plan was not applied")
async def apply(
    commands: CommandsDep,
    pool: str,
    plan: str,
    key: Annotated[str, Form(max_length=100)] = "",
    name: Annotated[str, Form(max_length=200)] = "",
    reason: Reason = "",
) -> str | Response:
    """Applies a plan."""
    stored_plan = _plan(commands, pool, plan)
    if plan_view(stored_plan, None).requires_pool_name and name.strip() != stored_plan.request.pool:
        problem = InvalidInput(
            f"cannot confirm the plan: the name does not match; type the name of the pool, {stored_plan.request.pool}",
            code="pool.name_not_confirmed",
        )
        flash = Flash.failure("The plan was not applied", problem)
        return redirect_with_flash(flash, page=f"{_path(pool)}/plans/{plan}")
    done = await commands.apply_plan(PlanId(plan), key=key, reason=reason.strip() or stored_plan.request.reason)
    return f"Pool {pool}: {done.message or 'no change'}"


@router.post("/pools/{pool:path}/plans")
@needs(Permission.OPERATE, on=ResourceKind.POOL)
@redirects("/pools/{pool}", failed="Nothing was planned")
async def plan(
    commands: CommandsDep,
    pool: str,
    target: Annotated[int, Form(ge=0, le=1_000_000)] = 0,
    is_kill: Annotated[bool, Form()] = False,
    reason: Reason = "",
) -> Response:
    """Plans a target size and redirects to the plan's page."""
    actor = commands.actor(pool=pool)
    request = PlanRequest(pool=PoolId(pool), actor=actor, reason=reason, target=target, is_kill=is_kill)
    new_plan = await commands.plan_change(request)
    return RedirectResponse(f"{_path(pool)}/plans/{new_plan.id}", 303)


@router.get("/pools/{pool:path}/drain-all")
@needs(Permission.OPERATE, on=ResourceKind.POOL)
async def ask_drain_all(
    request: Request, pages: PagesDep, fleet: FleetDep, admins: AdminsDep, stored_pool: PoolDep
) -> Response:
    """Shows the confirmation page for draining a whole pool."""
    return pages.page(
        request,
        "pools/drain_all.html",
        page="pools",
        pool=stored_pool.spec,
        row=pool_row(stored_pool, now=fleet.now),
        admins=admins,
    )


@router.get("/pools/{pool:path}/inject-fault")
@needs(Permission.ADMINISTER, on=ResourceKind.POOL)
async def ask_fault(
    request: Request, pages: PagesDep, fleet: FleetDep, stored_pool: PoolDep, back: Literal["", "overview"] = ""
) -> Response:
    """Shows the confirmation page for fault injection."""
    return pages.page(
        request,
        "pools/inject_fault.html",
        page="pools",
        pool=stored_pool.spec,
        row=pool_row(stored_pool, now=fleet.now),
        back=back,
        key=form_key("inject-fault", stored_pool.spec.id, time.time_ns()),
    )


@router.post("/pools/{pool:path}/inject-fault")
@needs(Permission.ADMINISTER, on=ResourceKind.POOL)
async def inject_fault(
    commands: CommandsDep,
    pool: str,
    percent: Annotated[float, Form(gt=0, le=100)] = 30.0,
    back: Annotated[Literal["", "overview"], Form()] = "",
    key: Annotated[str, Form(max_length=100)] = "",
    reason: Reason = "",
) -> Response:
    """Injects a fault: terminates this percentage of the ready nodes."""

    async def command() -> str:
        done = await commands.inject_fault(
            PoolId(pool), share=percent / 100, key=key, reason=reason.strip() or "fault injection test"
        )
        return f"Pool {pool}, {render_summary(done.decision)}; the rule's recommendation follows within 30 seconds"

    return await redirect_with_result(command(), failed="No fault was injected", page="/" if back else _path(pool))


@router.post("/pools/{pool:path}/hold")
@needs(Permission.OPERATE, on=ResourceKind.POOL)
@redirects("/pools/{pool}", failed="The hold was not changed")
async def set_hold(
    commands: CommandsDep,
    pool: str,
    minutes: Annotated[float, Form(ge=0, le=60)] = 30.0,
    reason: Reason = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Flash:
    """Sets a hold for so many minutes, during which no node is removed; 0 ends it."""
    why = reason.strip() or ("hold set on the page" if minutes else "hold ended on the page")
    done = await commands.set_pool_hold(PoolId(pool), minutes=minutes, key=key, reason=why)
    return Flash(text=render_summary(done), tone="good", undo=Undo.RELEASE if minutes else None, of=pool)


@router.post("/pools/{pool:path}/spec")
@needs(Permission.ADMINISTER, on=ResourceKind.POOL)
@redirects("/pools/{pool}", failed="The pool was not changed")
async def change(request: Request, commands: CommandsDep, stored_pool: PoolDep, pool: str) -> str:
    """Changes bounds, mode or spec; with `undo`, restores the previous ones."""
    form = {name: str(value) for name, value in (await request.form(max_fields=40)).items()}
    observed = int(number_from(form.get("observed_version", ""), low=0, high=2**53, what="the observed version"))
    before = commands.previous_spec(pool, observed) if "undo" in form else None
    if "undo" in form and before is None:
        raise InvalidInput(
            "cannot undo: the previous bounds are no longer stored; set them in the form", code="pool.undo_expired"
        )
    spec = before or spec_from(stored_pool.spec, form)
    reason = form.get("reason", "").strip()[:MOST_TEXT] or ("undone on the page" if before else "")
    done = await commands.put_pool(spec, observed_version=observed, key=form.get("key", ""), reason=reason)
    bounds = f"{spec.min_nodes} to {spec.max_nodes} nodes, mode {spec.mode.value}"
    return f"Pool {pool} is {'again ' if before else ''}{bounds} (version {done.version})"


@router.get("/pools/{pool:path}/now")
@needs(Permission.READ)
async def show_now(request: Request, pages: PagesDep, pool_page: PoolPageDep) -> Response:
    """Returns the live parts of the pool's page. Reads instances and journal only when the source tag has changed."""
    tag = pool_page.source_tag
    return responses.not_modified(request, tag) or responses.with_etag(
        request, pages.page(request, "pools/_live.html", **await pool_page.context()), source=tag
    )


@router.get("/pools/{pool:path}")
@needs(Permission.READ)
async def show_pool(request: Request, pool_page: PoolPageDep) -> Response:
    """Shows a pool's page."""
    return await pool_page.response(request)


def _path(pool: str) -> str:
    return f"/pools/{quote(pool)}"


def _plan(commands: Commands, pool: str, plan: str) -> Plan:
    """Returns a plan of the pool. Raises: HTTPException for an unknown plan or a plan of another pool."""
    stored_plan = commands.known_plan(PlanId.unchecked(plan))
    if stored_plan is None or stored_plan.request.pool != pool:
        raise HTTPException(404, "No plan with this id. Plans expire after five minutes: plan again.")
    return stored_plan


def _may_apply(commands: Commands, plan: Plan) -> bool:
    """Predicts the fleet service's answer; it only selects what the page offers."""
    viewer, run, pool = commands.viewer, commands.run.name, plan.request.pool
    is_admin = viewer.may(Permission.ADMINISTER, run=run, pool=pool)
    if plan.request.is_kill:
        return is_admin
    is_from_program = plan.request.actor.role in (Role.AGENT, Role.RULE)
    may_approve = viewer.may(Permission.APPROVE, run=run, pool=pool) and is_from_program
    return not plan.needs_approval or is_admin or may_approve
