"""What the page of a pool shows that changes by itself: how it is, its machines, its journal."""

import time
from dataclasses import replace
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from astraflow.contract.advice import Mode
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Instance, Pool
from web.accounts.viewer import Viewer
from web.acts import fleet as fleet_acts
from web.parts import Parts
from web.present.decisions import decision_groups, decision_row
from web.present.machines import delays, instance_row, spot_share, unfinished
from web.present.pools import MODE_TEXTS, fleet_view, pool_row
from web.present.shell import shell
from web.reading import again
from web.reading.decisions import Asked, decision_page

SHOWN_INSTANCES = 50
SHOWN_DECISIONS = 6
MEASURED = 1000
HOURS = {"1": "the last hour", "6": "the last 6 hours", "12": "the last 12 hours", "24": "the last 24 hours"}
"""Of the record, that other bounds can be played over from the page."""

DEFAULT_HOURS = "24"

UNMOVED_S = 10.0
"""So long a page of a pool of which nothing moved is told so without reading its machines and its journal."""


async def page_of(request: Request, parts: Parts, pool: Pool, **more: Any) -> Response:
    """The whole page; `more` has the answer to what was asked on it."""
    context: dict[str, Any] = {
        "asked": {"mode": "", "min_nodes": "", "max_nodes": "", "hours": DEFAULT_HOURS},
        "all_hours": HOURS,
        "what_if": None,
        "what_if_problem": "",
        "shell": shell(parts.state, parts.settings),
        "modes": [(mode.value, MODE_TEXTS[mode]) for mode in Mode],
        "key": fleet_acts.form_key(pool.spec.id, pool.version, time.time_ns()),
        "cells": parts.frames.cells,
        **await pool_now(parts, pool),
    }
    return parts.pages.page(request, "pools/pool.html", page="pools", **context | more)


async def pool_now(parts: Parts, pool: Pool) -> dict[str, Any]:
    """What changes of a pool's page by itself. Keys of its forms are about what they would end, and stay with it."""
    now, problem = parts.clock.wall(), ""
    measured: tuple[Instance, ...] = ()
    try:
        measured = await fleet_acts.fleet_of(parts).instances(pool=pool.spec.id, with_gone=True, limit=MEASURED)
    except AstraFlowError as refused:
        problem = str(refused)
    decisions = await decision_page(parts, Asked(pool=pool.spec.id), limit=SHOWN_DECISIONS)
    return {
        "admins": await parts.accounts.users.admins(),
        "fleet": fleet_view(parts.fleet_state, parts.settings, now=now),
        "pool": pool,
        "spec": pool.spec,
        "row": pool_row(pool, now=now),
        "delays": delays(measured, pool),
        "unfinished": unfinished(measured),
        "spot_share": spot_share(measured),
        "instances": [instance_row(one) for one in measured[:SHOWN_INSTANCES]],
        "more_instances": max(0, len(measured) - SHOWN_INSTANCES),
        "problem": problem,
        "groups": decision_groups([decision_row(entry) for entry in decisions.entries]),
        "decision_problems": decisions.problems,
        "undo": parts.shelf.specs.get((parts.run, pool.spec.id, pool.version)),
        "release_key": fleet_acts.form_key("release", pool.spec.id, pool.hold_until),
        "undo_key": fleet_acts.form_key("undo", pool.spec.id, pool.version),
    }


def made_from(parts: Parts, viewer: Viewer, pool: Pool) -> str:
    """What is known without asking anybody, as the half of a tag: when it moves, the rest is read again."""
    now, report, advice = parts.clock.wall(), parts.state.report, parts.frames.cells.get(f"pool/{pool.spec.id}/advice")
    fleet = fleet_view(parts.fleet_state, parts.settings, now=now)
    return again.made_from(
        parts,
        viewer,
        replace(pool, usd_today=0.0),  # it grows all the time; what is seen of it is in the row
        pool_row(pool, now=now),
        (fleet.is_stale, fleet.is_stale and fleet.age, fleet.problem),
        report.events[-1:] if report else (),
        advice,
        int(now / UNMOVED_S),
    )


def pool_of(parts: Parts, name: str) -> Pool:
    """The pool of that name. Raises: HTTPException 404, or 503 while nothing is known."""
    found = parts.fleet_state.pool(name)
    if found is None and parts.fleet_state.status is None:
        fleet_acts.fleet_of(parts)
        raise HTTPException(503, parts.fleet_state.problem or "The fleet service has not answered yet.")
    if found is None:
        raise HTTPException(404, f"No pool is called {name[:140]}.")
    return found
