"""Queries of a pool's page: state, instances and decisions, which the page polls."""

import time
from dataclasses import replace
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import Instance
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import Mode
from web.accounts.viewer import Viewer
from web.components.layout import layout
from web.decisions.queries import DecisionFilter, decision_page
from web.decisions.views import decision_groups, decision_row
from web.pools.instances import instance_row, launch_delays, spot_share, unfinished_launches
from web.pools.views import MODE_TEXTS, fleet_view, pool_row
from web.requests import conditional_requests, fleet_commands
from web.requests.context import RequestContext

SHOWN_INSTANCES = 50
SHOWN_DECISIONS = 6
MAX_MEASURED_INSTANCES = 1000
WHAT_IF_HOURS = {"1": "the last hour", "6": "the last 6 hours", "12": "the last 12 hours", "24": "the last 24 hours"}
"""Recorded periods over which the page can replay other bounds."""

DEFAULT_HOURS = "24"

RECHECK_S = 10.0
"""Interval in seconds at which instances and decisions of an unchanged pool are read again."""


async def pool_page_response(request: Request, context: RequestContext, pool: Pool, **more: Any) -> Response:
    """Renders the whole page; `more` adds context, such as the result of a form."""
    template_context: dict[str, Any] = {
        "form_values": {"mode": "", "min_nodes": "", "max_nodes": "", "hours": DEFAULT_HOURS},
        "all_hours": WHAT_IF_HOURS,
        "what_if": None,
        "what_if_problem": "",
        "what_if_code": "",
        "layout": layout(context.state, context.settings),
        "modes": [(mode.value, MODE_TEXTS[mode]) for mode in Mode],
        "key": fleet_commands.form_key(pool.spec.id, pool.version, time.time_ns()),
        "live_texts": context.frames.live_texts,
        **await pool_context(context, pool),
    }
    return context.pages.page(request, "pools/pool.html", page="pools", **template_context | more)


async def pool_context(context: RequestContext, pool: Pool) -> dict[str, Any]:
    """Returns the template context of the changing parts. Keys of the forms are bound to the state that they change."""
    now, problem = context.clock.wall(), ""
    measured: tuple[Instance, ...] = ()
    try:
        measured = await fleet_commands.fleet_of(context).instances(
            pool=pool.spec.id, with_gone=True, limit=MAX_MEASURED_INSTANCES
        )
    except AstraFlowError as error:
        problem = str(error)
    decisions = await decision_page(context, DecisionFilter(pool=pool.spec.id), limit=SHOWN_DECISIONS)
    return {
        "admins": await context.accounts.users.admins(),
        "fleet": fleet_view(context.fleet_state, context.settings, now=now),
        "pool": pool,
        "spec": pool.spec,
        "row": pool_row(pool, now=now),
        "launch_delays": launch_delays(measured, pool),
        "unfinished_launches": unfinished_launches(measured),
        "spot_share": spot_share(measured),
        "instances": [instance_row(instance) for instance in measured[:SHOWN_INSTANCES]],
        "more_instances": max(0, len(measured) - SHOWN_INSTANCES),
        "problem": problem,
        "groups": decision_groups([decision_row(entry) for entry in decisions.entries]),
        "decision_problems": decisions.problems,
        "undo": context.cache.previous_specs.get((context.run, pool.spec.id, pool.version)),
        "release_key": fleet_commands.form_key("release", pool.spec.id, pool.override_until_at),
        "undo_key": fleet_commands.form_key("undo", pool.spec.id, pool.version),
    }


def source_tag(context: RequestContext, viewer: Viewer, pool: Pool) -> str:
    """Returns the first half of the ETag, from known state only; when it changes, everything else is read again."""
    now, report, recommendation_text = (
        context.clock.wall(),
        context.state.report,
        context.frames.live_texts.get(f"pool/{pool.spec.id}/recommendation"),
    )
    fleet = fleet_view(context.fleet_state, context.settings, now=now)
    return conditional_requests.source_tag(
        context,
        viewer,
        replace(pool, usd_today=0.0),  # grows all the time; its shown part is in the row
        pool_row(pool, now=now),
        (fleet.is_stale, fleet.is_stale and fleet.age, fleet.problem),
        report.events[-1:] if report else (),
        recommendation_text,
        int(now / RECHECK_S),
    )


def require_pool(context: RequestContext, name: str) -> Pool:
    """Returns a pool by name. Raises: HTTPException 404 for an unknown pool, 503 without a fleet status."""
    pool = context.fleet_state.pool(name)
    if pool is None and context.fleet_state.status is None:
        fleet_commands.fleet_of(context)
        raise HTTPException(503, context.fleet_state.problem or "The fleet service has not answered yet.")
    if pool is None:
        raise HTTPException(404, f"Pool {name[:140]} not found.")
    return pool
