"""Queries of a pool's page: state, instances and decisions, which the page polls."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.instances import Instance
from astraflow.contract.fleet.pools import Pool
from astraflow.contract.fleet.recommendations import Mode
from web.components.formats import usd
from web.decisions.queries import DecisionFilter, decision_page
from web.decisions.views import decision_groups
from web.pools.instances import (
    STATE_TONES,
    launch_delays,
    spot_share,
    state_since,
    state_text,
    unfinished_launches,
)
from web.pools.views import MODE_TEXTS, fleet_view, pool_row, pool_state
from web.requests import responses
from web.requests.commands import Commands, form_key
from web.requests.dependencies import AdminsDep, CommandsDep, FleetDep

SHOWN_INSTANCES = 50
SHOWN_DECISIONS = 6
MAX_MEASURED_INSTANCES = 1000
WHAT_IF_HOURS = {"1": "the last hour", "6": "the last 6 hours", "12": "the last 12 hours", "24": "the last 24 hours"}
"""Recorded periods over which the page can replay other bounds."""

DEFAULT_HOURS = "24"

RECHECK_S = 10.0
"""Interval in seconds at which instances and decisions of an unchanged pool are read again."""


async def get_pool(pool: str, fleet: FleetDep) -> Pool:
    """Returns the pool in the address. Raises: HTTPException 404 for an unknown pool, 503 without a fleet status."""
    stored_pool = fleet.state.pool(pool)
    if stored_pool is not None:
        return stored_pool
    fleet.require_client()
    if fleet.state.status is None:
        raise HTTPException(503, fleet.state.problem or "The fleet service has not answered yet.")
    raise HTTPException(404, f"Pool {pool[:140]} not found.")


PoolDep = Annotated[Pool, Depends(get_pool)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPage:
    """Page of a pool."""

    pool: Pool
    commands: Commands
    admins: Sequence[str]

    async def response(self, request: Request, **more: Any) -> Response:
        """Renders the whole page; `more` adds context, such as the result of a form."""
        template_context: dict[str, Any] = {
            "form_values": {"mode": "", "min_nodes": "", "max_nodes": "", "hours": DEFAULT_HOURS},
            "all_hours": WHAT_IF_HOURS,
            "what_if": None,
            "what_if_problem": "",
            "what_if_code": "",
            "modes": [(mode.value, MODE_TEXTS[mode]) for mode in Mode],
            "key": form_key(self.pool.spec.id, self.pool.version, time.time_ns()),
            **await self.context(),
        }
        return self.commands.run.pages.page(request, "pools/pool.html", page="pools", **template_context | more)

    async def context(self) -> dict[str, Any]:
        """Returns the context of the changing parts. Keys of the forms are bound to the state that they change."""
        run, pool, problem = self.commands.run, self.pool, ""
        measured: tuple[Instance, ...] = ()
        try:
            measured = await run.fleet.require_client().instances(
                pool=pool.spec.id, with_gone=True, limit=MAX_MEASURED_INSTANCES
            )
        except AstraFlowError as error:
            problem = str(error)
        filters = DecisionFilter(pool=pool.spec.id)
        decisions = await decision_page(run.control, run.fleet, filters, limit=SHOWN_DECISIONS)
        return {
            "admins": self.admins,
            "fleet": fleet_view(run.fleet),
            "live_texts": run.frames.live_texts,
            "pool": pool,
            "spec": pool.spec,
            "row": pool_row(pool, now=run.fleet.now, kill=run.fleet.kill),
            "launch_delays": launch_delays(measured, pool),
            "unfinished_launches": unfinished_launches(measured),
            "spot_share": spot_share(measured),
            "instances": measured[:SHOWN_INSTANCES],
            "state_tones": STATE_TONES,
            "state_text": state_text,
            "state_since": state_since,
            "more_instances": max(0, len(measured) - SHOWN_INSTANCES),
            "problem": problem,
            "groups": decision_groups(decisions.entries),
            "decision_problems": decisions.problems,
            "undo": self.commands.previous_spec(pool.spec.id, pool.version),
            "release_key": form_key("release", pool.spec.id, pool.hold_until_at),
            "undo_key": form_key("undo", pool.spec.id, pool.version),
        }

    @property
    def source_tag(self) -> str:
        """First half of the ETag, from known state only; when it changes, everything else is read again."""
        run, pool = self.commands.run, self.pool
        now, fleet, report = run.fleet.now, fleet_view(run.fleet), run.state.report
        return responses.source_tag(
            run.name,
            self.commands.viewer,
            replace(pool, usd_today=0.0),  # grows all the time
            usd(pool.usd_today),
            pool_state(pool, now=now, kill=run.fleet.kill),
            (fleet.is_stale, fleet.is_stale and fleet.age, fleet.problem),
            report.events[-1:] if report else (),
            run.frames.live_texts.get(f"pool/{pool.spec.id}/recommendation"),
            int(now / RECHECK_S),
        )


async def get_pool_page(pool: PoolDep, commands: CommandsDep, admins: AdminsDep) -> PoolPage:
    """Returns the page of the pool in the address."""
    return PoolPage(pool=pool, commands=commands, admins=admins)


PoolPageDep = Annotated[PoolPage, Depends(get_pool_page)]
