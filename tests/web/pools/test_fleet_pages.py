"""Pools, plans, holds, the kill switch and decisions in a browser without scripts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import LimitInEffect
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, problem_record, render_cause
from astraflow.contract.values import Value
from tests import make
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.maintainer.fleet.parts import POOL
from tests.web.page_elements import Element, notice_after, parsed
from web.pools.kill_switch_routes import HOLD_BUTTON_REASON
from web.state.annotations import capitalized

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"


@asynccontextmanager
async def page_over(
    fake: FakeControlPlane, tmp_path: Path, fleet: RunningFleet
) -> AsyncIterator[tuple[RunningWeb, httpx.AsyncClient]]:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as client,
    ):
        await web.until_connected()
        await web.until_live(client, sequence=150)
        yield web, client


async def follow(client: httpx.AsyncClient, answer: httpx.Response) -> str:
    assert answer.status_code == 303, answer.text
    return (await client.get(answer.headers["location"])).text


def summaries(page: Element) -> list[list[float]]:
    """Returns the numbers in each decision of the table."""
    return [link.numbers for link in page.one(".decisions-table").all(".row-link")]


def kinds(page: Element) -> set[str]:
    """Returns the kinds of the decisions in the table."""
    return set(page.one(".decisions-table").texts(".state"))


def guard_findings(page: Element) -> dict[str, Element]:
    """Returns the guard's findings by code."""
    return {finding.one("code").text: finding for finding in page.one(".findings").all("li")}


@pytest.mark.long
async def test_without_a_fleet_service_the_pages_show_the_commands_that_start_one(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        pools, kill, decisions = [parsed(await client.get(path)) for path in ("/pools", "/kill", "/decisions")]
        pool, api = await client.get("/pools/eu"), await client.get("/api/v1/pools")
    for page in (pools, kill):
        run, serve, web_command = page.one("[data-fleet=absent]").commands()
        assert run == ["astraflow", "run", "RECIPE", "--fleet"]
        assert serve[:5] == ["astraflow", "serve", "fleet", "fleet.toml", "--dataflow"]
        assert decisions.one(".notice").one("code").text.split() == web_command
    assert (pool.status_code, api.status_code) == (503, 503)
    assert parsed(pool).one("main")["data-code"] == api.json()["code"] == "fleet.not_configured"


async def test_while_the_fleet_service_does_not_answer_the_page_shows_the_address_it_retries(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet="127.0.0.1:9") as web,
        web.logged_in() as client,
    ):
        page = parsed(await client.get("/pools"))
        api = await client.get("/api/v1/pools")
    assert page.one("[data-fleet=connecting]").one(".empty-title").texts("code") == ["127.0.0.1:9"]
    assert not page.has("[data-fleet=absent]")
    assert api.status_code == 503


async def test_the_pool_table_shows_current_nodes_target_and_cost(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        page = parsed(await client.get("/pools"))
        csv, rows = (await client.get("/pools.csv")).text, (await client.get("/pools.json")).json()
        nodes, cost, *_ = page.all(".number")
        assert (nodes.one(".number-value").numbers, nodes.one(".number-note").tone) == ([2, 2], "good")
        assert cost.one(".number-value").numbers == [2]
        assert page.one("tr#pool-eu").one("a")["href"] == "/pools/eu"
        assert page.one("tr#pool-eu").all(".state")[0].tone == "good"
        assert csv.splitlines()[1].startswith("eu,on,2,0,0,2,0,8,")
        assert rows[0]["usd_per_hour"] == 2.0
        web.clock.push(60)
        table = parsed(await client.get("/pools/table"))
        assert table.has(".fleet-body[data-old]")
        assert table.has(".notice[data-tone=bad]")


@pytest.mark.long
async def test_a_size_is_previewed_and_applied_once(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        reason = "the trainer waits"
        planned = await client.post("/pools/eu/plans", data={"target": "4", "reason": reason})
        plan = parsed(await follow(client, planned)).one("#confirm")
        assert plan.one("#confirm-title").numbers == [2, 4]
        assert plan.facts()["Nodes"] == "2 → 4"
        assert plan.facts()["Cost"].startswith("$2.00 → $4.00")
        assert plan.one(".verdict-line").tone == "good"
        assert fleet.parts.states() == {"ready": 2}, "nothing has happened yet"
        form = plan.one("form")
        for _ in range(2):
            done = await client.post(form["action"], data=form.fields())
            assert (await notice_after(client, done)).tone == "good"
        assert fleet.parts.states() == {"ready": 2, "intended": 2}
        audit = parsed(await client.get("/audit?action=pool.apply")).rows()
        assert any("to: 4" in cell for row in audit for cell in row)
        assert any(reason in row for row in audit)
        assert [2, 4, 2] in summaries(parsed(await client.get("/decisions")))


async def test_plans_refused_by_the_guard_cannot_be_applied_from_the_page(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = await follow(client, await client.post("/pools/eu/plans", data={"target": "40", "reason": "more"}))
        plan = parsed(page).one("#confirm")
        assert plan.one(".verdict-line").tone == "bad"
        assert guard_findings(plan)["max_nodes"].numbers == [40, 8]
        assert guard_findings(plan)["max_nodes"].tone == "bad"
        assert "/apply" not in page
        bad = await client.post("/pools/eu/plans", data={"target": "4", "reason": " "})
        assert (await notice_after(client, bad))["data-code"] == "plan.invalid_reason"


async def test_terminating_a_whole_pool_requires_its_name_and_an_admin(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        drain = parsed(await client.get("/pools/eu/drain-all")).one("#confirm").one("form")
        assert (drain["action"], drain.has("option[value=0]"), drain.has("input[name=is_kill]")) == (
            "/pools/eu/plans",
            True,
            True,
        )
        form = {"target": "0", "is_kill": "true", "reason": "it is over"}
        planned = await client.post("/pools/eu/plans", data=form)
        plan = parsed(await follow(client, planned))
        assert "required" in plan.one("input[name=name]").attributes
        action = planned.headers["location"] + "/apply"
        wrong = await client.post(action, data={"key": "k", "name": "us"})
        assert (await notice_after(client, wrong))["data-code"] == "pool.name_not_confirmed"
        assert fleet.parts.states() == {"ready": 2}
        async with web.in_role(client, "operator") as operator:
            theirs = await operator.post(action, data={"key": "k2", "name": "eu"})
            assert (await notice_after(operator, theirs))["data-code"] == "fleet.plan_refused"
        assert fleet.parts.states() == {"ready": 2}
        right = await client.post(action, data={"key": "k", "name": "eu"})
        assert (await notice_after(client, right)).tone == "good"
        assert "ready" not in fleet.parts.states()


async def test_saving_the_form_unchanged_keeps_the_budgets(tmp_path: Path, fake: FakeControlPlane) -> None:
    budgets = {"usd_per_hour_max": 12345.67, "usd_per_day_max": 1234567.89, "drain_s": 12345.625}
    async with (
        running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8, **budgets}) as fleet,
        page_over(fake, tmp_path, fleet) as (_, client),
    ):
        bounds = parsed(await client.get("/pools/eu")).one("#bounds")
        values = {name: bounds.one(f"input[name={name}]")["value"] for name in budgets}
    assert {name: float(value) for name, value in values.items()} == budgets


async def test_admins_change_bounds_and_undo_the_change(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (web, client):
        version = fleet.parts.ledger.pools[POOL].version
        form = {"observed_version": str(version), "mode": "advise", "min_nodes": "1", "max_nodes": "6", "key": "a"}
        changed = await client.post("/pools/eu/spec", data={**form, "reason": "smaller", "usd_per_hour_max": "9.5"})
        notice = await notice_after(client, changed)
        assert (notice.tone, notice.numbers[:2]) == ("good", [1, 6])
        spec = fleet.parts.ledger.pools[POOL].spec
        assert (spec.mode.value, spec.max_nodes, spec.usd_per_hour_max, spec.is_spot) == ("advise", 6, 9.5, False)
        late = await client.post("/pools/eu/spec", data={**form, "key": "b", "reason": "again"})
        assert (await notice_after(client, late))["data-code"] == "fleet.pool_changed"
        (undo,) = (notice for notice in parsed(await client.get("/pools/eu")).all(".notice") if notice.has("button"))
        assert (undo.one("button")["name"], undo.one("p").numbers) == ("undo", [0, 8])
        undone = {"observed_version": str(version + 1), "key": "c", "undo": "1"}
        assert (await notice_after(client, await client.post("/pools/eu/spec", data=undone))).tone == "good"
        spec = fleet.parts.ledger.pools[POOL].spec
        assert (spec.mode.value, spec.min_nodes, spec.max_nodes, spec.usd_per_hour_max) == ("on", 0, 8, None)
        for odd, code in (
            ({"max_nodes": "many"}, "pool.invalid_number"),
            ({"min_nodes": "9", "max_nodes": "3"}, "pool.invalid_bounds"),
            ({"mode": "wild"}, "pool.invalid_mode"),
            ({"max_nodes": "nan"}, "pool.invalid_number"),
        ):
            answer = await client.post("/pools/eu/spec", data={**form, **odd, "reason": "odd", "key": "d"})
            assert (await notice_after(client, answer))["data-code"] == code, odd
        async with web.in_role(client, "operator") as operator:
            bounds = parsed(await operator.get("/pools/eu")).one("#bounds")
            assert bounds.one(".needs-role")["data-role"] == "admin"
            assert bounds.one(".needs-role").texts("bdi") == ["admin"]
            assert "disabled" in bounds.one("input[name=usd_per_hour_max]").attributes
            assert not any(button.text == "Save" for button in bounds.all("button"))


async def test_what_if_shows_two_target_lines_or_the_code_of_the_error(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = parsed(await client.get("/pools/eu/what-if?mode=on&min_nodes=3&max_nodes=6"))
        odd = parsed(await client.get("/pools/eu/what-if?min_nodes=7&max_nodes=6"))
        fake.sequence = 1
        young = parsed(await client.get("/pools/eu/what-if")).one("#what-if")
    assert json.loads(page.one("#table-what-if").text)["columns"].keys() == {"elapsed", "now", "then"}
    assert len(page.one("#what-if").all("table")[0].rows()[0]) == 4
    assert page.one("input[name=max_nodes]")["value"] == "6"
    assert odd.one("#what-if").one(".notice")["data-code"] == "pool.invalid_bounds"
    assert young.has("#what-if-table") or young.has("[data-code]")


async def test_what_if_covers_the_chosen_hours_and_its_files_have_the_drawn_values(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    query = "mode=on&min_nodes=3&max_nodes=6&hours=6"
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = parsed(await client.get(f"/pools/eu/what-if?{query}"))
        csv = (await client.get(f"/pools/eu/what-if.csv?{query}")).text.splitlines()
        rows = (await client.get(f"/pools/eu/what-if.json?{query}")).json()
        odd = await client.get("/pools/eu/what-if.csv?min_nodes=7&max_nodes=6")
        sent = await client.get(f"/pools/eu/what-if?form_token=secret&idempotency_key=k&{query}")
    assert (sent.status_code, sent.headers["location"]) == (303, f"/pools/eu/what-if?{query}")
    hours = page.one("select[name=hours]").all("option")
    assert [(option["value"], "selected" in option) for option in hours] == [
        ("1", False),
        ("6", True),
        ("12", False),
        ("24", False),
    ]
    assert {f"/pools/eu/what-if.csv?{query}", f"/pools/eu/what-if?{query}#what-if-table"} <= set(page.links())
    assert csv[0] == "time,unix_s,then,now"
    assert len(csv) - 1 == len(rows) >= 2
    assert odd.status_code == 422


async def test_launch_delay_files_have_the_drawn_values(
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


@pytest.mark.long
async def test_a_hold_shows_its_time_and_can_be_ended(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        held = await client.post("/pools/eu/hold", data={"minutes": "30", "reason": "a demonstration", "key": "h"})
        notice = await notice_after(client, held)
        assert (notice.tone, notice.numbers) == ("good", [30])
        page = parsed(await client.get("/pools/eu"))
        (hold,) = (element for element in page.all(".notice") if element.has("form[action=/pools/eu/hold]"))
        assert (hold.tone, hold.texts("bdi")) == ("warn", ["a demonstration"])
        assert hold.one("form").fields()["minutes"] == "0"
        await client.post("/pools/eu/hold", data={"minutes": "0", "key": "r"})
        assert fleet.parts.ledger.pools[POOL].hold_until_at is None


async def test_an_operator_sets_the_kill_switch_and_only_an_admin_clears_it(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    fake = FakeControlPlane(SyntheticRun(nodes=()), sequence=150)
    async with page_over(fake, tmp_path, fleet) as (web, client):
        nodes = parsed(await client.get("/nodes"))
        assert nodes.one(".empty").has("a[href=/pools]")
        assert not nodes.has(".command"), "the fleet starts its nodes"
        assert parsed(await client.get("/pools")).has(".kill-form[data-behavior=longpress]")
        async with web.in_role(client, "operator") as operator:
            stopped = await operator.post("/kill", data={"scope": "all", "key": "k1"})
            assert not parsed(await operator.get(stopped.headers["location"])).has("#flash"), "repeats the banner"
            assert fleet.status().kill is KillScope.ALL
            assert parsed(await operator.get("/pools")).has(".banner[data-kill=all]")
            assert parsed(await operator.get("/kill")).one(".needs-role")["data-role"] == "admin"
            refused = await operator.post("/kill", data={"scope": "none", "key": "k2"})
            assert (await notice_after(operator, refused))["data-code"] == "fleet.missing_role"
        await client.post("/kill", data={"scope": "none", "reason": "fine again", "key": "k3"})
        assert fleet.status().kill is KillScope.NONE
        audit = parsed(await client.get("/audit?action=fleet.kill_switch"))
        assert any(HOLD_BUTTON_REASON in row for row in audit.rows())
        assert "refused" in audit.texts(".result")
        unknown = await client.post("/kill", data={"scope": "some"})
        assert (await notice_after(client, unknown))["data-code"] == "kill_switch.unknown_scope"


async def test_a_preempted_instance_is_shown_on_the_page_and_in_the_api(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    parts = fleet.parts
    machine = parts.cloud.alive()[0]
    launch = machine.instance.handle.launch_id
    parts.cloud.preempt(machine, in_s=120.0)
    await parts.reconciler.sweep()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = parsed(await client.get("/pools/eu"))
        listed = (await client.get("/api/v1/pools")).json()["items"][0]
        machines = {item["id"]: item for item in (await client.get("/api/v1/instances")).json()["items"]}
    assert "draining: preempted" in page.texts(".state")
    assert "1 preempted" in page.one(".page-head").facts().values()
    assert (listed["terminating"], listed["losses"]) == ({"preempted": 1}, {"preempted": 1})
    assert {item["cause"] for item in machines.values()} == {"preempted", None}
    assert (machines[launch]["state"], machines[launch]["cause"]) == ("draining", "preempted")


async def test_suspended_launches_and_launch_delays_are_shown(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    until = fleet.parts.clock.wall() + 600
    fleet.parts.ledger.pools[POOL] = replace(fleet.parts.ledger.pools[POOL], breaker_until=until)
    async with page_over(fake, tmp_path, fleet) as (_, client):
        page = parsed(await client.get("/pools/eu"))
    assert any("#delay-title" in notice.links() for notice in page.all(".notice[data-tone=bad]"))
    assert page.one(".page-head").one(".state").tone == "bad"
    assert page.one("#delay-title").numbers[:2] == [2, pytest.approx(20, abs=1)]
    assert len(page.one("svg.delay-bars").all("rect")) == 12


async def test_decisions_of_one_tick_for_one_cause_share_its_cell(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    for at, pool, before in ((100, "eu", 2), (100, "us", 4), (140, "eu", 3)):
        fake.synthetic_run.act(at, make.pool_advice(pool, before=before, target=before + 1).change)
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        table = parsed(await client.get("/decisions?source=rule"))
    (shared,) = table.all("td[rowspan=2]")
    assert table.texts("td.ground").count(shared.text) == 2, "once for the tick of two pools, once for the later one"
    assert [4, 5] in summaries(table)


async def test_decisions_of_both_journals_are_filtered_and_downloaded(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    (advice,) = fake.synthetic_run.report(100).recommendations
    fake.synthetic_run.act(100, advice.change)
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        both = parsed(await client.get("/decisions"))
        rule = parsed(await client.get("/decisions?source=rule"))
        people = parsed(await client.get("/decisions?actor=ALI&kind=apply"))
        none = parsed(await client.get("/decisions?text=nowhere"))
        odd = await client.get("/decisions?before=x&source=moon&pool=%00")
        csv = (await client.get("/decisions.csv?source=rule")).text
        rows = (await client.get("/decisions.json?kind=apply")).json()
        page = parsed(await client.get("/decisions/rule-10000"))
        missing = await client.get("/decisions/fleet-999")
        nonsense = await client.get("/decisions/word")
        answer = (await client.get("/api/v1/decisions/rule-10000")).json()
    assert [0, 2, 2] in summaries(both)
    assert {"applied", "target moved"} <= kinds(both)
    assert kinds(rule) == {"target moved"}
    assert kinds(people) == {"applied"}
    assert (none.has(".empty"), none.has(".decisions-table")) == (True, False)
    assert odd.status_code == 200
    assert csv.splitlines()[1].startswith("rule-10000,")
    assert [row["kind"] for row in rows] == ["apply"]
    assert page.has("#calculation")
    assert page.has(".formulas")
    assert (missing.status_code, nonsense.status_code) == (404, 404)
    assert answer["recommendation"]["pool"] == "local"


async def test_limits_of_a_target_and_refusals_of_the_guard_are_decisions(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    capped = make.pool_advice("local", before=3, target=3, limited_by=(LimitInEffect.MAX_NODES,)).change
    fake.synthetic_run.act(100, capped)
    ended: dict[str, Value] = {"limit": "max_nodes", "minutes": 3, "target": 4}
    fake.synthetic_run.act(101, Record(kind=RecordKind.LIMIT_ENDED, subject="local", cause="max_nodes", values=ended))
    await fake.advance()
    async with page_over(fake, tmp_path, fleet) as (_, client):
        planned = {"target": 40, "reason": "far too many"}
        plan = (await client.post("/api/v1/pools/eu/plans", json=planned, headers={"Idempotency-Key": "p"})).json()
        await client.post(f"/pools/eu/plans/{plan['id']}/apply", data={"key": "k"})
        rule = parsed(await client.get("/decisions?source=rule"))
        (refused,) = (await client.get("/api/v1/decisions?kind=refuse")).json()["items"]
        page = parsed(await client.get(f"/decisions/{refused['id']}"))
        csv = (await client.get("/decisions.csv?kind=refuse")).text
    (row,) = (row for row in rule.rows() if "held at a limit" in row)
    cause = capitalized(render_cause(capped))
    assert {f"Stay at 3 nodes {cause}", cause} <= {" ".join(cell.split()) for cell in row}, (
        "a phone shows the reason below the decision"
    )
    assert {"held at a limit", "limit ended"} <= kinds(rule)
    (finding,) = [item for item in refused["findings"] if item["code"] == "max_nodes"]
    assert (finding["verdict"], finding["numbers"]) == ("refused", {"target": 40.0, "limit": 8.0})
    assert guard_findings(page)["max_nodes"].one("bdi").numbers == [40, 8]
    assert guard_findings(page)["max_nodes"].one("small").text == "limit 8, target 40"
    assert "max_nodes" in csv


@pytest.mark.long
async def test_each_decision_is_on_one_page(fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path) -> None:
    async with page_over(fake, tmp_path, fleet) as (_, client):
        for number in range(7):
            await client.post("/pools/eu/hold", data={"minutes": "1", "reason": f"hold {number}", "key": f"k{number}"})
        ids, before = [], ""
        while True:
            page = (
                await client.get("/api/v1/decisions", params={"limit": 3} | ({"before": before} if before else {}))
            ).json()
            ids += [item["id"] for item in page["items"]]
            before = page["older"]
            if not before:
                break
        whole = [item["id"] for item in (await client.get("/api/v1/decisions?limit=100")).json()["items"]]
    assert ids == whole
    assert len(ids) == len(set(ids)) >= 8


async def test_hostile_strings_stay_text_on_the_pages_of_the_fleet(
    fleet: RunningFleet, fake: FakeControlPlane, tmp_path: Path
) -> None:
    fleet.problems = (problem_record("provider_unreadable", "", provider="p", error=HOSTILE),)
    moved = {"text": HOSTILE}
    fake.synthetic_run.act(100, Record(kind=RecordKind.TARGET_MOVED, subject="eu", actor=HOSTILE, values=moved))
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
