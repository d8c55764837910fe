"""Every page there is, found from the routes: a new one is walked as soon as it is served."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from starlette.routing import Route

from astraflow.client.fleet_plane import connect_fleet
from tests.fakes import maintainer
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, running_web
from tests.maintainer.fleet.parts import POOL
from tests.web.launching.test_launching import until
from web.app import ROUTERS

PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")

FILE = re.compile(r"\.(csv|json|ndjson)(\?|$)")
"""Addresses that give a file."""

RECORDED_S = 2.5
"""A run is written down every two seconds, and is in the list of runs from then on."""

BY_NAME = {
    "run_id": "1",
    "node": "n0",
    "flow": "train",
    "policy": "solver",
    "pool": "eu",
    "ordinal": "1",
    "token_id": "1",
    "user_id": "2",
    "grant_id": "1",
    "ending": "csv",
    "table": "links",
    "group": "train:48",
}
"""What stands for a parameter of an address."""

BY_PATH = {
    "/charts/{name}": {"name": "wait"},
    "/runs/{run_id}/charts/{name}": {"name": "wait"},
    "/runs/compare/charts/{name}": {"name": "wait"},
    "/runs/compare/charts/{name}.{ending}": {"name": "wait"},
    "/runs/{run_id}/charts/{name}.{ending}": {"name": "wait"},
    "/runs/{run_id}/trajectories/{ordinal}": {"ordinal": "385"},
}
"""The same for one address, where the name alone does not say."""

MORE = (
    "/runs/new?recipe=smoke",
    "/dataflow?over=minute",
    "/?range=1h",
    "/charts/versions",
    "/runs/1/charts/timeline",
    "/runs/1/charts/versions",
    "/pools/eu/what-if?min_nodes=1&max_nodes=4",
    "/search?q=node",
    "/?event=1",
    "/no-such-page",
)
"""States of pages that have addresses of their own."""

NO_PAGES = (
    "/api/v1/openapi.json",
    "/login/provider",
    "/login/provider/return",
    "/healthz",
    "/static/{build}/{path:path}",
)

ASKS_FOR = {"/runs/compare": "?run=1"}
"""What an address needs besides."""


@dataclass(frozen=True, kw_only=True)
class House:
    """A page over a run and a fleet, with something of everything in it."""

    web: RunningWeb
    fake: FakeControlPlane
    fleet: RunningFleet
    admin: httpx.AsyncClient
    made: Mapping[str, Mapping[str, str]]
    """Of addresses that are about what was made here."""

    def addresses(self) -> list[str]:
        """One of each GET route. A parameter that nothing stands for is an error: name one in `walk.BY_NAME`."""
        found = []
        for route in (route for router in ROUTERS for route in router.routes):
            if isinstance(route, Route) and "GET" in (route.methods or ()) and route.path not in NO_PAGES:
                values = {**BY_NAME, **BY_PATH.get(route.path, {}), **self.made.get(route.path, {})}
                address = PARAMETER.sub(r"{\1}", route.path).format_map(values)
                found.append(address + ASKS_FOR.get(route.path, ""))
        return [*found, *MORE]

    async def answers(self) -> dict[str, httpx.Response]:
        """What each of them gives: pages, parts of pages and files."""
        return {address: await self.admin.get(address) for address in self.addresses()}

    async def pages(self) -> dict[str, str]:
        """Those that are whole pages, by address."""
        found = {}
        for address in self.addresses():
            if FILE.search(address):
                continue
            answer = await self.admin.get(address)
            if is_page(answer):
                assert answer.status_code in (200, 503) or address == MORE[-1], (
                    address,
                    answer.status_code,
                    answer.text[-600:],
                )
                found[address] = answer.text
        return found


def is_page(answer: httpx.Response) -> bool:
    """Whether it is a whole page."""
    return answer.text.startswith("<!doctype html>")


@asynccontextmanager
async def house(
    directory: Path, fake: FakeControlPlane, *, text: str = "a drill", is_launched: bool = True
) -> AsyncIterator[House]:
    """Serve until the block ends; time goes on. text: wherever somebody may write something.

    is_launched: whether there is a launch to look at; else its addresses cannot be.
    """
    async with (
        fake.serving() as dataflow,
        running_fleet(directory / "fleet", nodes=3) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(directory, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_live(admin, sequence=150)
        await asyncio.sleep(RECORDED_S)
        launched = await _launched(admin, text) if is_launched else {}
        proposed = (await maintainer.propose(plane, POOL, 6, reason=text)).plan.id
        proposal = {f"{root}/maintainer/proposals/{{plan}}": {"plan": str(proposed)} for root in ("", "/api/v1")}
        made = await _make(admin, text) | launched | proposal
        try:
            async with ticking(fake):
                yield House(web=web, fake=fake, fleet=fleet, admin=admin, made=made)
        finally:
            await until_ended(admin)


async def _make(admin: httpx.AsyncClient, text: str) -> dict[str, dict[str, str]]:
    """A user, a token, a saved view, a plan, a launch, a hold, a fault, a test: what pages are about."""
    await admin.post("/settings/users", data={"name": "bob", "role": "operator"})
    await admin.post("/settings/tokens", data={"name": text, "scope": "viewer", "days": "9"})
    grant = {"holder": "2", "role": "operator", "place": text, "pool": "eu"}
    assert (await admin.post("/settings/grants", data=grant)).status_code == 303
    await admin.post("/views", data={"name": text, "address": "/nodes"})
    await admin.post("/nodes/n1/drain", data={"reason": text})
    await admin.post("/pools/eu/hold", data={"minutes": "30", "reason": text, "key": "walk-hold"})
    lost = await admin.post("/pools/eu/lose", data={"percent": "30", "reason": text, "key": "walk-lose"})
    assert lost.status_code == 303
    assert (await admin.post("/settings/providers/cloud/test")).status_code == 303
    planned = await admin.post("/pools/eu/plans", data={"target": "5", "reason": text})
    decided = (await admin.get("/api/v1/decisions")).json()["items"]
    return {
        "/pools/{pool:path}/plans/{plan}": {"plan": planned.headers["location"].rpartition("/")[2]},
        "/decisions/{entry_id}": {"entry_id": decided[0]["id"]},
        "/api/v1/decisions/{decision_id}": {"decision_id": decided[0]["id"]},
    }


async def _launched(admin: httpx.AsyncClient, text: str) -> dict[str, dict[str, str]]:
    answer = await admin.post("/runs/new", data={"recipe": "smoke", "limit_s": "1", "reason": text})
    assert answer.status_code == 303, answer.text[-800:]
    name = answer.headers["location"].rpartition("/")[2]
    return {f"/launches/{{name}}{more}": {"name": name} for more in ("", "/state", "/log", "/stop")} | {
        f"/api/v1/launches/{{name}}{more}": {"name": name} for more in ("", "/log")
    }


async def until_ended(admin: httpx.AsyncClient) -> None:
    """Wait for every launched run to end, as each does after a second."""
    names = set(re.findall(r'href="/launches/([^"/]+)"', (await admin.get("/runs")).text))
    for name in names:
        await until(partial(_has_ended, admin, name), what=f"the end of {name}")


async def _has_ended(admin: httpx.AsyncClient, name: str) -> bool:
    return "every 2s" not in (await admin.get(f"/launches/{name}/state")).text


@asynccontextmanager
async def ticking(fake: FakeControlPlane) -> AsyncIterator[None]:
    """A report a second meanwhile: without one for long, a page says that its run is not connected."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_tick(fake))
        try:
            yield
        finally:
            task.cancel()


async def _tick(fake: FakeControlPlane) -> None:
    while True:
        await asyncio.sleep(1)
        await fake.advance()
