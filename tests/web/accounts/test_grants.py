"""Roles on one run or one pool: what they open, what they do not, who gives and takes them."""

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.fleet import Actor, PlanId, Role
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, flash_of, running_web, shown_secret
from tests.web.door.test_roles import HERE, give

pytestmark = pytest.mark.anyio

US = {"target": "1", "reason": "a test"}


@asynccontextmanager
async def two_pools(
    fake: FakeControlPlane, tmp_path: Path
) -> AsyncIterator[tuple[RunningWeb, RunningFleet, httpx.AsyncClient]]:
    """A page over a fleet with the pools `eu` and `us`, and its admin."""
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_fed()
        spec = {"provider": "cloud", "mode": "on", "min_nodes": 0, "max_nodes": 5}
        body = {**spec, "observed_version": 0, "reason": "another pool"}
        made = await admin.put("/api/v1/pools/us", json=body, headers={"idempotency-key": "us"})
        assert made.status_code == 200, made.text
        yield web, fleet, admin


def said(answer: httpx.Response) -> str:
    return re.sub(r"</?bdi>", "", html.unescape(answer.text))


async def planned(client: httpx.AsyncClient, pool: str) -> str:
    """The id of a plan of one node more or less."""
    answer = await client.post(f"/pools/{pool}/plans", data={"target": "3", "reason": "a test"})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].rpartition("/")[2]


async def test_a_viewer_who_operates_one_pool_plans_applies_and_holds_there_and_nowhere_else(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with two_pools(fake, tmp_path) as (web, fleet, admin), web.in_role(admin, "viewer", name="ada") as ada:
        assert (await ada.post("/pools/eu/plans", data=US)).status_code == 403
        await give(admin, role="operator", run=HERE, pool="eu")

        plan = await planned(ada, "eu")
        assert "The guard allows it." in (await ada.get(f"/pools/eu/plans/{plan}")).text
        applied = await ada.post(f"/pools/eu/plans/{plan}/apply", data={"key": "k"})
        assert "1 launched" in await flash_of(ada, applied)
        held = await ada.post("/pools/eu/hold", data={"minutes": "5", "key": "h"})
        assert "for 5 minutes" in await flash_of(ada, held)
        (decision, *_), _ = await fleet.parts.ledger.decisions(pool="eu", before=None, limit=1)
        assert (decision.actor.name, decision.actor.role) == ("ada", Role.OPERATOR)
        known = fleet.parts.desk.plans.known(PlanId(await planned(ada, "eu")))
        assert known is not None
        assert known.request.actor == Actor(name="ada", role=Role.OPERATOR, pool="eu"), "and of no other pool"
        entry = (await admin.get("/audit.ndjson?action=pool.hold")).json()
        assert (entry["actor"], entry["role"]) == ("ada", "operator")

        refused = await ada.post("/pools/us/plans", data=US)
        assert refused.status_code == 403
        assert (
            f"This needs role operator on pool us of run {HERE}, to steer a run: drain, pause, resume, launch; "
            "you are viewer there. Who can grant it: admin."
        ) in said(refused)
        for path in (
            "/pools/us/hold",
            "/kill",
            "/flows/train/pause",
            "/maintainer/mode",
            "/pools/eu/spec",
            "/runs/new",
        ):
            assert (await ada.post(path)).status_code == 403, path
        assert "This needs role admin on pool eu" in said(await ada.post("/pools/eu/spec"))
        assert (await ada.get("/audit")).status_code == 403, "the audit is of everything"


async def test_a_plan_of_another_pool_is_applied_under_no_address(fake: FakeControlPlane, tmp_path: Path) -> None:
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
            assert answer.status_code == 403, answer.text
            assert f"This needs role operator on pool us of run {HERE}" in said(answer)
        unknown = await ada.post("/api/v1/plans/01KAN8Q0000000000000000000/apply", **body)
        assert f"This needs role operator on run {HERE}" in said(unknown)
        assert (await admin.post(f"/pools/eu/plans/{there}/apply", data={"key": "k"})).status_code == 404
        assert fleet.parts.states() == {"ready": 2}


async def test_nodes_are_drained_by_who_operates_the_pool_of_every_one_of_them(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with two_pools(fake, tmp_path) as (web, _, admin), web.in_role(admin, "viewer", name="ada") as ada:
        assert "Drain" not in (await ada.get("/nodes/rows")).text
        await give(admin, role="operator", run=HERE, pool="local")
        page = (await ada.get("/nodes")).text
        assert 'href="/nodes/n0/drain"' in page
        assert "Drain the chosen" in page
        assert (await ada.get("/nodes/drain?node=n0&node=n1")).status_code == 200
        assert "2 nodes will finish" in await flash_of(ada, await ada.post("/nodes/drain", data={"node": ["n0", "n1"]}))
        fake.actions.clear()
        mixed = await ada.post("/nodes/drain", data={"node": ["n0", "not-there"]})
        assert f"This needs role operator on run {HERE}" in said(mixed)
        form = {"content-type": "application/x-www-form-urlencoded"}
        await ada.post("/nodes/drain", content="node=n0&x=1;node=not-there", headers=form)
        assert "not-there" not in {subject for _, subject, _ in fake.actions}


async def test_pages_offer_what_somebody_may_do_there(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with two_pools(fake, tmp_path) as (web, _, admin), web.in_role(admin, "viewer", name="ada") as ada:
        await give(admin, role="operator", run=HERE, pool="eu")
        eu, us, settings, frame = [said(await ada.get(path)) for path in ("/pools/eu", "/pools/us", "/settings", "/")]
        assert 'action="/pools/eu/hold"' in eu
        assert "This needs role admin, to change bounds and policy; anybody may ask what if; you are operator" in eu
        assert 'action="/pools/us/hold"' not in us
        assert "This needs role operator, to plan sizes and hold pools; you are viewer" in us
        assert f"with the role viewer; operator on pool eu of run {HERE}." in settings
        assert "Roles on one run or pool" not in settings
        assert 'class="kill-form"' not in frame
        await give(admin, role="operator", run=HERE)
        assert 'class="kill-form"' in (await ada.get("/pools")).text
        assert 'action="/pools/us/hold"' in (await ada.get("/pools/us")).text


async def test_a_token_has_there_what_it_and_its_user_both_have(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with two_pools(fake, tmp_path) as (web, _, admin), web.in_role(admin, "viewer", name="ada") as ada:
        made = await admin.post("/settings/tokens", data={"name": "ci", "scope": "viewer", "days": "1"})
        await give(admin, role="operator", run=HERE, pool="eu", holder="1:1")
        async with web.client() as program:
            program.headers["authorization"] = f"Bearer {shown_secret(made)}"
            size: dict[str, Any] = {"json": {"target": 3, "reason": "a test"}}
            assert (await program.post("/api/v1/pools/eu/plans", **size)).status_code == 201
            refused = await program.post("/api/v1/pools/us/plans", **size)
            assert refused.json()["detail"] == (
                f"This needs role operator on pool us of run {HERE}, and token ci has the scope viewer there. "
                "Make one with more scope."
            )
        await give(admin, role="operator", run=HERE, pool="eu")
        hers = await ada.post("/settings/tokens", data={"name": "mine", "scope": "operator", "days": "1"})
        async with web.client() as program:
            program.headers["authorization"] = f"Bearer {shown_secret(hers)}"
            assert (await program.post("/api/v1/pools/eu/plans", **size)).status_code == 201
            refused = await program.post("/api/v1/pools/us/plans", **size)
            assert "you are viewer there" in refused.json()["detail"]
            assert (await program.get("/audit.csv")).status_code == 403, "everywhere she is a viewer"
            await admin.post("/settings/grants/2/take")
            assert (await program.post("/api/v1/pools/eu/plans", **size)).status_code == 403
        more = await ada.post("/settings/tokens", data={"name": "more", "scope": "operator", "days": "1"})
        assert "cannot have the scope operator" in await flash_of(ada, more)


async def test_grants_are_given_replaced_listed_and_taken_back_by_admins(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada") as ada:
        assert "None yet" in (await admin.get("/settings")).text
        await give(admin, role="operator", run=HERE, pool="eu")
        await give(admin, role="admin", run=HERE, pool="eu")
        listed = (await admin.get("/settings")).text.partition('id="grants"')[2].partition("</section>")[0]
        assert listed.count('href="/settings/grants/') == 1
        assert "<td>admin</td>" in listed
        entry = (await admin.get("/audit.ndjson?action=grant.give")).text.splitlines()[0]
        for fact in ('\\"role\\":\\"operator\\"', '\\"role\\":\\"admin\\"', '\\"pool\\":\\"eu\\"', '"target":"ada"'):
            assert fact.replace(":", "") in entry.replace(": ", ":").replace(":", ""), entry
        assert "Take this grant back?" in (await admin.get("/settings/grants/1/take")).text
        taken = await flash_of(admin, await admin.post("/settings/grants/1/take"))
        assert taken == f"Taken back from ada: admin on pool eu of run {HERE}"
        assert "taken back already" in await flash_of(admin, await admin.post("/settings/grants/1/take"))
        assert (await ada.get("/nodes/n0/drain")).status_code == 403


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"holder": "1"}, "nobody changes their own rights"),
        ({"holder": "9"}, "there is no such user"),
        ({"holder": "2:9"}, "that token is revoked, has expired, or is another user's"),
        ({"holder": "ada"}, "choose a user"),
        ({"role": "viewer"}, "everybody looks at everything"),
        ({"role": "king"}, "there is no role 'king'"),
        ({"place": " "}, "a grant is on a run"),
        ({"place": "x" * 300}, "a grant is on a run"),
        ({"pool": "<script>"}, "Nothing was granted"),
    ],
)
async def test_what_cannot_be_granted_is_said(web: RunningWeb, form: dict[str, str], problem: str) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada"):
        usual = {"holder": "2", "role": "operator", "place": HERE, "pool": "eu"}
        assert problem in await flash_of(admin, await admin.post("/settings/grants", data=usual | form))
        assert "None yet" in (await admin.get("/settings")).text


async def test_who_is_no_admin_everywhere_gives_nothing(web: RunningWeb) -> None:
    async with (
        web.logged_in() as admin,
        web.in_role(admin, "admin", name="bob") as bob,
        web.in_role(admin, "viewer", name="ada") as ada,
    ):
        await give(admin, role="admin", run=HERE, holder="3")
        form = {"holder": "3", "role": "admin", "place": "another", "pool": ""}
        assert (await ada.post("/settings/grants", data=form)).status_code == 403
        assert (await ada.post("/settings/grants/1/take")).status_code == 403
        await give(bob, role="operator", run=HERE, holder="3")
        own = await flash_of(bob, await bob.post("/settings/grants", data={**form, "holder": "2"}))
        assert "nobody changes their own rights" in own


async def test_programs_of_admins_give_list_and_take(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada") as ada:
        body = {"user": "ada", "role": "operator", "run": HERE, "pool": "eu", "reason": "her pool"}
        key = {"idempotency-key": "one"}
        given = await admin.post("/api/v1/grants", json=body, headers=key)
        assert given.status_code == 201, given.text
        again = await admin.post("/api/v1/grants", json=body, headers=key)
        assert again.json() == given.json()
        other = await admin.post("/api/v1/grants", json={**body, "pool": "us"}, headers=key)
        assert other.status_code == 409
        assert len((await admin.get("/audit.ndjson?action=grant.give")).text.splitlines()) == 1
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
            taken = await admin.post(f"/api/v1/grants/{listed['id']}/take", **why)  # type: ignore[arg-type] # as they are
            assert taken.json() == {"message": f"taken back from ada: operator on pool eu of run {HERE}"}
        (entry,) = (await admin.get("/audit.ndjson?action=grant.take")).text.splitlines()
        assert '"actor":"admin"' in entry.replace('": "', '":"')
        assert "she left" in entry
        gone = await admin.post(
            f"/api/v1/grants/{listed['id']}/take", json={"reason": "again"}, headers={"idempotency-key": "four"}
        )
        assert gone.status_code == 404
