"""The audit log has every fleet change by page or API, completed or refused, with its actor."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from astraflow.client.fleet_plane import connect_fleet
from tests.fakes import maintainer
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import RunningWeb, running_web, shown_secret
from tests.maintainer.fleet.parts import POOL
from web.app import ROUTES
from web.security.request_bodies import READ_METHODS

pytestmark = pytest.mark.anyio

CHANGE_NOTHING = {
    "/pools/{pool:path}/plans",
    "/api/v1/pools/{pool:path}/plans",
    "/api/v1/pools/{pool:path}/what-if",
    "/api/v1/providers/{provider:path}/preflight",  # audited too: see test_providers.py
}

NARROW = {"nodes": 2, "changes_per_hour": 1000, "cool_down_s": 0.0}
WIDE = {"nodes": 9, "changes_per_hour": 1000, "cool_down_s": 0.0}

OTHERS = tuple(
    f"/api/v1/{name}"
    for name in (
        *("launches", "launch-preview", "runs", "alerts", "audit"),
        *("grants", "users", "tokens", "sessions", "views", "retention"),
    )
)
"""Routes that do not concern the fleet; other modules test them."""

SPEC = {"provider": "cloud", "mode": "on", "max_nodes": 9, "reason": "because"}


async def entries(admin: httpx.AsyncClient) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await admin.get("/audit.ndjson")).text.splitlines()]


async def token_of(client: httpx.AsyncClient, scope: str) -> dict[str, str]:
    token_response = await client.post("/settings/tokens", data={"name": f"ci-{scope}", "scope": scope, "days": "1"})
    return {"authorization": f"Bearer {shown_secret(token_response)}"}


async def test_every_change_of_the_fleet_is_audited(tmp_path: Path, fake: FakeControlPlane) -> None:
    acting = {
        route.path
        for route in ROUTES
        if isinstance(route, Route)
        and set(route.methods or ()) - set(READ_METHODS)
        and route.path.startswith(("/pools", "/kill", "/maintainer", "/api/v1/"))
        and not route.path.startswith(OTHERS)
    }
    tried = set(CHANGE_NOTHING)
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2, limits=WIDE, pool={"max_nodes": 9}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_live(admin, sequence=150)
        program = await token_of(admin, "admin")

        async def page(route: str, path: str, action: str, **form: str) -> None:
            answer = await admin.post(path, data={"key": f"p{len(tried)}", "reason": "because", **form})
            assert answer.status_code == 303, answer.text
            await noted(route, action)

        async def api(method: str, route: str, path: str, action: str, **body: Any) -> dict[str, Any]:
            headers = program | {"idempotency-key": f"a{len(tried)}"}
            sent = {"reason": "because", "actor": "mallory"} | body
            refused = await admin.request(method, path, headers=headers, json=sent)
            assert refused.status_code == 422, "a name is required"
            sent.pop("actor")
            answer = await admin.request(method, path, headers=headers, json=sent)
            assert answer.status_code == 200, answer.text
            await noted(route, action)
            answer_body: dict[str, Any] = answer.json()
            return answer_body

        async def noted(route: str, action: str) -> None:
            tried.add(route)
            newest = (await entries(admin))[0]
            assert (newest["action"], newest["actor"], newest["result"]) == (action, "admin", "done"), newest
            assert newest["reason"] == "because"

        await page("/pools/{pool:path}/hold", "/pools/eu/hold", "pool.hold", minutes="0")
        await page("/kill", "/kill", "fleet.kill_switch", scope="none")
        planned = await admin.post("/pools/eu/plans", data={"target": "3", "reason": "because"})
        action = planned.headers["location"] + "/apply"
        await page("/pools/{pool:path}/plans/{plan}/apply", action, "pool.apply")
        version = str(fleet.parts.ledger.pools[POOL].version)
        await page("/pools/{pool:path}/spec", "/pools/eu/spec", "pool.change", observed_version=version, max_nodes="9")
        await api("PUT", "/api/v1/kill-switch", "/api/v1/kill-switch", "fleet.kill_switch", scope="none")
        await api("POST", "/api/v1/pools/{pool:path}/hold", "/api/v1/pools/eu/hold", "pool.hold", minutes=0)
        pool = (await admin.get("/api/v1/pools/eu")).json()
        put = {**SPEC, "observed_version": pool["version"]}
        await api("PUT", "/api/v1/pools/{pool:resource}", "/api/v1/pools/eu", "pool.change", **put)
        plan = await admin.post("/api/v1/pools/eu/plans", headers=program, json={"target": 4, "reason": "because"})
        path = f"/api/v1/plans/{plan.json()['id']}/apply"
        done = await api("POST", "/api/v1/plans/{plan}/apply", path, "pool.apply")
        assert len(done["launched"]) == 1
        await api("POST", "/api/v1/nodes/{node:path}/drain", "/api/v1/nodes/n0/drain", "node.drain")
        await page("/maintainer/mode", "/maintainer/mode", "maintainer.mode", mode="shadow")
        await api("PUT", "/api/v1/maintainer/mode", "/api/v1/maintainer/mode", "maintainer.mode", mode="propose")
        await plane.send_maintainer_heartbeat(maintainer.status())
        await page("/maintainer/wake", "/maintainer/wake", "maintainer.wake")
        await api("POST", "/api/v1/maintainer/wake", "/api/v1/maintainer/wake", "maintainer.wake")
        for verb, targets in (("reject", (8, 7)), ("approve", (5, 6))):  # a rejected target cannot be proposed again
            for decide, root, target in ((page, "", targets[0]), (api, "/api/v1", targets[1])):
                proposal = await maintainer.propose(plane, POOL, target)
                route = f"{root}/maintainer/proposals/{{plan}}/{verb}"
                path, action = route.format(plan=proposal.plan.id), f"maintainer.{verb}"
                if decide is page:
                    await page(route, path, action)
                else:
                    await api("POST", route, path, action)
        lose = {"share": 0.5}
        await api(
            "POST",
            "/api/v1/pools/{pool:path}/inject-fault",
            "/api/v1/pools/eu/inject-fault",
            "pool.inject_fault",
            **lose,
        )
        await fleet.pass_time(300)
        await page("/pools/{pool:path}/inject-fault", "/pools/eu/inject-fault", "pool.inject_fault", percent="30")
        for word in ("pause", "resume"):
            await api("POST", f"/api/v1/flows/{{flow:path}}/{word}", f"/api/v1/flows/train/{word}", f"flow.{word}")
        filters = {"filters": [{"kind": "keep_all"}]}
        route = "/api/v1/flows/{flow:path}/plugins"
        await api("POST", route, "/api/v1/flows/train/plugins", "plugins.change", **filters)
        route, sampler = "/api/v1/policies/{policy:path}/sampler", {"sampler": {"kind": "replay", "ratio": 0.3}}
        await api("POST", route, "/api/v1/policies/solver/sampler", "plugins.change", **sampler)
    assert tried == acting


async def test_refused_and_failed_changes_are_audited(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2, limits=NARROW) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_live(admin, sequence=150)
        await refusals(web, admin)


async def refusals(web: RunningWeb, admin: httpx.AsyncClient) -> None:
    program = await token_of(admin, "agent")
    plan = await admin.post("/api/v1/pools/eu/plans", headers=program, json={"target": 40, "reason": "more"})
    assert plan.json()["role"] == "agent", "the role of the actor is the scope of the token"
    assert plan.json()["verdict"] == "needs_approval"
    path, body = f"/api/v1/plans/{plan.json()['id']}/apply", {"reason": "more"}
    assert (await admin.post(path, headers=program, json=body)).status_code == 422, "without a key"
    refused = await admin.post(path, headers=program | {"idempotency-key": "k"}, json=body)
    assert refused.status_code == 403
    assert "cannot approve" in refused.json()["detail"]
    assert refused.headers["content-type"] == "application/problem+json"
    newest = (await entries(admin))[0]
    assert (newest["action"], newest["result"], newest["role"]) == ("pool.apply", "refused", "agent")
    missing = program | {"idempotency-key": "k2"}
    assert (
        await admin.put("/api/v1/pools/eu", headers=missing, json=SPEC | {"observed_version": 1})
    ).status_code == 403
    boss = await token_of(admin, "admin") | {"idempotency-key": "k3"}
    stale = await admin.put("/api/v1/pools/eu", headers=boss, json=SPEC | {"observed_version": 99})
    assert stale.status_code == 409
    assert "Idempotency-Key" in stale.json()["remedy"]
    newest = (await entries(admin))[0]
    assert (newest["action"], newest["result"], newest["target"]) == ("pool.change", "failed", "eu")
    unknown = await admin.get("/api/v1/pools/nowhere", headers=boss)
    assert unknown.status_code == 404
    assert "use one of eu" in unknown.json()["detail"]
