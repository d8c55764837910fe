"""The maintainer page and its API: permitted users decide a proposal once; maintainer output stays text."""

import asyncio
import json
import shlex
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.fleet.maintainer import GroupScore, MaintainerMode, MaintainerState
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.record_kinds import Severity
from astraflow.contract.records import problem_record
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.llm.interface import models
from maintainer.fleet.state.observation import TargetRecommendation
from tests.fakes import maintainer
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, running_web, shown_secret
from tests.maintainer.fleet.parts import ALICE, POOL
from tests.web.page_elements import Element, notice_after, parsed
from web.components import formats
from web.maintainer.views import CONFIGURATIONS, MODE_TEXTS

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainerSite:
    """A page over a fleet that has a maintainer heartbeat, and an admin client."""

    web: RunningWeb
    admin: httpx.AsyncClient
    fleet: RunningFleet
    plane: FleetPlaneClient


@pytest.fixture
async def site(tmp_path: Path, fake: FakeControlPlane) -> AsyncIterator[MaintainerSite]:
    async with site_over(tmp_path, fake) as maintainer_site:
        await maintainer_site.plane.send_maintainer_heartbeat(maintainer.status())
        yield maintainer_site


@asynccontextmanager
async def site_over(tmp_path: Path, fake: FakeControlPlane) -> AsyncIterator[MaintainerSite]:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_connected()
        await web.until_live(admin, sequence=150)
        yield MaintainerSite(web=web, admin=admin, fleet=fleet, plane=plane)


async def scorecards(site: MaintainerSite) -> list[Element]:
    """Returns the two scorecards of the page: evaluation and live result."""
    return parsed(await site.admin.get("/maintainer")).all("div.scorecard")


@pytest.mark.long
async def test_without_a_fleet_service_or_maintainer_the_page_shows_the_commands_that_start_one(
    web: RunningWeb, tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        absent = parsed(await client.get("/maintainer")).one("[data-fleet=absent]")
        assert absent.commands()[0] == ["astraflow", "run", "RECIPE", "--fleet"]
        assert (await client.get("/api/v1/maintainer")).status_code == 503
        assert parsed(await client.get("/maintainer/transcript")).has("[data-fleet=absent]")
    async with site_over(tmp_path / "other", fake) as site:
        connect = parsed(await site.admin.get("/maintainer")).one("#connect")
        for number, (_, text) in enumerate(CONFIGURATIONS, start=1):
            assert connect.one(f"#configuration-{number}").text.split() == text.split()
            config = MaintainerConfig.parse(tomllib.loads(text), where="")
            models.check(config.model)
        serve, run = (shlex.split(connect.one(f"#{name}-command").text) for name in ("serve", "run"))
        assert run == ["astraflow", "run", "RECIPE", "--fleet", "--maintainer", "scripted"]
        assert serve[:4] == ["astraflow", "serve", "maintainer", "maintainer.toml"]
        assert serve[-2:] == ["--fleet", site.fleet.address]
        assert (await site.admin.get("/api/v1/maintainer")).json()["status"] is None


@pytest.mark.long
async def test_the_page_shows_model_mode_state_and_budgets(site: MaintainerSite) -> None:
    page = parsed(await site.admin.get("/maintainer"))
    state, mode, model, wake = page.one("#maintainer").one(".numbers").all(".number")
    assert (state.one(".state").text, state.one(".state").tone) == ("sleeping", "good")
    assert mode.one(".number-value").text == "propose"
    assert mode.one(".number-note").text.startswith(MODE_TEXTS[MaintainerMode.PROPOSE][1])
    assert (model.one(".number-value").text, model.has(".chip.simulated")) == ("scripted good", True)
    assert wake.one("a").text == "launch failures"
    budgets = {(bar.one(".budget-name").text, *bar.one(".budget-text").numbers): bar for bar in page.all(".budget")}
    assert budgets["tokens", 33_000, 40_000]["data-level"] == "warn"
    assert [key[0] for key, bar in budgets.items() if bar["data-level"] == "bad"] == ["tokens"]
    assert budgets["time", 30, 2]["data-level"] == "good"
    assert "/kill" in page.one(".page-head").links()
    problem = problem_record("model_fails", "", failures=3)
    await site.plane.send_maintainer_heartbeat(
        maintainer.status(state=MaintainerState.BACKING_OFF, problems=(problem,))
    )
    site.web.clock.push(2)
    later = parsed(await site.admin.get("/maintainer/state"))
    assert (later.all(".state")[0].text, later.all(".state")[0].tone) == ("backing off", "warn")
    assert "The model has failed 3 times in a row" in later.one(".notice").texts("bdi")


async def test_without_scores_the_page_shows_the_commands_that_produce_them(site: MaintainerSite) -> None:
    why = "/srv/run/leaderboard.json is not there"
    status = maintainer.status(evaluation_source="/srv/run/leaderboard.json", evaluation_problem=why)
    told_live_problem = "the maintainer made no change in the last day"
    await site.plane.send_maintainer_heartbeat(replace(status, live_problem=told_live_problem))
    site.web.clock.push(2)
    evaluation, live = await scorecards(site)
    assert evaluation.commands() == [["astraflow", "maintainer", "eval", "--output", "/srv/run/leaderboard.json"]]
    assert evaluation.texts("bdi") == ["scripted good", why]
    assert live.texts("bdi") == [told_live_problem]
    assert live.commands() == [], "this mode already allows proposals"
    assert not evaluation.has(".badge")
    hosted = replace(status, model="a model", is_simulated=False, mode=MaintainerMode.SHADOW)
    await site.plane.send_maintainer_heartbeat(hosted)
    site.web.clock.push(2)
    evaluation, live = await scorecards(site)
    assert evaluation.commands()[0][3:5] == ["maintainer.toml", "--output"]
    assert live.commands()[0][:4] == ["astraflow", "maintainer", "mode", "propose"]


async def test_the_scorecard_shows_evaluation_and_live_cost_with_their_source(site: MaintainerSite) -> None:
    await site.plane.send_maintainer_heartbeat(
        maintainer.status(evaluation=maintainer.EVALUATION, live=maintainer.live())
    )
    site.web.clock.push(2)
    evaluation, live = await scorecards(site)
    assert evaluation.one(".scorecard-head").one("strong").numbers == [22, 24]
    assert (evaluation.one(".badge").tone, evaluation.one(".badge").numbers) == ("good", [6, 6])
    assert [row[1:] for row in evaluation.rows()] == [
        ["12 of 12", "1.000"],
        ["4 of 6", "0.952"],
        ["6 of 6", formats.MISSING],
    ]
    assert evaluation.one(".objections").texts("li") == list(maintainer.EVALUATION.objections)
    assert evaluation.one(".source").one("bdi").text == "/srv/run/leaderboard.json"
    assert not evaluation.has(".notice")
    assert (live.one(".scorecard-head").one("strong").tone, live.one(".scorecard-head").numbers) == ("good", [20])
    assert ["4", "3.80"] in [row[1:] for row in live.rows()]
    assert live.one(".source").numbers[:2] == [2, 30]
    response = (await site.admin.get("/api/v1/maintainer")).json()["status"]
    assert response["evaluation"]["groups"][2] == {"group": "hostile", "cases": 6, "passed": 6, "ratio": None}
    assert response["live"]["rule_cost"] == 7.0


async def test_an_outdated_score_and_a_forbidden_change_are_marked(site: MaintainerSite) -> None:
    groups = (GroupScore(group="hostile", cases=6, passed=5),)
    bad = replace(maintainer.EVALUATION, is_current=False, groups=groups, violations=1)
    late = "dataflow is away"
    dear = maintainer.live(cost=8.0)
    await site.plane.send_maintainer_heartbeat(maintainer.status(evaluation=bad, live=dear, live_problem=late))
    site.web.clock.push(2)
    evaluation, shown_live = await scorecards(site)
    assert (evaluation.one(".badge").tone, evaluation.one(".badge").numbers) == ("bad", [5, 6])
    assert evaluation.one(".notice").tone == "warn"
    assert evaluation.one("p.muted").numbers == [1], "one forbidden change"
    assert shown_live.one(".scorecard-head").one("strong").tone == "warn"
    assert shown_live.one(".scorecard-head").numbers == [14]
    assert shown_live.one(".source").texts("bdi") == [late]
    unplayed = replace(maintainer.EVALUATION, groups=maintainer.EVALUATION.groups[:1])
    await site.plane.send_maintainer_heartbeat(maintainer.status(evaluation=unplayed))
    site.web.clock.push(2)
    evaluation, _ = await scorecards(site)
    assert (evaluation.one(".badge").tone, evaluation.one(".badge").numbers) == ("warn", [])


async def test_a_proposal_beyond_the_rule_shows_its_hold(site: MaintainerSite) -> None:
    pool = site.fleet.parts.fleet.pool(POOL)
    opened = replace(pool.spec, mode=Mode.ON)
    await site.plane.put_pool(opened, observed_version=pool.version, actor=ALICE, key="on", reason="the rule follows")
    site.fleet.parts.targets[POOL] = TargetRecommendation(target=2, reason="enough")
    site.fleet.parts.fleet.observation.update(site.fleet.parts.run.report())
    proposal = await maintainer.propose(site.plane, POOL, 4)
    confirmation = parsed(await site.admin.get(f"/maintainer/proposals/{proposal.plan.id}")).one("#confirm")
    assert confirmation.facts()["Hold"].endswith(" 2")
    response = await site.admin.post(f"/maintainer/proposals/{proposal.plan.id}/approve", data={"key": "k"})
    assert (await notice_after(site.admin, response)).tone == "good"
    assert site.fleet.parts.ledger.pools[POOL].hold_until_at is not None
    pool_page = parsed(await site.admin.get(f"/pools/{POOL}"))
    (hold,) = (notice for notice in pool_page.all(".notice") if notice.has(f"form[action=/pools/{POOL}/hold]"))
    assert hold.one("bdi").numbers == [2, 4], "the rule's target and the maintainer's"


async def test_a_proposal_shows_its_effect_and_is_approved_once(site: MaintainerSite) -> None:
    proposal = await maintainer.propose(site.plane, POOL, 5)
    here = f"/maintainer/proposals/{proposal.plan.id}"
    card = parsed(await site.admin.get("/maintainer")).one(".proposal")
    assert card.one("h3").text == "eu: 2 → 5 nodes"
    assert float(card.one(".proposal-clock").one("time[data-behavior=until]")["data-at"]) > 0
    confirmation = parsed(await site.admin.get(here)).one("#confirm")
    assert confirmation.one("#confirm-title").numbers == [2, 5]
    assert proposal.plan.request.reason in confirmation.texts("bdi")
    assert site.fleet.parts.states() == {"ready": 2}, "viewing changes nothing"
    reason = "the trainer waits"
    for _ in range(2):
        response = await site.admin.post(f"{here}/approve", data={"key": "k", "reason": reason})
        assert (await notice_after(site.admin, response)).tone == "good"
    assert site.fleet.parts.states() == {"ready": 2, "intended": 3}
    audit = parsed(await site.admin.get("/audit?action=maintainer.approve"))
    assert any(reason in row for row in audit.rows())
    after = parsed(await site.admin.get("/maintainer"))
    assert not after.has(".proposal")
    assert "approved" in after.one("#recent").texts(".state")
    late = await site.admin.post(f"{here}/reject", data={"key": "n", "reason": "too late"})
    assert (await notice_after(site.admin, late))["data-code"] == "fleet.proposal_not_waiting"


@pytest.mark.long
async def test_a_proposal_is_rejected_with_a_reason_that_the_page_shows(site: MaintainerSite) -> None:
    proposal = await maintainer.propose(site.plane, POOL, 5)
    here = f"/maintainer/proposals/{proposal.plan.id}/reject"
    bare = await site.admin.post(here, data={"key": "a"})
    assert (await notice_after(site.admin, bare))["data-code"] == "maintainer.reason_missing"
    reason = "the eu is dear today"
    async with site.web.in_role(site.admin, "operator") as operator:
        response = await operator.post(here, data={"key": "b", "reason": reason})
        assert (await notice_after(operator, response)).tone == "good"
    assert site.fleet.parts.states() == {"ready": 2}
    recent = parsed(await site.admin.get("/maintainer")).one("#recent")
    assert f"some-operator: {reason}" in recent.texts("bdi")
    gone = await site.admin.post(f"/maintainer/proposals/{proposal.plan.id}/approve", data={"key": "c"})
    assert (await notice_after(site.admin, gone))["data-code"] == "fleet.unknown_plan"
    assert site.fleet.parts.states() == {"ready": 2}


async def test_viewers_and_agents_cannot_approve_and_see_who_grants_the_role(site: MaintainerSite) -> None:
    proposal = await maintainer.propose(site.plane, POOL, 5)
    for role in ("viewer", "agent"):
        async with site.web.in_role(site.admin, role) as client:
            page = await client.get(f"/maintainer/proposals/{proposal.plan.id}")
            line = parsed(page).one(".needs-role")
            assert (line["data-role"], line.texts("bdi")) == ("operator", ["admin"])
            assert "/approve" not in page.text
            refused = await client.post(f"/maintainer/proposals/{proposal.plan.id}/approve", data={"key": "k"})
            assert refused.status_code == 403
            assert (await client.post("/maintainer/mode", data={"mode": "auto", "key": "m"})).status_code == 403
    assert site.fleet.parts.states() == {"ready": 2}
    assert (await site.plane.maintainer()).mode is MaintainerMode.PROPOSE


@pytest.mark.long
async def test_a_plan_that_was_never_proposed_cannot_be_approved(site: MaintainerSite) -> None:
    proposal = await maintainer.propose(site.plane, POOL, 3)
    request = proposal.plan.request
    other = await site.plane.plan(request)
    async with site.web.in_role(site.admin, "operator") as operator:
        response = await operator.post(f"/maintainer/proposals/{other.id}/approve", data={"key": "k"})
        assert (await notice_after(operator, response))["data-code"] == "proposal.not_waiting"
    assert site.fleet.parts.states() == {"ready": 2}


async def test_people_set_the_mode_and_the_maintainer_receives_it(site: MaintainerSite) -> None:
    async with site.web.in_role(site.admin, "operator") as operator:
        reason = "a look first"
        response = await operator.post("/maintainer/mode", data={"mode": "shadow", "reason": reason, "key": "m"})
        assert (await notice_after(operator, response)).tone == "good"
    orders = await site.plane.send_maintainer_heartbeat(maintainer.status())
    assert orders.mode is MaintainerMode.SHADOW
    mode = parsed(await site.admin.get("/maintainer")).one("#maintainer").all(".number")[1]
    assert (mode.one(".number-value").text, mode.texts("bdi")) == ("shadow", ["some-operator"])
    assert any(reason in row for row in parsed(await site.admin.get("/audit?action=maintainer.mode")).rows())
    wild = await site.admin.post("/maintainer/mode", data={"mode": "wild", "key": "w"})
    assert (await notice_after(site.admin, wild))["data-code"] == "maintainer.unknown_mode"


async def test_an_operator_wakes_the_maintainer(site: MaintainerSite) -> None:
    before = (await site.plane.send_maintainer_heartbeat(maintainer.status())).wake_requests
    async with site.web.in_role(site.admin, "operator") as operator:
        assert parsed(await operator.get("/maintainer")).one("#wake").has("button")
        for _ in range(2):
            answer = await operator.post("/maintainer/wake", data={"reason": "look", "key": "w"})
            assert (await notice_after(operator, answer)).tone == "good"
    assert (await site.plane.send_maintainer_heartbeat(maintainer.status())).wake_requests == before + 1
    async with site.web.in_role(site.admin, "viewer") as viewer:
        assert not parsed(await viewer.get("/maintainer")).one("#wake").has("button")
    assert any("look" in row for row in parsed(await site.admin.get("/audit?action=maintainer.wake")).rows())


@pytest.mark.long
async def test_decisions_and_notes_appear_without_a_reload(site: MaintainerSite) -> None:
    assert not parsed(await site.admin.get("/maintainer/recent")).has(".handover")
    proposal = await maintainer.propose(site.plane, POOL, 5)
    reason = "not tonight"
    await site.plane.reject(proposal.plan.id, actor=ALICE, key="no", reason=reason)
    site.web.clock.push(2)
    later = parsed(await site.admin.get("/maintainer/recent"))
    assert f"alice: {reason}" in later.one("table").texts("bdi")
    assert [5, 2] in [note.numbers for note in later.one(".handover").all("a")]
    assert parsed(await site.admin.get("/maintainer")).one("#recent")["hx-get"] == "/maintainer/recent"


async def test_a_repeated_note_is_shown_once_with_its_count(site: MaintainerSite) -> None:
    repeated, quiet = "quota is gone in us", "it is quiet"
    for number in range(3):
        await site.plane.escalate(Severity.WARNING, actor=maintainer.AGENT, key=f"e{number}", reason=repeated)
    await site.plane.hand_over(quiet, actor=maintainer.AGENT, key="quiet", reason="nothing is the matter")
    newest, older = parsed(await site.admin.get("/maintainer/recent")).one(".handover").all("li")
    assert newest.one("a").text == quiet
    assert older.one("a").text.endswith(repeated)
    assert older.one(".muted").numbers[0] == 3


async def test_the_page_counts_newer_entries_and_keeps_the_shown_ones(site: MaintainerSite) -> None:
    assert not parsed(await site.admin.get("/maintainer/newer")).has("a")
    entries = maintainer.transcript(wakes=2)
    await maintainer.keep(site.plane, entries[:-1])
    here = parsed(await site.admin.get("/maintainer")).one("#newer")["hx-get"]
    assert here.startswith("/maintainer/newer")
    assert not parsed(await site.admin.get(here)).has("a")
    await site.plane.append_transcript(entries[0].hash, entries)
    assert parsed(await site.admin.get(here)).one("a").numbers == [1]
    other = maintainer.transcript(text="another transcript")
    await maintainer.keep(site.plane, other)
    link = parsed(await site.admin.get(here)).one("a")
    assert (link["href"], link.numbers) == ("/maintainer#transcript-title", [len(other)])


async def test_the_transcript_shows_decisions_of_people_and_the_text_of_a_failed_turn(site: MaintainerSite) -> None:
    transcript = maintainer.TranscriptBuilder()
    transcript.add("opened", {"run": "run-1", "model": "scripted good", "is_simulated": True, "system": "x"}, wake="")
    transcript.add("proposal", {"plan": "p1", "pool": "eu", "state": "rejected", "decided_at": 1.0})
    reply = "<b>half an answer</b>"
    cut = {"turn": 1, "failure": "out_of_time", "problem": "it was over", "said": reply}
    transcript.add("failure", cut | {"usage": {"input": 7}, "usd": 0.0, "rest_s": 0.0, "is_estimated": True})
    await maintainer.keep(site.plane, tuple(transcript.entries))
    page = await site.admin.get("/maintainer")
    proposal, failure = parsed(page).all(".wake")[0].all(".step")
    assert json.loads(proposal.one("pre").text)["state"] == "rejected"
    assert (failure["data-level"], json.loads(failure.one("pre").text)["failure"]) == ("bad", "out_of_time")
    assert reply in failure.one("pre").text
    assert reply not in page.text


@pytest.mark.long
async def test_every_page_counts_the_proposals_that_wait(site: MaintainerSite) -> None:
    async def waiting() -> list[float]:
        return parsed(await site.admin.get("/nodes")).one(".sidebar-count[data-live-text=frame/waiting]").numbers

    assert await waiting() == []
    await maintainer.propose(site.plane, POOL, 5)
    async with asyncio.timeout(30):
        while await waiting() != [1]:  # noqa: ASYNC110 (polls as a user does)
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_the_form_requires_a_reason_only_to_reject(site: MaintainerSite) -> None:
    proposal = await maintainer.propose(site.plane, POOL, 5)
    form = parsed(await site.admin.get(f"/maintainer/proposals/{proposal.plan.id}")).one("#confirm").one("form")
    assert "required" in form.one("input[name=reason]").attributes
    buttons = {
        button.attributes.get("formaction", form["action"]).rpartition("/")[2]: button for button in form.all("button")
    }
    assert ("formnovalidate" in buttons["approve"], "formnovalidate" in buttons["reject"]) == (True, False)


@pytest.mark.long
async def test_counters_are_shown_in_the_order_of_a_wake_without_zeros(site: MaintainerSite) -> None:
    counters = {
        "usd": 0.4,
        "notices_dropped": 2.0,
        "wakes": 3.0,
        "failures": 0.0,
        "plans": 2.0,
        "missed": 1.0,
        "odd_one": 1.0,
    }
    await site.plane.send_maintainer_heartbeat(maintainer.status(counters=counters))
    site.web.clock.push(2)
    facts = parsed(await site.admin.get("/maintainer")).one("dl.rule-above").facts()
    assert list(facts.items()) == [
        ("wakes", "3"),
        ("plans", "2"),
        ("effect missed", "1"),
        ("notices dropped", "2"),
        ("dollars", "$0.40"),
        ("odd one", "1"),
    ]


async def test_texts_that_contain_json_are_expanded(site: MaintainerSite) -> None:
    opening = '{"woken_by":[],"mode":"auto"}\nfleet_report: {"pools":[{"nodes":3}]}'
    transcript = maintainer.TranscriptBuilder()
    transcript.add("opened", {"run": "run-1", "model": "m", "is_simulated": True, "system": "x {y}"}, wake="")
    transcript.add("request", {"turn": 1, "messages": [{"role": "user", "parts": [{"said": opening}]}]})
    transcript.add(
        "tool", {"turn": 1, "name": "fleet_report", "arguments": {}, "result": '{"pools": [], "troubles": 7}'}
    )
    transcript.add("note", {"pool": "", "text": "{not json", "words": "a {b} c", "decision": None})
    transcript.add(
        "tool", {"turn": 2, "name": "deep", "arguments": {}, "result": '{"a":' * 50_000 + "1" + "}" * 50_000}
    )
    await maintainer.keep(site.plane, tuple(transcript.entries))
    page = parsed(await site.admin.get("/maintainer/transcript"))
    request, tool, note, *_ = [step.one("pre").text for step in page.all(".step")]
    assert '"fleet_report": { "pools": [ { "nodes": 3 } ] }' in request
    assert json.loads(tool)["result"] == {"pools": [], "troubles": 7}
    assert (json.loads(note)["text"], json.loads(note)["words"]) == ("{not json", "a {b} c")
    rows = (await site.admin.get("/maintainer/transcript.json")).json()
    assert any(json.dumps(opening)[1:-1] in row["body"] for row in rows), "the file has the exact text"


async def test_transcript_pages_stay_in_their_chain_and_verify_it(site: MaintainerSite) -> None:
    chain = await maintainer.keep(site.plane, maintainer.transcript(wakes=40))
    wake = parsed(await site.admin.get("/maintainer")).all(".wake")[0]
    assert wake.one(".wake-title").text.endswith("in us")
    (verdict,) = (finding for finding in wake.all(".step") if finding.has(".findings"))
    assert (verdict["data-level"], verdict.one(".findings").one("code").text) == ("warn", "distance")
    assert verdict.one(".findings").one("bdi").numbers == [4, 2]
    first = parsed(await site.admin.get("/maintainer/transcript"))
    assert (first.one(".chain-line")["data-level"], first.one(".chain-line").all("span")[0].numbers[:2]) == (
        "good",
        [122, 321],
    )
    newer = maintainer.transcript(wakes=1, text="a later one")
    await maintainer.keep(site.plane, newer)
    second = parsed(await site.admin.get(first.one("a[rel=next]")["href"]))
    line = second.one(".chain-line")
    assert line.one("code").text == chain[:12], "pages stay in their transcript even if there is a newer one"
    assert (line["data-level"], line.all("span")[0].numbers[:2]) == ("good", [0, 121])
    assert not second.has("a[rel=next]")
    page = parsed(await site.admin.get(f"/maintainer/transcript?chain={chain}&wake=w-00000007"))
    assert len(page.all(".step")) == 8
    rows = (await site.admin.get(f"/maintainer/transcript.json?chain={chain}&wake=w-00000007")).json()
    assert [row["kind"] for row in rows][-1] == "wake"
    csv = (await site.admin.get(f"/maintainer/transcript.csv?chain={chain}")).text
    assert len(csv.splitlines()) == 201


async def test_texts_of_the_maintainer_stay_text(site: MaintainerSite) -> None:
    await maintainer.keep(site.plane, maintainer.transcript(text=HOSTILE))
    proposal = await maintainer.propose(site.plane, POOL, 5, reason=HOSTILE)
    await site.plane.hand_over(HOSTILE, actor=maintainer.AGENT, key="n", reason=HOSTILE)
    await site.plane.send_maintainer_heartbeat(
        maintainer.status(
            model=HOSTILE,
            problems=(problem_record("journal", "", error=HOSTILE),),
            last_signals=(HOSTILE,),
            last_wake=HOSTILE,
        )
    )
    await site.plane.kill_switch(KillScope.AGENTS, actor=maintainer.AGENT, key="k", reason=HOSTILE)
    site.web.clock.push(2)
    for path in (
        "/maintainer",
        "/maintainer/state",
        "/maintainer/transcript",
        f"/maintainer/proposals/{proposal.plan.id}",
    ):
        page = (await site.admin.get(path)).text
        assert "&lt;script&gt;alert(1)" in page, path
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&amp;49" not in page
    odd = await site.admin.get("/maintainer/transcript", params={"wake": HOSTILE})
    assert "<script>alert" not in odd.text


async def test_the_api_shows_and_decides_proposals(site: MaintainerSite) -> None:
    chain = await maintainer.keep(site.plane, maintainer.transcript())
    yes = await maintainer.propose(site.plane, POOL, 5)
    token_response = await site.admin.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
    async with site.web.client() as program:
        program.headers["authorization"] = f"Bearer {shown_secret(token_response)}"
        view = (await program.get("/api/v1/maintainer")).json()
        assert (view["mode"], view["status"]["is_simulated"]) == ("propose", True)
        items = (await program.get("/api/v1/maintainer/proposals")).json()["items"]
        assert [(item["state"], item["plan"]["target"]) for item in items] == [("waiting", 5)]
        path = f"/api/v1/maintainer/proposals/{yes.plan.id}"
        assert (await program.get(path)).json()["plan"]["launches"] == 3
        assert (await program.post(f"{path}/approve", json={"reason": "fine"})).status_code == 422, "without a key"
        headers = {"idempotency-key": "one"}
        first = await program.post(f"{path}/approve", json={"reason": "fine"}, headers=headers)
        again = await program.post(f"{path}/approve", json={"reason": "fine"}, headers=headers)
        assert (first.status_code, first.json()) == (200, again.json())
        no = await program.post(f"{path}/reject", json={"reason": "no"}, headers={"idempotency-key": "two"})
        assert no.status_code == 409
        mode = await program.put(
            "/api/v1/maintainer/mode", json={"mode": "auto", "reason": "r"}, headers={"idempotency-key": "three"}
        )
        assert mode.json()["kind"] == "maintainer_mode"
        page = (await program.get("/api/v1/maintainer/transcript", params={"limit": 4})).json()
        assert (page["chain"], page["is_whole"], len(page["items"])) == (chain, True, 4)
        params = {"before": page["older"], "chain": chain}
        rest = (await program.get("/api/v1/maintainer/transcript", params=params)).json()
        assert (len(rest["items"]), rest["older"]) == (6, None)
        assert (await program.get("/api/v1/maintainer/proposals/nothing")).status_code == 404


async def test_after_the_fleet_service_is_lost_the_last_state_stays(site: MaintainerSite) -> None:
    await site.admin.get("/maintainer")
    site.fleet.parts.maintainer_api.view = _fails  # type: ignore[method-assign,assignment] # a fault
    site.web.clock.push(2)
    page = parsed(await site.admin.get("/maintainer/state"))
    assert page.has(".notice[data-tone=bad]")
    assert "scripted good" in page.texts("bdi")


def _fails() -> None:
    raise RuntimeError("broken")
