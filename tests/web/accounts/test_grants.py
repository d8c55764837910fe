"""Roles on one run or one pool: actions they permit and refuse, and users who grant and revoke them."""

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.fleet.plans import Actor, PlanId, Role
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, running_web, shown_secret
from tests.web.page_elements import notice_after, parsed
from tests.web.security.test_roles import HERE, give
from web.security.problems import CODE_HEADER
from web.security.roles import Resource

pytestmark = pytest.mark.anyio

US = {"target": "1", "reason": "a test"}


@asynccontextmanager
async def two_pools(
    fake: FakeControlPlane, tmp_path: Path
) -> AsyncIterator[tuple[RunningWeb, RunningFleet, httpx.AsyncClient]]:
    """Serves a page over a fleet with the pools `eu` and `us`; yields the page, the fleet and an admin client."""
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_connected()
        spec = {"provider": "cloud", "mode": "on", "min_nodes": 0, "max_nodes": 5}
        body = {**spec, "observed_version": 0, "reason": "another pool"}
        put_response = await admin.put("/api/v1/pools/us", json=body, headers={"idempotency-key": "us"})
        assert put_response.status_code == 200, put_response.text
        yield web, fleet, admin


def needed_role(answer: httpx.Response) -> str:
    """Returns the role that the answer's refusal names, with its run and pool."""
    assert (answer.status_code, answer.headers[CODE_HEADER]) == (403, "role.missing"), answer.text
    return re.sub(r".*Role (.*?) is required.*", r"\1", html.unescape(answer.text), flags=re.DOTALL)


def on(pool: str = "", *, role: str = "operator") -> str:
    """Returns a role on the run or on one of its pools, as refusals name it."""
    return f"{role} {Resource(run=HERE, pool=pool).description}"


async def planned(client: httpx.AsyncClient, pool: str) -> str:
    """Creates a plan with target 3 for the pool; returns its id."""
    answer = await client.post(f"/pools/{pool}/plans", data={"target": "3", "reason": "a test"})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].rpartition("/")[2]


@pytest.mark.long
async def test_an_operator_of_one_pool_may_change_that_pool_only(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with two_pools(fake, tmp_path) as (web, fleet, admin), web.in_role(admin, "viewer", name="ada") as ada:
        assert (await ada.post("/pools/eu/plans", data=US)).status_code == 403
        await give(admin, role="operator", run=HERE, pool="eu")

        plan = await planned(ada, "eu")
        verdict = parsed(await ada.get(f"/pools/eu/plans/{plan}")).one(".verdict-line")
        assert verdict.tone == "good"
        applied = await ada.post(f"/pools/eu/plans/{plan}/apply", data={"key": "k"})
        notice = await notice_after(ada, applied)
        assert (notice.tone, 1.0 in notice.numbers) == ("good", True)
        held = await ada.post("/pools/eu/hold", data={"minutes": "5", "key": "h"})
        notice = await notice_after(ada, held)
        assert (notice.tone, 5.0 in notice.numbers) == ("good", True)
        (decision, *_), _ = await fleet.parts.ledger.decisions(pool="eu", before=None, limit=1)
        assert (decision.actor, decision.role) == ("ada", Role.OPERATOR)
        known = fleet.parts.fleet_manager.plans.known(PlanId(await planned(ada, "eu")))
        assert known is not None
        assert known.request.actor == Actor(name="ada", role=Role.OPERATOR, pool="eu"), "other pools are not allowed"
        entry = (await admin.get("/audit.ndjson?action=pool.hold")).json()
        assert (entry["actor"], entry["role"]) == ("ada", "operator")

        refused = await ada.post("/pools/us/plans", data=US)
        assert needed_role(refused) == on("us")
        for path in (
            "/pools/us/hold",
            "/kill",
            "/flows/train/pause",
            "/maintainer/mode",
            "/maintainer/wake",
            "/pools/eu/spec",
            "/runs/new",
        ):
            assert (await ada.post(path)).status_code == 403, path
        assert needed_role(await ada.post("/pools/eu/spec")) == on("eu", role="admin")
        assert (await ada.get("/audit")).status_code == 403, "the audit log covers every pool"


@pytest.mark.long
async def test_a_plan_of_another_pool_is_refused_under_every_address(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with two_pools(fake, tmp_path) as (web, fleet, admin), web.in_role(admin, "viewer", name="ada") as ada:
        await give(admin, role="admin", run=HERE, pool="eu")
        there = await planned(admin, "us")
        body: dict[str, Any] = {"json": {"reason": "mine"}, "headers": {"idempotency-key": "k"}}
        for answer in (
            await ada.get(f"/pools/eu/plans/{there}"),
            await ada.post(f"/pools/eu/plans/{there}/apply", data={"key": "k"}),
            await ada.post(f"/pools/us/plans/{there}/apply", data={"key": "k"}),
            await ada.post(f"/maintainer/proposals/{there}/approve", data={"key": "k"}),
            await ada.post(f"/api/v1/plans/{there}/apply", **body),
            await ada.post(f"/api/v1/maintainer/proposals/{there}/approve", **body),
        ):
            assert needed_role(answer) == on("us")
        unknown = await ada.post("/api/v1/plans/01KAN8Q0000000000000000000/apply", **body)
        assert needed_role(unknown) == on()
        assert (await admin.post(f"/pools/eu/plans/{there}/apply", data={"key": "k"})).status_code == 404
        assert fleet.parts.states() == {"ready": 2}


async def test_draining_nodes_requires_the_operator_role_on_each_of_their_pools(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with two_pools(fake, tmp_path) as (web, _, admin), web.in_role(admin, "viewer", name="ada") as ada:
        assert "Drain" not in (await ada.get("/nodes/rows")).text
        await give(admin, role="operator", run=HERE, pool="local")
        page = (await ada.get("/nodes")).text
        assert 'href="/nodes/n0/drain"' in page
        assert "Drain selected" in page
        assert (await ada.get("/nodes/drain?node=n0&node=n1")).status_code == 200
        notice = await notice_after(ada, await ada.post("/nodes/drain", data={"node": ["n0", "n1"]}))
        assert (notice.tone, notice.numbers) == ("good", [2.0])
        fake.actions.clear()
        mixed = await ada.post("/nodes/drain", data={"node": ["n0", "not-there"]})
        assert needed_role(mixed) == on()
        form = {"content-type": "application/x-www-form-urlencoded"}
        await ada.post("/nodes/drain", content="node=n0&x=1;node=not-there", headers=form)
        assert "not-there" not in {subject for _, subject, _ in fake.actions}


async def test_pages_offer_only_the_actions_that_the_role_on_the_pool_permits(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with two_pools(fake, tmp_path) as (web, _, admin), web.in_role(admin, "viewer", name="ada") as ada:
        await give(admin, role="operator", run=HERE, pool="eu")
        eu, us, settings, frame = [parsed(await ada.get(path)) for path in ("/pools/eu", "/pools/us", "/settings", "/")]
        assert eu.has("form[action=/pools/eu/hold]")
        assert [line["data-role"] for line in eu.all(".needs-role")] == ["admin"]
        assert not us.has("form[action=/pools/us/hold]")
        assert "operator" in [line["data-role"] for line in us.all(".needs-role")]
        assert settings.texts("[data-part=own-role]") == ["viewer"]
        assert settings.texts("[data-part=own-grant]") == [on("eu")]
        assert not settings.has("#grants")
        assert not frame.has(".kill-form")
        await give(admin, role="operator", run=HERE)
        assert parsed(await ada.get("/pools")).has(".kill-form")
        assert parsed(await ada.get("/pools/us")).has("form[action=/pools/us/hold]")


async def test_a_token_has_the_permissions_that_it_and_its_user_both_have(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with two_pools(fake, tmp_path) as (web, _, admin), web.in_role(admin, "viewer", name="ada") as ada:
        token_response = await admin.post("/settings/tokens", data={"name": "ci", "scope": "viewer", "days": "1"})
        await give(admin, role="operator", run=HERE, pool="eu", holder="1:1")
        async with web.client() as program:
            program.headers["authorization"] = f"Bearer {shown_secret(token_response)}"
            size: dict[str, Any] = {"json": {"target": 3, "reason": "a test"}}
            assert (await program.post("/api/v1/pools/eu/plans", **size)).status_code == 201
            refused = await program.post("/api/v1/pools/us/plans", **size)
            assert refused.json()["code"] == "token.scope_too_low"
            assert on("us") in refused.json()["detail"]
        await give(admin, role="operator", run=HERE, pool="eu")
        hers = await ada.post("/settings/tokens", data={"name": "mine", "scope": "operator", "days": "1"})
        async with web.client() as program:
            program.headers["authorization"] = f"Bearer {shown_secret(hers)}"
            assert (await program.post("/api/v1/pools/eu/plans", **size)).status_code == 201
            refused = await program.post("/api/v1/pools/us/plans", **size)
            assert needed_role(refused) == on("us")
            assert (await program.get("/audit.csv")).status_code == 403, "she is a viewer of every other pool"
            await admin.post("/settings/grants/2/revoke")
            assert (await program.post("/api/v1/pools/eu/plans", **size)).status_code == 403
        more = await ada.post("/settings/tokens", data={"name": "more", "scope": "operator", "days": "1"})
        assert (await notice_after(ada, more))["data-code"] == "token.invalid_scope"


@pytest.mark.long
async def test_admins_give_replace_list_and_revoke_grants(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada") as ada:
        assert granted_rows(await admin.get("/settings")) == []
        await give(admin, role="operator", run=HERE, pool="eu")
        await give(admin, role="admin", run=HERE, pool="eu")
        (row,) = granted_rows(await admin.get("/settings"))
        assert row[:4] == ["ada", "admin", HERE, "eu"]
        entry = (await admin.get("/audit.ndjson?action=grant.create")).text.splitlines()[0]
        for fact in ('\\"role\\":\\"operator\\"', '\\"role\\":\\"admin\\"', '\\"pool\\":\\"eu\\"', '"target":"ada"'):
            assert fact.replace(":", "") in entry.replace(": ", ":").replace(":", ""), entry
        revoke = "/settings/grants/1/revoke"
        assert parsed(await admin.get(revoke)).has(f"form[action={revoke}]")
        notice = await notice_after(admin, await admin.post(revoke))
        assert notice.tone == "good"
        assert all(value in notice.text for value in ("ada", on("eu", role="admin")))
        assert (await notice_after(admin, await admin.post(revoke)))["data-code"] == "grant.unknown"
        assert (await ada.get("/nodes/n0/drain")).status_code == 403


def granted_rows(settings: httpx.Response) -> list[list[str]]:
    """Returns the cells of the grants that the settings page lists."""
    (section,) = [section for section in parsed(settings).all("section") if section.has("#grants")]
    return section.rows()


@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param({"holder": "1"}, "account.own_rights", marks=pytest.mark.long),
        ({"holder": "9"}, "account.unknown_user"),
        ({"holder": "2:9"}, "grant.token_invalid"),
        pytest.param({"holder": "ada"}, "grant.no_holder", marks=pytest.mark.long),
        ({"role": "viewer"}, "grant.invalid_role"),
        pytest.param({"role": "king"}, "role.unknown", marks=pytest.mark.long),
        ({"resource": " "}, "grant.invalid_run"),
        pytest.param({"resource": "x" * 300}, "grant.invalid_run", marks=pytest.mark.long),
        pytest.param({"pool": "<script>"}, "id.invalid_name", marks=pytest.mark.long),
    ],
)
async def test_an_invalid_grant_is_refused_with_a_code(web: RunningWeb, form: dict[str, str], code: str) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada"):
        usual = {"holder": "2", "role": "operator", "resource": HERE, "pool": "eu"}
        notice = await notice_after(admin, await admin.post("/settings/grants", data=usual | form))
        assert (notice.tone, notice["data-code"]) == ("bad", code)
        assert granted_rows(await admin.get("/settings")) == []


@pytest.mark.long
async def test_only_global_admins_give_and_revoke_grants(web: RunningWeb) -> None:
    async with (
        web.logged_in() as admin,
        web.in_role(admin, "admin", name="bob") as bob,
        web.in_role(admin, "viewer", name="ada") as ada,
    ):
        await give(admin, role="admin", run=HERE, holder="3")
        form = {"holder": "3", "role": "admin", "resource": "another", "pool": ""}
        assert (await ada.post("/settings/grants", data=form)).status_code == 403
        assert (await ada.post("/settings/grants/1/revoke")).status_code == 403
        await give(bob, role="operator", run=HERE, holder="3")
        own = await notice_after(bob, await bob.post("/settings/grants", data={**form, "holder": "2"}))
        assert own["data-code"] == "account.own_rights"


async def test_programs_of_admins_give_list_and_revoke_grants(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada") as ada:
        body = {"user": "ada", "role": "operator", "run": HERE, "pool": "eu", "reason": "her pool"}
        key = {"idempotency-key": "one"}
        created = await admin.post("/api/v1/grants", json=body, headers=key)
        assert created.status_code == 201, created.text
        again = await admin.post("/api/v1/grants", json=body, headers=key)
        assert again.json() == created.json()
        other = await admin.post("/api/v1/grants", json={**body, "pool": "us"}, headers=key)
        assert other.status_code == 409
        assert len((await admin.get("/audit.ndjson?action=grant.create")).text.splitlines()) == 1
        (listed,) = (await admin.get("/api/v1/grants")).json()["items"]
        assert (listed["user"], listed["role"], listed["run"], listed["pool"]) == ("ada", "operator", HERE, "eu")
        assert (listed["token"], listed["granted_by"]) == ("", "admin")
        await ada.post("/settings/tokens", data={"name": "ci", "scope": "viewer", "days": "1"})
        of_token = await admin.post("/api/v1/grants", json={**body, "token": "ci"}, headers={"idempotency-key": "two"})
        assert of_token.json()["token"] == "ci"
        for wrong, status in (({"user": "eve"}, 404), ({"token": "no"}, 404), ({"user": "admin"}, 409)):
            answer = await admin.post("/api/v1/grants", json=body | wrong, headers={"idempotency-key": "-".join(wrong)})
            assert answer.status_code == status, answer.text
        assert (await ada.get("/api/v1/grants")).status_code == 403
        why = {"json": {"reason": "she left"}, "headers": {"idempotency-key": "three"}}
        for _ in range(2):
            revoked = await admin.post(f"/api/v1/grants/{listed['id']}/revoke", **why)  # type: ignore[arg-type] # keyword arguments by name
            assert revoked.status_code == 200
            assert on("eu") in revoked.json()["message"]
        (entry,) = (await admin.get("/audit.ndjson?action=grant.revoke")).text.splitlines()
        assert '"actor":"admin"' in entry.replace('": "', '":"')
        assert "she left" in entry
        repeated_revoke = await admin.post(
            f"/api/v1/grants/{listed['id']}/revoke", json={"reason": "again"}, headers={"idempotency-key": "four"}
        )
        assert repeated_revoke.status_code == 404
