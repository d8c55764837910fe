"""Addresses of all pages, derived from the routes: tests include a new route automatically."""

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
from tests.web.launches.test_launching import until
from web.app import ROUTES

PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")

FILE = re.compile(r"\.(csv|json|jsonl|ndjson)(\?|$)")
"""Matches addresses that return a file."""

RECORDED_S = 2.5
"""Seconds until the list of runs has a new run: the recorder writes every two seconds."""

PARAMETER_VALUES = {
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
    "number": "1",
    "task": "train:48/1",
    "kind": "sft",
    "label_id": "1",
}
"""Values by address parameter."""

PARAMETER_VALUES_OF_PATH = {
    "/charts/{name}": {"name": "wait"},
    "/runs/{run_id}/charts/{name}": {"name": "wait"},
    "/runs/compare/charts/{name}": {"name": "wait"},
    "/runs/compare/charts/{name}.{ending}": {"name": "wait"},
    "/runs/{run_id}/charts/{name}.{ending}": {"name": "wait"},
    "/runs/{run_id}/trajectories/{ordinal}": {"ordinal": "385"},
    "/runs/{run_id}/trajectories/{ordinal}/calls/{number}": {"ordinal": "385"},
}
"""Values for single paths, where the parameter name is ambiguous."""

EXTRA_ADDRESSES = (
    "/runs/new?recipe=smoke",
    "/dataflow?over=minute",
    "/?range=1h",
    "/charts/versions",
    "/runs/1/charts/timeline",
    "/runs/1/charts/entropy",
    "/runs/1/charts/versions",
    "/pools/eu/what-if?min_nodes=1&max_nodes=4",
    "/search?q=node",
    "/?event=1",
    "/alerts/new?run=reverse-0001&series=policy/solver&value=wait",
    "/no-such-page",
)
"""Addresses of page states that `addresses` does not derive from the routes."""

SKIPPED_PATHS = (
    "/api/v1/openapi.json",
    "/login/provider",
    "/login/provider/return",
    "/healthz",
    "/static/{build}/{path:path}",
)

QUERY_OF_PATH = {"/runs/compare": "?run=1", "/runs/{run_id}/prompts": "?group=train:48&policy=solver"}
"""Query strings that paths require."""


@dataclass(frozen=True, kw_only=True)
class ServedSite:
    """A page over a run and a fleet, with objects of every kind."""

    web: RunningWeb
    fake: FakeControlPlane
    fleet: RunningFleet
    admin: httpx.AsyncClient
    made: Mapping[str, Mapping[str, str]]
    """Parameter values of the objects that `served_site` creates, by path."""

    def addresses(self) -> list[str]:
        """Returns one address per GET route. A parameter that lacks a value is an error: see `PARAMETER_VALUES`."""
        links = []
        for route in ROUTES:
            if isinstance(route, Route) and "GET" in (route.methods or ()) and route.path not in SKIPPED_PATHS:
                values = {
                    **PARAMETER_VALUES,
                    **PARAMETER_VALUES_OF_PATH.get(route.path, {}),
                    **self.made.get(route.path, {}),
                }
                address = PARAMETER.sub(r"{\1}", route.path).format_map(values)
                links.append(address + QUERY_OF_PATH.get(route.path, ""))
        return [*links, *EXTRA_ADDRESSES]

    async def answers(self) -> dict[str, httpx.Response]:
        """Returns the response of each address: pages, page parts and files."""
        return {address: await self._answer(address) for address in self.addresses()}

    async def pages(self) -> dict[str, str]:
        """Returns the text of each whole page by address."""
        page_by_address = {}
        for address in self.addresses():
            if FILE.search(address) or (address.startswith("/api/") and address != "/api/v1/docs"):
                continue
            answer = await self._answer(address)
            if is_page(answer):
                assert answer.status_code in (200, 503) or address == EXTRA_ADDRESSES[-1], (
                    address,
                    answer.status_code,
                    answer.text[-600:],
                )
                page_by_address[address] = answer.text
        return page_by_address

    async def _answer(self, address: str) -> httpx.Response:
        answer = await self.admin.get(address)
        assert answer.status_code != 500, (address, answer.text[-600:])
        return answer


def is_page(answer: httpx.Response) -> bool:
    """Returns true if the response is a whole page."""
    return answer.text.startswith("<!doctype html>")


@asynccontextmanager
async def served_site(
    directory: Path, fake: FakeControlPlane, *, text: str = "a drill", is_launched: bool = True
) -> AsyncIterator[ServedSite]:
    """Serves until the block ends, with a new report every second. text: value of every free-text field.

    is_launched: launches a run; without it, the addresses of launches have no values.
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
        created = await _make(admin, text) | await _alerted(admin, fake, text) | launched | proposal
        try:
            async with advancing_reports(fake):
                yield ServedSite(web=web, fake=fake, fleet=fleet, admin=admin, made=created)
        finally:
            await until_ended(admin)


async def _make(admin: httpx.AsyncClient, text: str) -> dict[str, dict[str, str]]:
    """Creates a user, token, grant, drain, override, fault, provider test and plan; returns values by path."""
    await admin.post("/settings/users", data={"name": "bob", "role": "operator"})
    await admin.post("/settings/tokens", data={"name": text, "scope": "viewer", "days": "9"})
    grant = {"holder": "2", "role": "operator", "resource": text, "pool": "eu"}
    assert (await admin.post("/settings/grants", data=grant)).status_code == 303
    await admin.post("/nodes/n1/drain", data={"reason": text})
    await admin.post("/pools/eu/hold", data={"minutes": "30", "reason": text, "key": "walk-hold"})
    lost = await admin.post("/pools/eu/inject-fault", data={"percent": "30", "reason": text, "key": "walk-lose"})
    assert lost.status_code == 303
    assert (await admin.post("/settings/providers/cloud/preflight")).status_code == 303
    planned = await admin.post("/pools/eu/plans", data={"target": "5", "reason": text})
    decided = (await admin.get("/api/v1/decisions")).json()["items"]
    return {
        "/pools/{pool:path}/plans/{plan}": {"plan": planned.headers["location"].rpartition("/")[2]},
        "/decisions/{entry_id}": {"entry_id": decided[0]["id"]},
        "/api/v1/decisions/{decision_id}": {"decision_id": decided[0]["id"]},
    }


async def _alerted(admin: httpx.AsyncClient, fake: FakeControlPlane, text: str) -> dict[str, dict[str, str]]:
    """Creates a receiver and a rule whose alert fires; returns values by path."""
    hook = {"name": "ops", "kind": "webhook", "target": "https://hooks.example.org/x"}
    assert (await admin.post("/alerts/receivers", data=hook)).status_code == 200
    rule = {"name": text[:80], "series": "policy/solver:steps", "condition": "above", "threshold": "1"}
    assert (await admin.post("/alerts/new", data={**rule, "runs": "*"})).status_code == 303

    async def has_fired() -> bool:
        await fake.advance()
        return bool((await admin.get("/api/v1/alerts")).json()["items"])

    await until(has_fired, what="an alert")
    rules = {f"/alerts/rules/{{rule_id}}{more}": {"rule_id": "1"} for more in ("", "/delete")}
    receivers = {"/alerts/receivers/{receiver_id}/delete": {"receiver_id": "1"}}
    return {"/alerts/{alert_id}": {"alert_id": "1"}, **rules, **receivers}


async def _launched(admin: httpx.AsyncClient, text: str) -> dict[str, dict[str, str]]:
    answer = await admin.post("/runs/new", data={"recipe": "smoke", "limit_s": "1", "reason": text})
    assert answer.status_code == 303, answer.text[-800:]
    name = answer.headers["location"].rpartition("/")[2]
    return {f"/launches/{{name}}{more}": {"name": name} for more in ("", "/state", "/log", "/stop")} | {
        f"/api/v1/launches/{{name}}{more}": {"name": name} for more in ("", "/log")
    }


async def until_ended(admin: httpx.AsyncClient) -> None:
    """Waits for every launched run to end; each ends after a second."""
    names = set(re.findall(r'href="/launches/([^"/]+)"', (await admin.get("/runs")).text))
    for name in names:
        await until(partial(_has_ended, admin, name), what=f"the end of {name}")


async def _has_ended(admin: httpx.AsyncClient, name: str) -> bool:
    return "every 2s" not in (await admin.get(f"/launches/{name}/state")).text


@asynccontextmanager
async def advancing_reports(fake: FakeControlPlane) -> AsyncIterator[None]:
    """Sends a report every second until the block ends; without reports, pages show the run as disconnected."""
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
