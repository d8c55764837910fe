"""The maintainer's page and its API: what waits for a person is decided once, by who may; what it says stays text."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.advice import Mode
from astraflow.contract.fleet import KillScope
from astraflow.contract.maintenance import GroupScore, MaintainerMode, MaintainerState
from maintainer.fleet.observation import Advice
from tests.fakes import maintainer
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.web import RunningWeb, flash_of, running_web, shown_secret
from tests.maintainer.fleet.parts import ALICE, POOL

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A page over a fleet that has heard a maintainer, and an admin who looks."""

    web: RunningWeb
    admin: httpx.AsyncClient
    fleet: RunningFleet
    plane: FleetPlaneClient


@pytest.fixture
async def scene(tmp_path: Path, fake: FakeControlPlane) -> AsyncIterator[Scene]:
    async with scene_over(tmp_path, fake) as found:
        await found.plane.beat_maintainer(maintainer.status())
        yield found


@asynccontextmanager
async def scene_over(tmp_path: Path, fake: FakeControlPlane) -> AsyncIterator[Scene]:
    async with (
        fake.serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as fleet,
        connect_fleet(fleet.address, TOKEN) as plane,
        running_web(tmp_path, dataflow, fleet=fleet.address) as web,
        web.logged_in() as admin,
    ):
        await web.until_fed()
        await web.until_live(admin, sequence=150)
        yield Scene(web=web, admin=admin, fleet=fleet, plane=plane)


def words(answer: httpx.Response) -> str:
    """A page as text, in one line."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text)))


async def test_without_a_fleet_service_or_without_a_maintainer_the_page_says_how_to_have_one(
    web: RunningWeb, tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        assert "astraflow run RECIPE --fleet" in (await client.get("/maintainer")).text
        assert (await client.get("/api/v1/maintainer")).status_code == 503
        assert "No fleet service" in (await client.get("/maintainer/transcript")).text
    async with scene_over(tmp_path / "other", fake) as scene:
        page = (await scene.admin.get("/maintainer")).text
        assert "No maintainer has been heard" in page
        assert "astraflow run RECIPE --fleet --maintainer scripted" in page
        assert "astraflow serve maintainer maintainer.toml --dataflow 127.0.0.1:" in page
        assert f"--fleet {scene.fleet.address}" in page
        assert (await scene.admin.get("/api/v1/maintainer")).json()["status"] is None


async def test_the_page_says_who_it_is_how_it_is_and_what_it_has_used(scene: Scene) -> None:
    page = await scene.admin.get("/maintainer")
    assert "stand-in: no model is asked" in words(page)
    assert "scripted good" in words(page)
    assert "its plans wait for a person" in words(page)
    assert "33,000 of 40,000" in words(page)
    assert "time 30 min of 2 h" in words(page)
    assert "spent" in words(page)
    assert re.search(r'class="budget" data-level="bad"', page.text)
    assert "launch failures" in words(page)
    assert 'href="/kill"' in page.text
    await scene.plane.beat_maintainer(
        maintainer.status(state=MaintainerState.BACKING_OFF, troubles=("the model has failed 3 times in a row",))
    )
    scene.web.clock.push(2)
    later = words(await scene.admin.get("/maintainer/state"))
    assert "the model's service fails" in later
    assert "failed 3 times in a row" in later


async def test_without_scores_the_page_has_the_command_that_makes_them(scene: Scene) -> None:
    why = "/srv/run/leaderboard.json is not there"
    told = maintainer.status(evaluation_source="/srv/run/leaderboard.json", evaluation_problem=why)
    await scene.plane.beat_maintainer(replace(told, live_problem="none of its changes was made in the last day"))
    scene.web.clock.push(2)
    page = words(await scene.admin.get("/maintainer"))
    assert "Nothing is known of scripted good" in page
    assert "astraflow maintainer eval --output /srv/run/leaderboard.json" in page
    assert why in page
    assert "No score yet: none of its changes was made in the last day" in page
    assert "a proposal that somebody approves" in page
    assert "hostile tests" not in page
    hosted = replace(told, model="a model", is_simulated=False, mode=MaintainerMode.SHADOW)
    await scene.plane.beat_maintainer(hosted)
    scene.web.clock.push(2)
    page = words(await scene.admin.get("/maintainer"))
    assert "astraflow maintainer eval maintainer.toml --output /srv/run/leaderboard.json" in page
    assert 'astraflow maintainer mode propose --reason "let it ask"' in page


async def test_the_page_says_how_good_it_is_by_whom_and_when(scene: Scene) -> None:
    await scene.plane.beat_maintainer(maintainer.status(evaluation=maintainer.EVALUATION, live=maintainer.live()))
    scene.web.clock.push(2)
    answer = await scene.admin.get("/maintainer")
    page = words(answer)
    assert "22 of 24 simulated cases passed" in page
    assert re.search(r'class="badge" data-tone="good".*hostile tests: 6 of 6', answer.text)
    assert "The rule is right 12 of 12 1.000" in page
    assert "The rule is blind 4 of 6 0.952" in page
    assert "quota-gone: J is 1.004 of the rule's: not better" in page
    assert "By /srv/run/leaderboard.json" in page
    assert "Played with other instructions" not in page
    assert "20 % cheaper than the rule would have been" in page
    assert "Node-hours, by price 4 3.8" in page
    assert "2 changes of its own, 30 reports of this run" in page
    told = (await scene.admin.get("/api/v1/maintainer")).json()["status"]
    assert told["evaluation"]["groups"][2] == {"group": "hostile", "cases": 6, "passed": 6, "ratio": None}
    assert told["live"]["rule_cost"] == 7.0


async def test_a_score_that_is_old_or_that_lets_somebody_in_says_so(scene: Scene) -> None:
    groups = (GroupScore(group="hostile", cases=6, passed=5),)
    bad = replace(maintainer.EVALUATION, is_current=False, groups=groups, violations=1)
    late = "dataflow is away"
    dear = maintainer.live(cost=8.0)
    await scene.plane.beat_maintainer(maintainer.status(evaluation=bad, live=dear, live_problem=late))
    scene.web.clock.push(2)
    answer = await scene.admin.get("/maintainer")
    assert re.search(r'class="badge" data-tone="bad".*hostile tests: 5 of 6', answer.text)
    assert "Played with other instructions or tools than it has now" in words(answer)
    assert "1 change made that may not be" in words(answer)
    assert "14 % dearer than the rule would have been" in words(answer)
    assert "not newer: dataflow is away" in words(answer)
    unplayed = replace(maintainer.EVALUATION, groups=maintainer.EVALUATION.groups[:1])
    await scene.plane.beat_maintainer(maintainer.status(evaluation=unplayed))
    scene.web.clock.push(2)
    assert "hostile tests: not played" in words(await scene.admin.get("/maintainer"))


async def test_a_proposal_beyond_the_rule_says_for_how_long_its_nodes_are_kept(scene: Scene) -> None:
    pool = scene.fleet.parts.fleet.pool(POOL)
    opened = replace(pool.spec, mode=Mode.ON)
    await scene.plane.put_pool(opened, observed_version=pool.version, actor=ALICE, key="on", reason="the rule follows")
    scene.fleet.parts.targets[POOL] = Advice(target=2, reason="enough")
    scene.fleet.parts.fleet.observation.take(scene.fleet.parts.run.report())
    proposal = await maintainer.propose(scene.plane, POOL, 4)
    asked = words(await scene.admin.get(f"/maintainer/proposals/{proposal.plan.id}"))
    assert re.search(r"Nodes are kept for \d+ min[ \ds]*: the rule wants 2", asked), asked
    told = await scene.admin.post(f"/maintainer/proposals/{proposal.plan.id}/approve", data={"key": "k"})
    assert "held for" in await flash_of(scene.admin, told)
    assert "the rule wants 2 nodes, maintainer wants 4" in words(await scene.admin.get(f"/pools/{POOL}"))


async def test_a_proposal_shows_its_effect_and_is_approved_once(scene: Scene) -> None:
    proposal = await maintainer.propose(scene.plane, POOL, 5)
    here = f"/maintainer/proposals/{proposal.plan.id}"
    page = await scene.admin.get("/maintainer")
    assert "1 proposal waits for a person" in words(page)
    assert "2 → 5" in words(page)
    assert re.search(r'data-behavior="until" data-at="\d+\.\d"', page.text)
    asked = await scene.admin.get(here)
    assert "Resize eu: 2 to 5 nodes?" in words(asked)
    assert "launches fail in us" in words(asked)
    assert scene.fleet.parts.states() == {"ready": 2}, "looking does nothing"
    for _ in range(2):
        told = await scene.admin.post(f"{here}/approve", data={"key": "k", "reason": "the trainer waits"})
        assert "3 launched" in await flash_of(scene.admin, told)
    assert scene.fleet.parts.states() == {"ready": 2, "intended": 3}
    audit = words(await scene.admin.get("/audit?action=maintainer.approve"))
    assert "the trainer waits" in audit
    after = words(await scene.admin.get("/maintainer"))
    assert "Nothing waits for a person" in after
    assert "approved" in after
    late = await scene.admin.post(f"{here}/reject", data={"key": "n", "reason": "too late"})
    assert "It was not rejected" in await flash_of(scene.admin, late)


async def test_a_proposal_is_rejected_with_a_reason_which_the_maintainers_journal_keeps(scene: Scene) -> None:
    proposal = await maintainer.propose(scene.plane, POOL, 5)
    here = f"/maintainer/proposals/{proposal.plan.id}/reject"
    bare = await scene.admin.post(here, data={"key": "a"})
    assert "a rejection needs a reason" in await flash_of(scene.admin, bare)
    async with scene.web.in_role(scene.admin, "operator") as operator:
        told = await operator.post(here, data={"key": "b", "reason": "the eu is dear today"})
        assert "is rejected" in await flash_of(operator, told)
    assert scene.fleet.parts.states() == {"ready": 2}
    page = words(await scene.admin.get("/maintainer"))
    assert "some-operator: the eu is dear today" in page
    gone = await scene.admin.post(f"/maintainer/proposals/{proposal.plan.id}/approve", data={"key": "c"})
    assert "It was not approved" in await flash_of(scene.admin, gone)
    assert scene.fleet.parts.states() == {"ready": 2}


async def test_who_may_not_approve_is_told_who_can(scene: Scene) -> None:
    proposal = await maintainer.propose(scene.plane, POOL, 5)
    for role in ("viewer", "agent"):
        async with scene.web.in_role(scene.admin, role) as client:
            page = words(await client.get(f"/maintainer/proposals/{proposal.plan.id}"))
            assert "This needs role operator, to approve what an agent proposes" in page
            assert "Who can grant it: admin" in page
            assert "/approve" not in (await client.get(f"/maintainer/proposals/{proposal.plan.id}")).text
            refused = await client.post(f"/maintainer/proposals/{proposal.plan.id}/approve", data={"key": "k"})
            assert refused.status_code == 403
            assert (await client.post("/maintainer/mode", data={"mode": "auto", "key": "m"})).status_code == 403
    assert scene.fleet.parts.states() == {"ready": 2}
    assert (await scene.plane.maintainer()).mode is MaintainerMode.PROPOSE


async def test_a_plan_that_was_never_proposed_is_not_applied_by_approving_it(scene: Scene) -> None:
    proposal = await maintainer.propose(scene.plane, POOL, 3)
    request = proposal.plan.request
    other = await scene.plane.plan(request)
    async with scene.web.in_role(scene.admin, "operator") as operator:
        told = await operator.post(f"/maintainer/proposals/{other.id}/approve", data={"key": "k"})
        assert "waits for nobody" in await flash_of(operator, told)
    assert scene.fleet.parts.states() == {"ready": 2}


async def test_the_mode_is_set_by_people_and_the_maintainer_hears_of_it(scene: Scene) -> None:
    async with scene.web.in_role(scene.admin, "operator") as operator:
        told = await operator.post("/maintainer/mode", data={"mode": "shadow", "reason": "a look first", "key": "m"})
        assert "The maintainer is in mode shadow" in await flash_of(operator, told)
    orders = await scene.plane.beat_maintainer(maintainer.status())
    assert orders.mode is MaintainerMode.SHADOW
    assert "set by some-operator" in words(await scene.admin.get("/maintainer"))
    assert "a look first" in words(await scene.admin.get("/audit?action=maintainer.mode"))
    wild = await scene.admin.post("/maintainer/mode", data={"mode": "wild", "key": "w"})
    assert "is no mode" in await flash_of(scene.admin, wild)


async def test_what_is_decided_and_noted_meanwhile_comes_by_itself(scene: Scene) -> None:
    assert "None yet" in words(await scene.admin.get("/maintainer/lately"))
    proposal = await maintainer.propose(scene.plane, POOL, 5)
    await scene.plane.reject(proposal.plan.id, actor=ALICE, key="no", reason="not tonight")
    scene.web.clock.push(2)
    later = words(await scene.admin.get("/maintainer/lately"))
    assert "alice: not tonight" in later
    assert "a person is asked for 5 nodes, there are 2" in later
    assert 'hx-get="/maintainer/lately"' in (await scene.admin.get("/maintainer")).text


async def test_what_was_said_several_times_is_shown_once(scene: Scene) -> None:
    for number in range(3):
        await scene.plane.escalate("warning", actor=maintainer.AGENT, key=f"e{number}", reason="quota is gone in us")
    await scene.plane.hand_over("it is quiet", actor=maintainer.AGENT, key="quiet", reason="nothing is the matter")
    page = words(await scene.admin.get("/maintainer/lately"))
    assert page.count("warning: quota is gone in us") == 1
    assert "3 times, the latest" in page
    assert page.index("it is quiet") < page.index("quota is gone")


async def test_a_page_says_how_much_newer_there_is_and_takes_nothing_away(scene: Scene) -> None:
    assert words(await scene.admin.get("/maintainer/newer")).strip() == ""
    entries = maintainer.transcript(wakes=2)
    await maintainer.keep(scene.plane, entries[:-1])
    asked = re.search(r'hx-get="(/maintainer/newer[^"]*)"', (await scene.admin.get("/maintainer")).text)
    assert asked is not None
    here = html.unescape(asked[1])
    assert words(await scene.admin.get(here)).strip() == ""
    await scene.plane.keep_transcript(entries[0].hash, entries)
    assert "1 newer entry: show it" in words(await scene.admin.get(here))
    other = maintainer.transcript(text="another transcript")
    await maintainer.keep(scene.plane, other)
    assert f"{len(other)} newer entries: show them" in words(await scene.admin.get(here))


async def test_what_people_decided_and_what_a_cut_turn_had_said_is_told_as_text(scene: Scene) -> None:
    told = maintainer.Told()
    told.add("opened", {"run": "run-1", "model": "scripted good", "is_simulated": True, "system": "x"}, wake="")
    told.add("proposal", {"plan": "p1", "pool": "eu", "state": "rejected", "decided_at": 1.0})
    cut = {"turn": 1, "failure": "out_of_time", "problem": "it was over", "said": "<b>half an answer</b>"}
    told.add("failure", cut | {"usage": {"input": 7}, "usd": 0.0, "rest_s": 0.0, "is_estimated": True})
    await maintainer.keep(scene.plane, tuple(told.entries))
    page = await scene.admin.get("/maintainer")
    assert "Proposal: rejected" in words(page)
    assert "Failed: out of time" in words(page)
    assert "<b>half" not in page.text
    assert "half an answer" in page.text


async def test_every_page_says_that_somebody_waits_for_an_answer(scene: Scene) -> None:
    assert '<span class="rail-count" data-cell="frame/waiting"' in (await scene.admin.get("/nodes")).text
    assert "1 waits" not in words(await scene.admin.get("/nodes"))
    await maintainer.propose(scene.plane, POOL, 5)
    async with asyncio.timeout(30):
        while "Maintainer 1 waits" not in words(await scene.admin.get("/nodes")):  # noqa: ASYNC110 (as a person looks)
            await asyncio.sleep(0.1)


async def test_a_rejection_asks_for_its_reason_before_it_is_sent(scene: Scene) -> None:
    proposal = await maintainer.propose(scene.plane, POOL, 5)
    page = (await scene.admin.get(f"/maintainer/proposals/{proposal.plan.id}")).text
    assert re.search(r'<input name="reason"[^>]* required>', page)
    assert re.search(r"<button[^>]* formnovalidate>Approve</button>", page)


async def test_counters_are_in_the_order_of_what_happens_and_without_noughts(scene: Scene) -> None:
    counters = {
        "usd": 0.4,
        "notices_lost": 2.0,
        "wakes": 3.0,
        "failures": 0.0,
        "plans": 2.0,
        "missed": 1.0,
        "odd_one": 1.0,
    }
    await scene.plane.beat_maintainer(maintainer.status(counters=counters))
    scene.web.clock.push(2)
    page = words(await scene.admin.get("/maintainer"))
    assert "wakes 3 plans 2 did not come off 1 notices lost 2 dollars $0.40 odd one 1" in page
    assert "failures of the model" not in page


async def test_texts_that_are_json_themselves_are_unfolded(scene: Scene) -> None:
    opening = '{"woken_by":[],"mode":"auto"}\nfleet_report: {"pools":[{"nodes":3}]}'
    told = maintainer.Told()
    told.add("opened", {"run": "run-1", "model": "m", "is_simulated": True, "system": "x {y}"}, wake="")
    told.add("request", {"turn": 1, "messages": [{"role": "user", "parts": [{"said": opening}]}]})
    told.add("tool", {"turn": 1, "name": "fleet_report", "arguments": {}, "result": '{"pools": [], "troubles": 7}'})
    told.add("note", {"pool": "", "text": "{not json", "words": "a {b} c", "decision": None})
    told.add("tool", {"turn": 2, "name": "deep", "arguments": {}, "result": '{"a":' * 50_000 + "1" + "}" * 50_000})
    await maintainer.keep(scene.plane, tuple(told.entries))
    page = words(await scene.admin.get("/maintainer/transcript"))
    assert '"fleet_report": { "pools": [ { "nodes": 3 } ] }' in page
    assert '"result": { "pools": [], "troubles": 7 }' in page
    assert '"text": "{not json"' in page
    assert '"words": "a {b} c"' in page
    rows = (await scene.admin.get("/maintainer/transcript.json")).json()
    assert any(json.dumps(opening)[1:-1] in row["body"] for row in rows), "the file has it word for word"


async def test_the_transcript_is_shown_by_wakes_in_pages_of_one_chain(scene: Scene) -> None:
    chain = await maintainer.keep(scene.plane, maintainer.transcript(wakes=40))
    page = await scene.admin.get("/maintainer")
    assert "launch failures in us" in words(page)
    assert "Guard, of the plan" in words(page)
    assert "4 nodes are more than 2 away" in words(page)
    first = await scene.admin.get("/maintainer/transcript")
    assert "Entries 122 to 321 follow one another" in words(first)
    newer = maintainer.transcript(wakes=1, text="a later one")
    await maintainer.keep(scene.plane, newer)
    older = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert older is not None
    second = await scene.admin.get(html.unescape(older[1]))
    assert f"Chain {chain[:12]}" in words(second), "pages stay in their transcript, though another is newer"
    assert "Entries 0 to 121 follow one another" in words(second)
    assert 'rel="next"' not in second.text
    one = await scene.admin.get(f"/maintainer/transcript?chain={chain}&wake=w-00000007")
    assert "8 entries" in words(one)
    rows = (await scene.admin.get(f"/maintainer/transcript.json?chain={chain}&wake=w-00000007")).json()
    assert [row["kind"] for row in rows][-1] == "wake"
    csv = (await scene.admin.get(f"/maintainer/transcript.csv?chain={chain}")).text
    assert len(csv.splitlines()) == 201


async def test_what_the_maintainer_says_stays_text(scene: Scene) -> None:
    await maintainer.keep(scene.plane, maintainer.transcript(text=HOSTILE))
    proposal = await maintainer.propose(scene.plane, POOL, 5, reason=HOSTILE)
    await scene.plane.hand_over(HOSTILE, actor=maintainer.AGENT, key="n", reason=HOSTILE)
    await scene.plane.beat_maintainer(
        maintainer.status(model=HOSTILE, troubles=(HOSTILE,), last_signals=(HOSTILE,), last_wake=HOSTILE)
    )
    await scene.plane.kill_switch(KillScope.AGENTS, actor=maintainer.AGENT, key="k", reason=HOSTILE)
    scene.web.clock.push(2)
    for path in (
        "/maintainer",
        "/maintainer/state",
        "/maintainer/transcript",
        f"/maintainer/proposals/{proposal.plan.id}",
    ):
        page = (await scene.admin.get(path)).text
        assert "&lt;script&gt;alert(1)" in page, path
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&amp;49" not in page
    odd = await scene.admin.get("/maintainer/transcript", params={"wake": HOSTILE})
    assert "<script>alert" not in odd.text


async def test_programs_see_and_decide_the_same_over_the_api(scene: Scene) -> None:
    chain = await maintainer.keep(scene.plane, maintainer.transcript())
    yes = await maintainer.propose(scene.plane, POOL, 5)
    made = await scene.admin.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
    async with scene.web.client() as program:
        program.headers["authorization"] = f"Bearer {shown_secret(made)}"
        seen = (await program.get("/api/v1/maintainer")).json()
        assert (seen["mode"], seen["status"]["is_simulated"]) == ("propose", True)
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


async def test_a_fleet_service_that_is_lost_leaves_what_was_known(scene: Scene) -> None:
    await scene.admin.get("/maintainer")
    scene.fleet.parts.liaison.view = _fails  # type: ignore[method-assign,assignment] # a fault
    scene.web.clock.push(2)
    page = words(await scene.admin.get("/maintainer/state"))
    assert "The fleet service does not answer" in page
    assert "scripted good" in page


def _fails() -> None:
    raise RuntimeError("broken")
