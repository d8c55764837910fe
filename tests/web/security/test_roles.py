"""Access to every route by role and without a login. The table is written by hand as the specification."""

import html
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import RunningWeb, flash_of, running_web, shown_secret
from web.accounts.viewer import Viewer
from web.app import ROUTES, refusal
from web.security.problems import CODE_HEADER
from web.security.roles import ROLE_PERMISSIONS, Permission, Resource, Role, RoutePermissions, least_role_with, needs

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli")]

ROLES = ("viewer", "agent", "operator", "admin")
ANONYMOUS = "anonymous"
ALL_CALLERS = (ANONYMOUS, *ROLES)
ACTING = ("agent", "operator", "admin")
ADMINS = ("admin",)
APPROVING = ("operator", "admin")

TABLE: dict[str, tuple[str, ...]] = {
    "GET /static/{build}/{path:path}": ALL_CALLERS,
    "GET /": ROLES,
    "GET /doctor": ROLES,
    "GET /learning": ROLES,
    "GET /events/{ordinal}": ROLES,
    "GET /runs": ROLES,
    "GET /runs.{ending}": ROLES,
    "GET /runs/compare": ROLES,
    "GET /runs/compare.{ending}": ROLES,
    "GET /runs/compare/charts/{name}": ROLES,
    "GET /runs/compare/charts/{name}.{ending}": ROLES,
    "GET /runs/compare/training.{ending}": ROLES,
    "GET /runs/table": ROLES,
    "GET /runs/{run_id}/charts/{name}": ROLES,
    "GET /runs/{run_id}/charts/{name}.{ending}": ROLES,
    "GET /runs/{run_id}": ROLES,
    "GET /runs/{run_id}/steps.json": ROLES,
    "GET /api/v1/runs/{run_id}/summary": ROLES,
    "GET /api/v1/runs/{run_id}/faults": ROLES,
    "POST /api/v1/runs/{run_id}/evaluations": ACTING,
    "POST /api/v1/runs/{run_id}/export": ROLES,
    "GET /runs/{run_id}/configuration": ROLES,
    "GET /runs/{run_id}/metadata": ACTING,
    "POST /runs/{run_id}/metadata": ACTING,
    "POST /runs/{run_id}/star": ACTING,
    "GET /runs/columns": ROLES,
    "POST /runs/columns": ROLES,
    "GET /runs/{run_id}/training": ROLES,
    "GET /runs/{run_id}/training.{ending}": ROLES,
    "GET /runs/{run_id}/progress": ROLES,
    "GET /runs/{run_id}/accounting": ROLES,
    "GET /runs/{run_id}/trajectories": ROLES,
    "GET /trajectories": ROLES,
    "GET /runs/{run_id}/trajectories/{ordinal}": ROLES,
    "GET /runs/{run_id}/trajectories/{ordinal}/calls/{number}": ROLES,
    "GET /runs/{run_id}/groups/{group:path}": ROLES,
    "GET /runs/{run_id}/labels": ROLES,
    "GET /runs/{run_id}/prompts": ROLES,
    "POST /runs/{run_id}/trajectories/{ordinal}/labels": ACTING,
    "POST /runs/{run_id}/labels/{label_id}/remove": ACTING,
    "GET /runs/{run_id}/data-sets/{kind}.jsonl": ROLES,
    "GET /runs/{run_id}/rewards.{ending}": ROLES,
    "GET /runs/{run_id}/evaluations": ROLES,
    "GET /nodes": ROLES,
    "GET /nodes.{ending}": ROLES,
    "GET /nodes/rows": ROLES,
    "GET /nodes/map": ROLES,
    "GET /nodes/map/cells": ROLES,
    "GET /nodes/map/cell": ROLES,
    "GET /nodes/drain": ACTING,
    "POST /nodes/drain": ACTING,
    "GET /nodes/{node:path}": ROLES,
    "GET /nodes/{node:path}/now": ROLES,
    "GET /nodes/{node:path}/rate.{ending}": ROLES,
    "GET /nodes/{node:path}/drain": ACTING,
    "POST /nodes/{node:path}/drain": ACTING,
    "GET /flows/{flow:path}/pause": ACTING,
    "POST /flows/{flow:path}/pause": ACTING,
    "POST /flows/{flow:path}/resume": ACTING,
    "GET /flows/{flow:path}/plugins": ACTING,
    "POST /flows/{flow:path}/plugins": ACTING,
    "GET /policies/{policy:path}/sampler": ACTING,
    "POST /policies/{policy:path}/sampler": ACTING,
    "GET /dataflow": ROLES,
    "GET /dataflow/live": ROLES,
    "GET /dataflow.{ending}": ROLES,
    "GET /runs/new": ACTING,
    "POST /runs/new": ACTING,
    "POST /runs/new/preview": ACTING,
    "POST /runs/new/favourite": ACTING,
    "POST /runs/new/preflight": ACTING,
    "POST /runs/pins": ROLES,
    "POST /runs/watch": ROLES,
    "POST /runs/{run_id}/export": ROLES,
    "GET /launches/{name}": ROLES,
    "GET /launches/{name}/state": ROLES,
    "GET /launches/{name}/log": ROLES,
    "GET /launches/{name}/stop": ACTING,
    "POST /launches/{name}/stop": ACTING,
    "POST /launches/{name}/resume": ACTING,
    "GET /weights": ROLES,
    "GET /weights/tables": ROLES,
    "GET /weights/{table}.{ending}": ROLES,
    "GET /charts/{name}": ROLES,
    "GET /alerts": ROLES,
    "GET /alerts/table": ROLES,
    "GET /alerts/new": ROLES,
    "POST /alerts/new": ACTING,
    "POST /alerts/test": ROLES,
    "GET /alerts/rules/{rule_id}": ROLES,
    "POST /alerts/rules/{rule_id}": ACTING,
    "POST /alerts/rules/{rule_id}/mute": ACTING,
    "GET /alerts/rules/{rule_id}/delete": ACTING,
    "POST /alerts/rules/{rule_id}/delete": ACTING,
    "GET /alerts/{alert_id}": ROLES,
    "POST /alerts/receivers": ADMINS,
    "POST /alerts/receivers/{receiver_id}/test": ADMINS,
    "GET /alerts/receivers/{receiver_id}/delete": ADMINS,
    "POST /alerts/receivers/{receiver_id}/delete": ADMINS,
    "GET /audit": ACTING,
    "GET /audit/verify": ACTING,
    "GET /audit.ndjson": ACTING,
    "GET /audit.csv": ACTING,
    "GET /audit/newer": ACTING,
    "GET /settings": ROLES,
    "POST /settings/password": ROLES,
    "POST /settings/tokens": ROLES,
    "GET /settings/tokens/{token_id}/revoke": ROLES,
    "POST /settings/tokens/{token_id}/revoke": ROLES,
    "POST /settings/sessions/{session}/revoke": ROLES,
    "POST /settings/users": ADMINS,
    "POST /settings/users/{user_id}/link": ADMINS,
    "POST /settings/users/{user_id}/role": ADMINS,
    "GET /settings/users/{user_id}/disable": ADMINS,
    "POST /settings/users/{user_id}/disable": ADMINS,
    "POST /settings/users/{user_id}/enable": ADMINS,
    "POST /settings/grants": ADMINS,
    "GET /settings/grants/{grant_id}/revoke": ADMINS,
    "POST /settings/grants/{grant_id}/revoke": ADMINS,
    "GET /api/v1/users": ADMINS,
    "POST /api/v1/users": ADMINS,
    "POST /api/v1/users/{user_id}/link": ADMINS,
    "PUT /api/v1/users/{user_id}/role": ADMINS,
    "POST /api/v1/users/{user_id}/disable": ADMINS,
    "POST /api/v1/users/{user_id}/enable": ADMINS,
    "GET /api/v1/tokens": ROLES,
    "POST /api/v1/tokens": ROLES,
    "POST /api/v1/tokens/{token_id}/revoke": ROLES,
    "GET /api/v1/sessions": ROLES,
    "POST /api/v1/sessions/{session_id}/end": ROLES,
    "GET /api/v1/alerts": ROLES,
    "GET /api/v1/alerts/rules": ROLES,
    "POST /api/v1/alerts/rules": ACTING,
    "POST /api/v1/alerts/rule-test": ROLES,
    "PUT /api/v1/alerts/rules/{rule_id}": ACTING,
    "POST /api/v1/alerts/rules/{rule_id}/mute": ACTING,
    "POST /api/v1/alerts/rules/{rule_id}/delete": ACTING,
    "GET /api/v1/alerts/receivers": ROLES,
    "POST /api/v1/alerts/receivers": ADMINS,
    "POST /api/v1/alerts/receivers/{receiver_id}/test": ADMINS,
    "POST /api/v1/alerts/receivers/{receiver_id}/delete": ADMINS,
    "GET /api/v1/audit": ACTING,
    "GET /api/v1/audit/verify": ACTING,
    "GET /api/v1/audit.{ending}": ACTING,
    "GET /api/v1/retention": ACTING,
    "PUT /api/v1/retention": ADMINS,
    "GET /api/v1/weights": ROLES,
    "GET /api/v1/weights/laggards": ROLES,
    "GET /api/v1/weights/links": ROLES,
    "GET /api/v1/comparison": ROLES,
    "GET /api/v1/runs/{run_id}/evaluations": ROLES,
    "GET /api/v1/grants": ADMINS,
    "POST /api/v1/grants": ADMINS,
    "POST /api/v1/grants/{grant_id}/revoke": ADMINS,
    "POST /settings/retention": ADMINS,
    "POST /settings/providers/{provider:path}/preflight": ACTING,
    "GET /palette": ROLES,
    "GET /search": ROLES,
    "GET /keys": ROLES,
    "GET /menu/runs": ROLES,
    "GET /kill": ACTING,
    "POST /kill": ACTING,
    "GET /login": ALL_CALLERS,
    "POST /login": ALL_CALLERS,
    "GET /login/provider": ALL_CALLERS,
    "GET /login/provider/return": ALL_CALLERS,
    "POST /theme": ROLES,
    "GET /healthz": ALL_CALLERS,
    "GET /api/v1/report": ROLES,
    "GET /api/v1/session": ROLES,
    "GET /api/v1/series.{ending}": ROLES,
    "WEBSOCKET /live": ROLES,
    "GET /pools": ROLES,
    "GET /pools/table": ROLES,
    "GET /pools.{ending}": ROLES,
    "GET /pools/{pool:path}": ROLES,
    "GET /pools/{pool:path}/what-if": ROLES,
    "GET /pools/{pool:path}/what-if.{ending}": ROLES,
    "GET /pools/{pool:path}/launches.{ending}": ROLES,
    "GET /pools/{pool:path}/now": ROLES,
    "GET /pools/{pool:path}/drain-all": ACTING,
    "GET /pools/{pool:path}/plans/{plan}": ACTING,
    "POST /pools/{pool:path}/plans": ACTING,
    "POST /pools/{pool:path}/plans/{plan}/apply": ACTING,
    "POST /pools/{pool:path}/hold": ACTING,
    "GET /pools/{pool:path}/inject-fault": ADMINS,
    "POST /pools/{pool:path}/inject-fault": ADMINS,
    "POST /pools/{pool:path}/spec": ADMINS,
    "GET /maintainer": ROLES,
    "GET /maintainer/recent": ROLES,
    "GET /maintainer/newer": ROLES,
    "GET /maintainer/state": ROLES,
    "GET /maintainer/transcript": ROLES,
    "GET /maintainer/transcript.{ending}": ROLES,
    "GET /maintainer/proposals/{plan}": ROLES,
    "POST /maintainer/proposals/{plan}/approve": APPROVING,
    "POST /maintainer/proposals/{plan}/reject": APPROVING,
    "POST /maintainer/mode": APPROVING,
    "POST /maintainer/wake": APPROVING,
    "POST /api/v1/maintainer/wake": APPROVING,
    "GET /api/v1/maintainer": ROLES,
    "PUT /api/v1/maintainer/mode": APPROVING,
    "GET /api/v1/maintainer/proposals": ROLES,
    "GET /api/v1/maintainer/proposals/{plan}": ROLES,
    "POST /api/v1/maintainer/proposals/{plan}/approve": APPROVING,
    "POST /api/v1/maintainer/proposals/{plan}/reject": APPROVING,
    "GET /api/v1/maintainer/transcript": ROLES,
    "GET /events": ROLES,
    "GET /events.{ending}": ROLES,
    "GET /decisions": ROLES,
    "GET /decisions.{ending}": ROLES,
    "GET /decisions/newer": ROLES,
    "GET /decisions/{entry_id}": ROLES,
    "GET /api/v1/fleet": ROLES,
    "GET /api/v1/pools": ROLES,
    "GET /api/v1/providers": ROLES,
    "POST /api/v1/providers/{provider:path}/preflight": ACTING,
    "GET /api/v1/pools/{pool:resource}": ROLES,
    "PUT /api/v1/pools/{pool:resource}": ADMINS,
    "POST /api/v1/pools/{pool:path}/plans": ACTING,
    "POST /api/v1/pools/{pool:path}/hold": ACTING,
    "POST /api/v1/pools/{pool:path}/what-if": ROLES,
    "POST /api/v1/plans/{plan}/apply": ACTING,
    "PUT /api/v1/kill-switch": ACTING,
    "POST /api/v1/pools/{pool:path}/inject-fault": ADMINS,
    "GET /api/v1/flows": ROLES,
    "POST /api/v1/flows/{flow:path}/pause": ACTING,
    "POST /api/v1/flows/{flow:path}/resume": ACTING,
    "POST /api/v1/flows/{flow:path}/plugins": ACTING,
    "POST /api/v1/policies/{policy:path}/sampler": ACTING,
    "GET /api/v1/instances": ROLES,
    "GET /api/v1/nodes": ROLES,
    "GET /api/v1/nodes/{node:resource}": ROLES,
    "POST /api/v1/nodes/{node:path}/drain": ACTING,
    "GET /api/v1/decisions": ROLES,
    "GET /api/v1/decisions/{decision_id}": ROLES,
    "GET /api/v1/reports": ROLES,
    "GET /api/v1/runs": ROLES,
    "GET /api/v1/runs/{run_id}": ROLES,
    "PATCH /api/v1/runs/{run_id}/metadata": ACTING,
    "GET /api/v1/runs/{run_id}/trajectories": ROLES,
    "GET /api/v1/runs/{run_id}/labels": ROLES,
    "PUT /api/v1/runs/{run_id}/trajectories/{ordinal}/labels": ACTING,
    "DELETE /api/v1/runs/{run_id}/labels/{label_id}": ACTING,
    "GET /api/v1/runs/{run_id}/data-sets/{kind}": ROLES,
    "GET /api/v1/runs/{run_id}/agent-sessions/{task:path}": ROLES,
    "GET /api/v1/runs/{run_id}/trajectories/{ordinal}/timeline": ROLES,
    "GET /api/v1/agent-sessions": ROLES,
    "GET /api/v1/runs/{run_id}/rewards": ROLES,
    "GET /api/v1/runs/{run_id}/groups/{group:path}": ROLES,
    "GET /api/v1/recipes": ACTING,
    "GET /api/v1/launches": ROLES,
    "POST /api/v1/launches": ACTING,
    "POST /api/v1/launch-preview": ACTING,
    "GET /api/v1/launches/{name}": ROLES,
    "GET /api/v1/launches/{name}/log": ROLES,
    "POST /api/v1/launches/{name}/stop": ACTING,
    "POST /api/v1/launches/{name}/resume": ACTING,
    "GET /api/v1/openapi.json": ROLES,
    "GET /api/v1/docs": ROLES,
    "POST /logout": ROLES,
}

POOL, RUN = "pool", "run"

SCOPES: dict[str, str] = {
    "GET /nodes/drain": POOL,
    "POST /nodes/drain": POOL,
    "GET /nodes/{node:path}/drain": POOL,
    "POST /nodes/{node:path}/drain": POOL,
    "POST /api/v1/nodes/{node:path}/drain": POOL,
    "GET /pools/{pool:path}/drain-all": POOL,
    "GET /pools/{pool:path}/plans/{plan}": POOL,
    "POST /pools/{pool:path}/plans": POOL,
    "POST /pools/{pool:path}/plans/{plan}/apply": POOL,
    "POST /pools/{pool:path}/hold": POOL,
    "GET /pools/{pool:path}/inject-fault": POOL,
    "POST /pools/{pool:path}/inject-fault": POOL,
    "POST /pools/{pool:path}/spec": POOL,
    "POST /maintainer/proposals/{plan}/approve": POOL,
    "POST /maintainer/proposals/{plan}/reject": POOL,
    "PUT /api/v1/pools/{pool:resource}": POOL,
    "POST /api/v1/pools/{pool:path}/plans": POOL,
    "POST /api/v1/pools/{pool:path}/hold": POOL,
    "POST /api/v1/pools/{pool:path}/inject-fault": POOL,
    "POST /api/v1/plans/{plan}/apply": POOL,
    "POST /api/v1/maintainer/proposals/{plan}/approve": POOL,
    "POST /api/v1/maintainer/proposals/{plan}/reject": POOL,
    "GET /flows/{flow:path}/pause": RUN,
    "POST /flows/{flow:path}/pause": RUN,
    "POST /flows/{flow:path}/resume": RUN,
    "GET /flows/{flow:path}/plugins": RUN,
    "POST /flows/{flow:path}/plugins": RUN,
    "GET /policies/{policy:path}/sampler": RUN,
    "POST /policies/{policy:path}/sampler": RUN,
    "POST /api/v1/flows/{flow:path}/pause": RUN,
    "POST /api/v1/flows/{flow:path}/resume": RUN,
    "POST /api/v1/flows/{flow:path}/plugins": RUN,
    "POST /api/v1/policies/{policy:path}/sampler": RUN,
    "GET /launches/{name}/stop": RUN,
    "POST /launches/{name}/stop": RUN,
    "POST /launches/{name}/resume": RUN,
    "POST /api/v1/launches/{name}/stop": RUN,
    "POST /api/v1/launches/{name}/resume": RUN,
    "POST /settings/providers/{provider:path}/preflight": RUN,
    "POST /api/v1/providers/{provider:path}/preflight": RUN,
    "POST /maintainer/mode": RUN,
    "POST /maintainer/wake": RUN,
    "POST /api/v1/maintainer/wake": RUN,
    "PUT /api/v1/maintainer/mode": RUN,
    "GET /kill": RUN,
    "POST /kill": RUN,
    "PUT /api/v1/kill-switch": RUN,
}
"""Scope that a grant must cover to open the route; all other routes require the role everywhere."""

HERE = "reverse-0001"
"""The run that the fake dataflow reports."""

GRANTABLE_ROLES: dict[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "an agent of the run": ("agent", RUN, ((HERE, ""),)),
    "an operator of the run": ("operator", RUN, ((HERE, ""),)),
    "an admin of the run": ("admin", RUN, ((HERE, ""),)),
    "an agent of the pools": ("agent", POOL, ((HERE, "eu"), (HERE, "local"))),
    "an operator of the pools": ("operator", POOL, ((HERE, "eu"), (HERE, "local"))),
    "an admin of the pools": ("admin", POOL, ((HERE, "eu"), (HERE, "local"))),
    "an admin elsewhere": ("admin", "", ((HERE, "us"), ("other", ""), ("other", "eu"), ("other", "local"))),
}
"""Role, its reach, and the (run, pool) pairs of its grants."""


@pytest.mark.parametrize("who", GRANTABLE_ROLES)
async def test_a_grant_permits_only_its_pool_and_role(fake: FakeControlPlane, tmp_path: Path, who: str) -> None:
    role, reach, places = GRANTABLE_ROLES[who]
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
        web.in_role(admin, "viewer") as viewer,
    ):
        await web.until_connected()
        for run, pool in places:
            await give(admin, role=role, run=run, pool=pool)
        planned = await admin.post("/pools/eu/plans", data={"target": "3", "reason": "for the test"})
        named = {
            "pool": "eu",
            "node": "n0",
            "plan": planned.headers["location"].rpartition("/")[2],
            "name": HERE,
        }
        for name, roles in TABLE.items():
            method, path = name.split(" ")
            if method == "WEBSOCKET" or name == "POST /logout":
                continue
            if "viewer" in roles and reach:
                continue  # open to a viewer without any grant, see the next test; the last grants are tried on all
            path = re.sub(r"{(\w+)(:\w+)?}", lambda match: named.get(match[1], "999"), path)
            asks = {"params": {"node": "n0"}} if path == "/nodes/drain" else {}
            answer = await viewer.request(method, path, **asks)  # type: ignore[arg-type] # a query
            covers = reach and (SCOPES.get(name) == POOL or SCOPES.get(name) == reach)
            is_open = "viewer" in roles or bool(covers and role in roles)
            assert _is_refused(answer) is not is_open, f"{who}: {name}: {answer.status_code} {answer.text[:300]}"


async def give(admin: httpx.AsyncClient, *, role: str, run: str, pool: str = "", holder: str = "2") -> None:
    """Grants a role on a run or a pool to the second user or to a token."""
    form = {"holder": holder, "role": role, "resource": run, "pool": pool, "reason": "for the test"}
    answer = await admin.post("/settings/grants", data=form)
    assert "Granted" in await flash_of(admin, answer)


def test_the_table_has_every_route() -> None:
    routes = set()
    for route in ROUTES:
        if isinstance(route, WebSocketRoute):
            routes.add(f"WEBSOCKET {route.path}")
        elif isinstance(route, Route):
            routes |= {f"{method} {route.path}" for method in (route.methods or set()) - {"HEAD"}}

    assert routes == set(TABLE)


@pytest.mark.parametrize("role", ALL_CALLERS)
async def test_every_route_is_open_to_exactly_the_roles_of_the_table(web: RunningWeb, role: str) -> None:
    async with web.logged_in() as admin:
        if role == "admin":
            await _check(web, admin, role)
        elif role == ANONYMOUS:
            async with web.client() as client:
                client.headers["origin"] = web.address
                await _check(web, client, role)
        else:
            async with web.in_role(admin, role) as client:
                await _check(web, client, role)


async def _check(web: RunningWeb, client: httpx.AsyncClient, role: str) -> None:
    for name, roles in TABLE.items():
        method, path = name.split(" ")
        path = re.sub(r"{\w+(:\w+)?}", "999", path)
        is_open = role in roles
        if method == "WEBSOCKET":
            assert await _is_live(web, client, path) is is_open, f"{role} {name}"
            continue
        answer = await client.request(method, path)
        assert _is_refused(answer) is not is_open, f"{role} {name}: {answer.status_code} {answer.text[:300]}"
        if role != ANONYMOUS and not is_open:
            least = "operator" if "operator" in roles else "admin"
            assert f"Role {least} " in html.unescape(answer.text)
            assert "Admins who can grant it: admin." in html.unescape(answer.text)


ROLE_CODES = ("role.missing", "token.scope_too_low", "token.login_required")


def _is_refused(answer: httpx.Response) -> bool:
    asks_to_log_in = answer.status_code == 303 and answer.headers["location"].startswith("/login?next=")
    return asks_to_log_in or answer.status_code == 401 or answer.headers.get(CODE_HEADER) in ROLE_CODES


async def _is_live(web: RunningWeb, client: httpx.AsyncClient, path: str) -> bool:
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    address = web.address.replace("http://", "ws://") + path
    async with connect(address, origin=web.address, additional_headers={"cookie": cookie}) as socket:  # type: ignore[arg-type] # a str
        try:
            return bool(await socket.recv())
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            assert closed.rcvd.code == 4401
            return False


async def test_a_token_needs_its_scope_and_its_users_role_and_never_administers_accounts(
    web: RunningWeb,
) -> None:
    async with web.logged_in() as admin:
        tokens = {
            scope: shown_secret(await admin.post("/settings/tokens", data={"name": scope, "scope": scope, "days": "1"}))
            for scope in ROLES
        }
        for scope, token in tokens.items():
            async with web.client() as program:
                program.headers["authorization"] = f"Bearer {token}"
                assert (await program.get("/api/v1/session")).status_code == 200
                drained = await program.post("/nodes/n0/drain")
                assert drained.status_code == (303 if scope in ACTING else 403), scope
                assert (await program.get("/audit.csv")).status_code == (200 if scope in ACTING else 403)
                retained = await program.post("/settings/retention", data={"days": "90"})
                assert retained.status_code == (303 if scope == "admin" else 403)
                for own in ("/settings/tokens", "/settings/password", "/logout"):
                    refused = await program.post(own)
                    assert refused.status_code == 403
                    assert refused.json()["code"] == "token.login_required"


@pytest.mark.long
async def test_a_token_loses_the_role_that_its_user_loses(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "operator", name="bob") as bob, web.client() as program:
        token_response = await bob.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
        program.headers["authorization"] = f"Bearer {shown_secret(token_response)}"
        assert (await program.get("/nodes/n0/drain")).status_code == 200
        await admin.post("/settings/users/2/role", data={"role": "viewer"})
        assert (await program.get("/nodes/n0/drain")).status_code == 403
        assert (await bob.get("/nodes/n0/drain")).status_code == 403
        await admin.post("/settings/users/2/disable")
        assert (await program.get("/api/v1/session")).status_code == 401
        assert (await bob.get("/api/v1/session")).status_code == 401


def test_a_route_without_a_permission_is_not_served() -> None:
    async def open_to_all() -> None: ...

    with pytest.raises(RuntimeError, match="/open"):
        RoutePermissions([Route("/open", open_to_all)])

    declared = needs(Permission.OPERATE)(open_to_all)
    table = RoutePermissions([Route("/open", declared, methods=["POST"])])
    assert (
        table.required_by({"type": "http", "method": "POST", "path": "/open", "headers": []}).permission
        is Permission.OPERATE
    )
    assert (
        table.required_by({"type": "http", "method": "DELETE", "path": "/open", "headers": []}).permission
        is Permission.OPERATE
    )
    assert (
        table.required_by({"type": "http", "method": "GET", "path": "/nowhere", "headers": []}).permission
        is Permission.READ
    )


def test_an_agent_is_an_operator_that_approves_nothing() -> None:
    assert ROLE_PERMISSIONS[Role.OPERATOR] - ROLE_PERMISSIONS[Role.AGENT] == {Permission.APPROVE}
    assert (
        ROLE_PERMISSIONS[Role.VIEWER]
        < ROLE_PERMISSIONS[Role.AGENT]
        < ROLE_PERMISSIONS[Role.OPERATOR]
        < ROLE_PERMISSIONS[Role.ADMIN]
    )
    assert least_role_with(Permission.APPROVE) is Role.OPERATOR


def test_a_refusal_names_the_role_the_action_and_who_can_help() -> None:
    """The only test of this wording: the other tests compare the code, and the role with its resource."""
    ada = Viewer(user_id=2, name="ada", role=Role.VIEWER)
    us = Resource(run="r", pool="us")
    problem = refusal(ada, Permission.OPERATE, us, admins=["admin", "bob"])
    assert problem.code == "role.missing"
    assert str(problem) == (
        "Role operator on pool us of run r is required to operate a run: drain, pause, resume, launch; "
        "your role is viewer there. Admins who can grant it: admin, bob."
    )
    token = replace(ada, role=Role.OPERATOR, scope=Role.VIEWER, via="token ci")
    problem = refusal(token, Permission.OPERATE, us, admins=[])
    assert problem.code == "token.scope_too_low"
    assert str(problem) == (
        "Role operator on pool us of run r is required, but token ci has the scope viewer there. "
        "Use a token with a wider scope."
    )
    problem = refusal(token, Permission.OWN, Resource(), admins=[])
    assert problem.code == "token.login_required"
    assert str(problem) == "A login in a browser is required: tokens cannot administer accounts."
