"""Pools, plans, holds, the kill switch and decisions as a browser without scripts gets them."""

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from astraflow.contract.fleet import KillScope
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, flash_of, running_web
from tests.maintainer.fleet.parts import POOL

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    async with running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as running:
        yield running


@asynccontextmanager
async def page_over(
    fake: FakeControlPlane, tmp_path: Path, fleet: RunningFleet
) -> AsyncIterator[tuple[RunningWeb, httpx.AsyncClient]]:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as client,
    ):
        await web.until_fed()
        await web.until_live(client, sequence=150)
        yield web, client


async def follow(client: httpx.AsyncClient, answer: httpx.Response) -> str:
    assert answer.status_code == 303, answer.text
    return (await client.get(answer.headers["location"])).text


async def test_without_a_fleet_service_the_pages_say_how_to_have_one(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        pools, kill, decisions = [(await client.get(path)).text for path in ("/pools", "/kill", "/decisions")]
        pool, api = await client.get("/pools/eu"), await client.get("/api/v1/pools")
    for page in (pools, kill):
        assert "No fleet service" in page
        assert "astraflow run RECIPE --fleet" in page
        assert "astraflow serve fleet fleet.toml --dataflow 127.0.0.1:" in page
    assert "Without a fleet service there are the rule's decisions only" in decisions
    assert (pool.status_code, api.status_code) == (503, 503)
    assert "told of no fleet service" in api.json()["detail"]


async def test_a_fleet_service_that_does_not_answer_is_asked_again_and_that_is_said(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet="127.0.0.1:9") as web,
        web.logged_in() as client,
    ):
        page = (await client.get("/pools")).text
        api = await client.get("/api/v1/pools")
    assert "Asking the fleet service at <code>127.0.0.1:9</code>" in page
    assert "No fleet service" not in page
    assert api.status_code == 503


async def test_pools_show_what_there_is_what_is_wanted_and_what_it_costs(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        page = (await client.get("/pools")).text
        csv, rows = (await client.get("/pools.csv")).text, (await client.get("/pools.json")).json()
        assert "Every pool is as it should be" in page
        assert "2 of 2" in page
        assert "$2.00" in page
        assert 'href="/pools/eu"' in page
        assert csv.splitlines()[1].startswith("eu,on,2,0,0,2,0,8,")
        assert rows[0]["usd_per_hour"] == 2.0
        web.clock.push(60)
        assert "The fleet service was last heard" in (await client.get("/pools/table")).text


async def test_a_size_is_previewed_and_only_then_applied_once(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        planned = await client.post("/pools/eu/plans", data={"target": "4", "reason": "the trainer waits"})
        page = await follow(client, planned)
        assert "Resize eu: 2 to 4 nodes?" in page
        assert "$2.00 → $4.00 an hour" in page
        assert "The guard allows it." in page
        assert fleet.parts.states() == {"ready": 2}, "nothing has happened yet"
        form = {
            name: re.search(rf'name="{name}" value="([^"]*)"', page.partition('/apply"')[2])[1]  # type: ignore[index] # they are there
            for name in ("key", "reason")
        }
        action = re.search(r'action="(/pools/eu/plans/[^"]+/apply)"', page)
        assert action is not None
        for _ in range(2):
            assert "2 launched" in await flash_of(client, await client.post(action[1], data=form))
        assert fleet.parts.states() == {"ready": 2, "intended": 2}
        audit = (await client.get("/audit?action=pool.apply")).text
        assert "to: 4" in audit
        assert "the trainer waits" in audit
        assert "From 2 to 4 nodes, 2 launched" in (await client.get("/decisions")).text


async def test_what_the_guard_refuses_cannot_be_applied_from_the_page(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = await follow(client, await client.post("/pools/eu/plans", data={"target": "40", "reason": "more"}))
        assert "The guard refuses it." in page
        assert "40 nodes are more than the 8 allowed" in page
        assert "/apply" not in page
        bad = await client.post("/pools/eu/plans", data={"target": "4", "reason": " "})
        assert "a plan needs a reason" in await flash_of(client, bad)


async def test_ending_a_whole_pool_takes_its_name(fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        assert "Drain all of" in (await client.get("/pools/eu/drain-all")).text
        asked = {"target": "0", "is_kill": "true", "reason": "it is over"}
        planned = await client.post("/pools/eu/plans", data=asked)
        page = await follow(client, planned)
        assert "to do this" in page
        action = planned.headers["location"] + "/apply"
        wrong = await client.post(action, data={"key": "k", "name": "us"})
        assert "type the name of the pool, eu" in await flash_of(client, wrong)
        assert fleet.parts.states() == {"ready": 2}
        async with web.in_role(client, "operator") as operator:
            theirs = await operator.post(action, data={"key": "k2", "name": "eu"})
            assert "or a person of no lower role" in await flash_of(operator, theirs)
        right = await client.post(action, data={"key": "k", "name": "eu"})
        assert "2 killed" in await flash_of(client, right)


async def test_bounds_are_changed_by_admins_compared_and_undone(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        version = fleet.parts.ledger.pools[POOL].version
        form = {"observed_version": str(version), "mode": "advise", "min_nodes": "1", "max_nodes": "6", "key": "a"}
        changed = await client.post("/pools/eu/spec", data={**form, "reason": "smaller", "usd_per_hour_max": "9.5"})
        assert "1 to 6 nodes, mode advise" in await flash_of(client, changed)
        spec = fleet.parts.ledger.pools[POOL].spec
        assert (spec.max_nodes, spec.usd_per_hour_max, spec.is_spot) == (6, 9.5, False)
        late = await client.post("/pools/eu/spec", data={**form, "key": "b", "reason": "again"})
        assert "read it again" in await flash_of(client, late)
        page = (await client.get("/pools/eu")).text
        assert "Before the last change: 0 to 8 nodes, mode on" in page
        undone = {"observed_version": str(version + 1), "key": "c", "undo": "1"}
        assert "again 0 to 8 nodes" in await flash_of(client, await client.post("/pools/eu/spec", data=undone))
        assert fleet.parts.ledger.pools[POOL].spec.usd_per_hour_max is None
        for odd in (
            {"max_nodes": "many"},
            {"min_nodes": "9", "max_nodes": "3"},
            {"mode": "wild"},
            {"max_nodes": "nan"},
        ):
            answer = await client.post("/pools/eu/spec", data={**form, **odd, "reason": "odd", "key": "d"})
            assert "The pool was not changed" in await flash_of(client, answer), odd
        async with web.in_role(client, "operator") as operator:
            seen = html.unescape((await operator.get("/pools/eu")).text)
            assert "This needs role admin, to change bounds and policy" in seen
            assert "Who can grant it: admin." in re.sub(r"</?bdi>", "", seen)
            assert (
                'name="usd_per_hour_max" type="number" min="0" step="any" value="" placeholder="no bound" disabled'
                in seen
            )


async def test_what_if_shows_two_target_lines_or_why_there_are_none(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = (await client.get("/pools/eu/what-if?mode=on&min_nodes=3&max_nodes=6")).text
        odd = html.unescape((await client.get("/pools/eu/what-if?min_nodes=7&max_nodes=6")).text)
        fake.sequence = 1
        young = (await client.get("/pools/eu/what-if")).text
    assert re.search(r'class="line main" d="M', page)
    assert "The rule as it is" in page
    assert 'value="6"' in page
    assert "bounds are 0 <= min_nodes <= max_nodes" in odd
    assert "As it was" in young or "no report has measured demand" in young


async def test_what_if_is_asked_over_so_many_hours_and_taken_away_as_it_is_drawn(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    asked = "mode=on&min_nodes=3&max_nodes=6&hours=6"
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = html.unescape((await client.get(f"/pools/eu/what-if?{asked}")).text)
        csv = (await client.get(f"/pools/eu/what-if.csv?{asked}")).text.splitlines()
        rows = (await client.get(f"/pools/eu/what-if.json?{asked}")).json()
        odd = await client.get("/pools/eu/what-if.csv?min_nodes=7&max_nodes=6")
        sent = await client.get(f"/pools/eu/what-if?form_token=secret&idempotency_key=k&{asked}")
    assert (sent.status_code, sent.headers["location"]) == (303, f"/pools/eu/what-if?{asked}")
    assert '<option value="6" selected>the last 6 hours</option>' in page
    for value in ("1", "12", "24"):
        assert f'<option value="{value}">' in page
    assert f'href="/pools/eu/what-if.csv?{asked}"' in page
    assert f'href="/pools/eu/what-if?{asked}#what-if"' in page
    assert csv[0] == "time,unix_s,then,now"
    assert len(csv) - 1 == len(rows) >= 2
    assert odd.status_code == 422


async def test_launch_delays_are_taken_away_as_they_are_drawn(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = (await client.get("/pools/eu")).text
        csv = (await client.get("/pools/eu/launches.csv")).text.splitlines()
        rows = (await client.get("/pools/eu/launches.json")).json()
    assert 'href="/pools/eu/launches.csv"' in page
    assert 'id="delay-table"' in page
    assert csv[0] == "from_s,to_s,launches"
    assert len(rows) == len(csv) - 1 == 12
    assert sum(row["launches"] for row in rows) == 2


async def test_a_hold_says_how_long_and_can_be_ended(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        held = await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a demonstration", "key": "h"})
        assert "no node of pool eu is taken away for 30 minutes" in (await flash_of(client, held)).casefold()
        page = (await client.get("/pools/eu")).text
        assert "a demonstration" in page
        assert "Release" in page
        await client.post("/pools/eu/hold", data={"minutes": "0", "key": "r"})
        assert fleet.parts.ledger.pools[POOL].hold_until is None


async def test_the_kill_switch_stops_at_once_and_only_an_admin_lets_go_on(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        assert 'data-behavior="hold"' in (await client.get("/pools")).text
        async with web.in_role(client, "operator") as operator:
            stopped = await operator.post("/kill", data={"scope": "all", "key": "k1"})
            assert "nothing is launched or retired" in (await flash_of(operator, stopped)).casefold()
            assert fleet.status().kill is KillScope.ALL
            assert "The kill switch is on for everybody." in (await operator.get("/pools")).text
            assert "This needs role admin, to let more happen again" in (await operator.get("/kill")).text
            refused = await operator.post("/kill", data={"scope": "none", "key": "k2"})
            assert "for the role admin" in await flash_of(operator, refused)
        await client.post("/kill", data={"scope": "none", "reason": "fine again", "key": "k3"})
        assert fleet.status().kill is KillScope.NONE
        audit = html.unescape((await client.get("/audit?action=fleet.kill_switch")).text)
        assert "held on the page" in audit
        assert "refused" in audit
        assert (await client.post("/kill", data={"scope": "some"})).status_code == 303


async def test_what_the_provider_takes_away_is_said_on_the_pages_and_in_the_api(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    parts = fleet.parts
    machine = parts.cloud.alive()[0]
    launch = machine.instance.handle.launch_id
    parts.cloud.take_away(machine, in_s=120.0)
    await parts.reconciler.sweep()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        pool = (await client.get("/pools/eu")).text
        listed = (await client.get("/api/v1/pools")).json()["items"][0]
        machines = {one["id"]: one for one in (await client.get("/api/v1/instances")).json()["items"]}
    assert "draining: taken away by its provider" in pool
    assert "<dt>Gone unasked, last hour</dt><dd>1 taken away by the provider</dd>" in pool
    assert (listed["leaving"], listed["losses"]) == ({"taken": 1}, {"taken": 1})
    assert {one["cause"] for one in machines.values()} == {"taken", None}
    assert (machines[launch]["state"], machines[launch]["cause"]) == ("draining", "taken")


async def test_failures_delays_and_the_breaker_are_shown(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    until = fleet.parts.clock.wall() + 600
    fleet.parts.ledger.pools[POOL] = replace(fleet.parts.ledger.pools[POOL], breaker_until=until)
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = (await client.get("/pools/eu")).text
    assert "The breaker is open" in page
    assert "launches fail: next try in" in page
    assert "Half of 2 launches worked within 20" in page
    assert len(re.findall(r"<rect x=\"\d+\" y=\"[\d.]+\" width=\"18\"", page)) == 12


async def test_pools_that_one_tick_moved_alike_are_told_one_ground(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    for pool, size in (("eu", "2 to 3"), ("us", "4 to 5")):
        fake.world.act(100, "target_moved", pool, f"by the sizer: {pool}: {size} nodes, because it waits alike.")
    fake.world.act(140, "target_moved", "eu", "by the sizer: eu: 3 to 4 nodes, because it waits alike.")
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = (await client.get("/decisions?source=rule")).text
    assert page.count("It waits alike.") == 2, "once for the tick of two pools, once for the later one"
    assert page.count('rowspan="2"') == 1
    assert "<bdi>4 to 5 nodes</bdi>" in page


async def test_decisions_of_both_journals_are_filtered_paged_and_taken_away(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    (advice,) = fake.world.report(100).advice
    fake.world.act(100, "target_moved", "local", f"by the sizer: {advice.sentence}")
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        both = (await client.get("/decisions")).text
        rule = (await client.get("/decisions?source=rule")).text
        people = (await client.get("/decisions?actor=ALI&kind=apply")).text
        none = (await client.get("/decisions?text=nowhere")).text
        odd = await client.get("/decisions?before=x&source=moon&pool=%00")
        csv = (await client.get("/decisions.csv?source=rule")).text
        rows = (await client.get("/decisions.json?kind=apply")).json()
        one = (await client.get("/decisions/rule-10000")).text
        missing = await client.get("/decisions/fleet-999")
        nonsense = await client.get("/decisions/word")
        answer = (await client.get("/api/v1/decisions/rule-10000")).json()
    assert "From 0 to 2 nodes, 2 launched" in both
    assert "target moved" in both
    assert "2 launched" not in rule
    assert "2 launched" in people
    assert "because capacity" not in people
    assert "Nothing that matches" in none
    assert odd.status_code == 200
    assert csv.splitlines()[1].startswith("rule-10000,")
    assert [row["kind"] for row in rows] == ["apply"]
    assert "How the rule reckoned" in one
    assert "The figures of that very tick." in one
    assert (missing.status_code, nonsense.status_code) == (404, 404)
    assert answer["advice"]["pool"] == "local"


async def test_what_held_a_target_back_and_what_the_guard_refused_are_decisions_too(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    capped = "local: stay at 3 nodes, because capacity is 0.74; held back by the largest number of nodes."
    fake.world.act(100, "target_capped", "local", f"by the sizer: {capped}")
    fake.world.act(101, "cap_ended", "local", "by the sizer: local: no more held back by the largest number of nodes.")
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        planned = {"target": 40, "reason": "far too many"}
        plan = (await client.post("/api/v1/pools/eu/plans", json=planned, headers={"Idempotency-Key": "p"})).json()
        await client.post(f"/pools/eu/plans/{plan['id']}/apply", data={"key": "k"})
        rule = (await client.get("/decisions?source=rule")).text
        (refused,) = (await client.get("/api/v1/decisions?kind=refuse")).json()["items"]
        page = (await client.get(f"/decisions/{refused['id']}")).text
        csv = (await client.get("/decisions.csv?kind=refuse")).text
    assert "held back" in rule
    assert "<bdi>Stay at 3 nodes</bdi>" in rule
    assert "<bdi>Capacity is 0.74; held back by the largest number of nodes.</bdi>" in rule
    assert "free again" in rule
    (finding,) = [one for one in refused["findings"] if one["code"] == "max_nodes"]
    assert (finding["verdict"], finding["numbers"]) == ("refused", {"target": 40.0, "limit": 8.0})
    assert "What the guard said" in page
    assert "40 nodes are more than the 8 allowed" in page
    assert "limit 8, target 40" in page
    assert "max_nodes" in csv


async def test_pages_of_decisions_hold_each_once(fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        for number in range(7):
            await client.post("/pools/eu/hold", data={"minutes": "1", "reason": f"hold {number}", "key": f"k{number}"})
        seen, before = [], ""
        while True:
            page = (
                await client.get("/api/v1/decisions", params={"limit": 3} | ({"before": before} if before else {}))
            ).json()
            seen += [item["id"] for item in page["items"]]
            before = page["older"]
            if not before:
                break
        whole = [item["id"] for item in (await client.get("/api/v1/decisions?limit=100")).json()["items"]]
    assert seen == whole
    assert len(seen) == len(set(seen)) >= 8


async def test_hostile_strings_stay_text_on_the_pages_of_the_fleet(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    fleet.troubles = (HOSTILE,)
    fake.world.act(100, "target_moved", "eu", f"by {HOSTILE}: {HOSTILE}")
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        await client.post("/pools/eu/hold", data={"minutes": "9", "reason": HOSTILE, "key": "h"})
        planned = await client.post("/pools/eu/plans", data={"target": "3", "reason": HOSTILE})
        kill = await client.post("/kill", data={"scope": "agents", "reason": HOSTILE, "key": "k"})
        assert kill.status_code == 303
        paths = ["/pools", "/pools/eu", planned.headers["location"], "/kill", "/decisions", "/decisions/rule-10000"]
        for path in paths:
            answer = await client.get(path)
            assert answer.status_code == 200, path
            assert "<script>alert" not in answer.text, path
            assert "<img" not in answer.text, path
            assert "{{7*7}}" in answer.text, f"{path} shows it as it is"
