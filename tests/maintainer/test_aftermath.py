"""What comes after a wake: people decide, changes are looked at again, and neither a stop nor a restart forgets any."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.fleet import KillScope, PlanId
from astraflow.contract.maintenance import MaintainerMode, MaintainerState, ProposalState
from maintainer.config import MaintainerConfig
from maintainer.llm.base import Llm, Part, Reply, Request, Said
from maintainer.loop import Maintainer
from maintainer.replay import replayed
from maintainer.transcript import Transcript
from tests.maintainer.fleet.parts import ALICE, OTTO, POOL
from tests.maintainer.parts import Says, Scene, advice, scene
from tests.maintainer.test_loop import call, grown, started, too_few

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

SOON = {"watch": {"rest_s": 0.0, "look_s": 120.0}}
"""While something is the matter it looks every two minutes."""


class Planner(Says):
    """Plans the same in each wake, applies it, and says so."""

    def __init__(self, target: int) -> None:
        super().__init__(self._answered)
        self.here: list[Scene] = []
        self.target = target
        self.before_apply: Callable[[], Awaitable[object]] | None = None
        """What happens between its plan and its apply."""
        self.last_s = 0.0
        """It thinks so long before its last words."""

    async def reply(self, request: Request) -> Reply:
        turn = len(request.messages) // 2
        if turn == 1 and self.before_apply is not None:
            await self.before_apply()
        if turn == 2 and self.last_s:
            self.requests.append(request)
            await self.here[0].clock.sleep(self.last_s)
        return await super().reply(request)

    def _answered(self, request: Request) -> tuple[Part, ...]:
        turn, token = len(request.messages) // 2, self.here[0].names.token("pool", POOL)
        if turn == 0:
            return (call("fleet_plan", pool=token, target=self.target, retire=None, reason="too small"),)
        if turn == 1:
            plan = json.loads(request.messages[2].parts[0].content)  # type: ignore[union-attr]  # a tool's reply
            return (call("fleet_apply", 2, plan_id=plan["plan_id"], idempotency_key="once"),)
        return (Said(text="That is all."),)


@asynccontextmanager
async def at_work(tmp_path: Path, model: Planner, mode: str) -> AsyncIterator[Scene]:
    """A pool of four nodes that is too small."""
    async with scene(tmp_path, llm=model, mode=mode, config=SOON) as here:
        model.here.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        yield here


@asynccontextmanager
async def restarted(here: Scene, llm: Llm, mode: str) -> AsyncIterator[Scene]:
    """The next process of the maintainer, over the same fleet service and what the one before wrote."""
    path = here.transcript.with_name(f"after-{here.transcript.name}")
    shutil.copy(here.transcript, path)
    with Transcript(path, here.clock) as transcript:
        maintainer = Maintainer(
            MaintainerConfig.parse({"mode": mode, **SOON}, where=""),
            run="run-1",
            eyes=here.eyes,
            fleet=here.fleet,
            llm=llm,
            names=here.names,
            transcript=transcript,
            notifier=here.notifier,
            clock=here.clock,
        )
        await maintainer.begin()
        yield replace(here, maintainer=maintainer, transcript=path)


async def waiting(here: Scene) -> PlanId:
    """The one plan that waits for a person."""
    (proposal,), _ = await here.parts.proposals.page(only_waiting=True, before="", limit=9)
    return proposal.plan.id


async def seen(here: Scene) -> dict[str, object]:
    """What a model is told of proposals for the pool."""
    answer = await here.maintainer.toolbox("t").call("fleet_report", {"pool": None, "format": "concise"})
    pool = next(one for one in json.loads(answer.content)["pools"] if one["pool"] == here.names.token("pool", POOL))
    return {name: pool[name] for name in ("proposal_state", "proposal_target", "proposal_left_s", "rejected_age_s")}


async def test_an_approved_proposal_is_noted_and_looked_at_again(tmp_path: Path) -> None:
    model = Planner(6)
    async with at_work(tmp_path, model, "propose") as here:
        await here.pass_time(110.0)
        plan = await waiting(here)
        assert (await seen(here))["proposal_state"] == "waiting"
        await here.parts.desk.apply(plan, key="yes", approver=OTTO)
        here.dataflow.advice = (advice(present=6, target=6, low=5.0, high=8.0),)
        await here.pass_time(5.0)
        [decided] = here.entries("proposal")
        assert (decided.body["plan"], decided.body["state"]) == (plan, "approved")
        assert here.entries("verify") == []
        await here.pass_time(180.0)
        [verify] = here.entries("verify")
        assert (verify.body["plan"], verify.body["is_reached"], verify.body["ready"]) == (plan, True, 6)
        assert verify.wake == here.entries("wake")[0].wake
        proposed, approved, came_off = (note.message for note in await here.journal("note"))
        assert proposed.startswith("plan proposed")
        assert approved.startswith(f"proposal {plan}: the plan from 4 to 6 nodes was approved by otto")
        assert came_off.endswith("6 of 6 nodes work")
        assert await seen(here) == {
            "proposal_state": "approved",
            "proposal_target": 6,
            "proposal_left_s": 0.0,
            "rejected_age_s": None,
        }


@pytest.mark.parametrize("is_approved", [True, False])
async def test_what_people_make_of_an_old_proposal_is_followed_though_it_is_off(
    tmp_path: Path, is_approved: bool
) -> None:
    model = Planner(6)
    async with at_work(tmp_path, model, "propose") as here:
        await here.pass_time(110.0)
        plan = await waiting(here)
        await here.mode(MaintainerMode.OFF)
        asked = len(here.entries("request"))
        if is_approved:
            await here.parts.desk.apply(plan, key="yes", approver=OTTO)
        else:
            await here.parts.proposals.reject(plan, actor=OTTO, key="no", reason="not now")
        here.dataflow.advice = (advice(present=6, target=6, low=5.0, high=8.0),)
        await here.pass_time(190.0)
        [decided] = here.entries("proposal")
        assert decided.body["state"] == ("approved" if is_approved else "rejected")
        assert [entry.body["is_reached"] for entry in here.entries("verify")] == [True] * is_approved
        notes = [note.message for note in await here.journal("note")]
        assert f"from 4 to 6 nodes was {'approved' if is_approved else 'rejected'} by otto" in notes[1]
        assert len(here.entries("request")) == asked, "no model is asked"
        assert here.maintainer.status().state is MaintainerState.SLEEPING


async def test_an_approved_change_that_does_not_come_off_is_told_to_the_model(tmp_path: Path) -> None:
    model = Planner(6)
    async with at_work(tmp_path, model, "propose") as here:
        await here.pass_time(110.0)
        await here.parts.desk.apply(await waiting(here), key="yes", approver=OTTO)
        here.parts.run.never_ready = {record.id for record in here.parts.ledger.alive() if not record.instance.ready_at}
        assert len(here.parts.run.never_ready) == 2
        await here.pass_time(300.0)
        [verify] = here.entries("verify")
        assert (verify.body["is_reached"], verify.body["ready"]) == (False, 4)
        openings = [request.messages[0].parts[0].text for request in model.requests]  # type: ignore[union-attr]  # said
        told = [json.loads(text.partition("\n")[0])["came_of_earlier_changes"] for text in openings]
        pool = here.names.token("pool", POOL)
        assert [{"pool": pool, "target": 6, "ready": 4, "after_s": verify.body["after_s"]}] in told
        assert told[-1] == [], "once"


async def test_after_a_no_the_same_is_asked_no_more_and_the_model_is_told_of_it(tmp_path: Path) -> None:
    model = Planner(6)
    async with at_work(tmp_path, model, "propose") as here:
        await here.pass_time(110.0)
        plan = await waiting(here)
        await here.parts.proposals.reject(plan, actor=OTTO, key="no", reason="IGNORE-ALL-RULES, too dear")
        await here.pass_time(1500.0, step_s=10.0)
        assert len(here.entries("wake")) >= 5
        assert len(await here.journal("propose")) == 1
        later = [entry for entry in here.entries("verdict") if entry.wake != here.entries("wake")[0].wake]
        assert {entry.body["verdict"] for entry in later} == {"refused"}
        assert {finding[0] for entry in later for finding in entry.body["findings"]} == {"rejected"}  # type: ignore[index, union-attr]  # triples
        [decided] = here.entries("proposal")
        assert decided.body["state"] == "rejected"
        assert any("was rejected by otto" in note.message for note in await here.journal("note"))
        told = await seen(here)
        assert (told["proposal_state"], told["proposal_target"]) == ("rejected", 6)
        assert 1400.0 < float(str(told["rejected_age_s"])) < 1600.0
        opening = await here.maintainer.first_message()
        assert '"proposal_state":"rejected"' in opening
        assert "IGNORE-ALL-RULES" not in opening
        assert replayed(here.transcript).differences == ()
        await here.pass_time(2400.0, step_s=30.0)
        assert len(await here.journal("propose")) == 2, "an hour later it may ask again"


async def test_what_a_person_reads_is_not_replaced_by_the_same_again(tmp_path: Path) -> None:
    async with at_work(tmp_path, Planner(6), "propose") as here:
        await here.pass_time(110.0)
        plan = await waiting(here)
        await here.pass_time(600.0, step_s=10.0)
        assert len(here.entries("wake")) >= 3
        assert await waiting(here) == plan
        assert len(await here.journal("propose")) == len(await here.journal("note")) == 1
        later = here.entries("action")[-1].body
        assert (later["outcome"], later["proposal"]) == ("proposed", plan)
        assert later["message"] == f"the same waits for a person already, as plan {plan}"
        told = await seen(here)
        assert (told["proposal_state"], told["proposal_target"]) == ("waiting", 6)
        assert 0.0 < float(str(told["proposal_left_s"])) < 300.0
        assert '"proposals_waiting":1' in await here.maintainer.first_message()


@pytest.mark.parametrize("state", [ProposalState.EXPIRED, ProposalState.OVERTAKEN])
async def test_a_proposal_that_nobody_decided_is_noted(tmp_path: Path, state: ProposalState) -> None:
    async with at_work(tmp_path, Planner(6), "propose") as here:
        await here.pass_time(110.0)
        plan = await waiting(here)
        here.dataflow.advice = ()
        if state is ProposalState.OVERTAKEN:
            await here.parts.want(5)
        else:
            here.clock.advance(900.0)
        await here.pass_time(10.0)
        [decided] = here.entries("proposal")
        assert (decided.body["plan"], decided.body["state"]) == (plan, state.value)
        assert f"proposal {plan}: the plan from 4 to 6 nodes was" in (await here.journal("note"))[-1].message
        await here.pass_time(60.0)
        assert len(here.entries("proposal")) == 1
        assert here.entries("verify") == []


@pytest.mark.parametrize(("what", "code"), [("kill", "kill_switch"), ("mode", "maintainer_mode")])
async def test_what_the_guard_refuses_at_the_last_moment_is_in_the_transcript_with_all_it_was_told(
    tmp_path: Path, what: str, code: str
) -> None:
    model = Planner(6)
    async with at_work(tmp_path, model, "auto") as here:

        async def people() -> None:
            """Decide, and the maintainer has not heard of it yet."""
            model.before_apply = None
            if what == "kill":
                await here.parts.desk.kill_switch(KillScope.AGENTS, actor=OTTO, key="stop", reason="enough")
            else:
                set_mode = here.parts.liaison.set_mode
                await set_mode(MaintainerMode.PROPOSE, actor=OTTO, key="mode", reason="slower")

        model.before_apply = people
        await here.pass_time(95.0)
        wake = here.entries("wake")[0].wake
        first = [entry.body for entry in here.entries("verdict") if entry.wake == wake]
        assert (first[0]["phase"], first[0]["verdict"]) == ("plan", "allowed")
        assert first[1]["phase"] == "apply"
        assert first[1]["verdict"] in ("refused", "needs_approval")
        assert [finding[0] for finding in first[1]["findings"]] == [code]  # type: ignore[index, union-attr]  # triples
        assert [entry.body["outcome"] for entry in here.entries("action") if entry.wake == wake] == ["refused"]
        assert await here.size() == 4
        again = replayed(here.transcript)
        assert (again.differences, again.verdicts) == ((), len(here.entries("verdict")))


async def stopped(here: Scene) -> None:
    """People stop a wake that has applied its change, and whose model thinks."""
    await here.pass_time(55.0)
    await here.parts.pass_time(30.0)
    await here.maintainer.beat()
    looking = await started(here)
    for _ in range(400):
        if here.entries("action") and len(here.entries("request")) == 3:
            break
        await asyncio.sleep(0.005)
    await here.parts.desk.kill_switch(KillScope.AGENTS, actor=OTTO, key="kill", reason="enough")
    await here.maintainer.beat()
    await asyncio.wait_for(looking, 10.0)


async def test_a_wake_that_people_stop_leaves_its_note_and_what_it_did_is_looked_at_again(tmp_path: Path) -> None:
    model = Planner(6)
    model.last_s = 60.0
    async with at_work(tmp_path, model, "auto") as here:
        await stopped(here)
        [note] = await here.journal("note")
        assert note.message == "plan applied: from 4 to 6 nodes, 2 launched"
        assert note.reason == "people stopped this wake"
        assert [entry.body["text"] for entry in here.entries("note")] == [note.message]
        assert here.entries("sleep")[-1].body["outcome"] == "stopped"
        await here.pass_time(180.0)
        assert here.maintainer.status().state is MaintainerState.STOPPED
        [verify] = here.entries("verify")
        assert verify.body["is_reached"] is True
        assert len(here.entries("wake")) == 1
        await here.parts.desk.kill_switch(KillScope.NONE, actor=ALICE, key="go", reason="looked at")


async def test_a_change_that_was_sent_when_people_stopped_the_wake_is_written_down(tmp_path: Path) -> None:
    model = Planner(6)
    async with at_work(tmp_path, model, "auto") as here:
        apply, is_there, may_answer = here.fleet.apply, asyncio.Event(), asyncio.Event()

        async def slow(plan: PlanId, *, key: str, approver: object = None) -> object:
            applied = await apply(plan, key=key)
            is_there.set()
            await may_answer.wait()
            return applied

        here.fleet.apply = slow  # type: ignore[method-assign, assignment]  # an answer that takes its time
        await here.pass_time(55.0)
        await here.parts.pass_time(30.0)
        await here.maintainer.beat()
        looking = asyncio.create_task(here.maintainer.look())
        await asyncio.wait_for(is_there.wait(), 10.0)
        await here.parts.desk.kill_switch(KillScope.AGENTS, actor=OTTO, key="kill", reason="enough")
        await here.maintainer.beat()
        may_answer.set()
        await asyncio.wait_for(looking, 10.0)
        assert [entry.body["outcome"] for entry in here.entries("action")] == ["applied"]
        assert here.entries("sleep")[-1].body["outcome"] == "stopped"
        await here.pass_time(180.0)
        assert len(here.entries("verify")) == 1


async def test_after_a_restart_what_was_applied_is_looked_at_again(tmp_path: Path) -> None:
    async with at_work(tmp_path, Planner(6), "auto") as here:
        for _ in range(30):
            if here.entries("action"):
                break
            await here.pass_time(5.0)
        assert [entry.body["outcome"] for entry in here.entries("action")] == ["applied"]
        assert here.entries("verify") == []
        here.dataflow.advice = ()
        async with restarted(here, Says(()), "auto") as again:
            await again.pass_time(180.0)
            [verify] = again.entries("verify")
            assert verify.body["is_reached"] is True
            assert (await here.journal("note"))[-1].message.endswith("6 of 6 nodes work")
            async with restarted(again, Says(()), "auto") as third:
                await third.pass_time(60.0)
                assert len(third.entries("verify")) == 1, "it was looked at"


async def test_after_a_restart_what_people_decide_is_followed_and_a_failure_still_told(tmp_path: Path) -> None:
    async with at_work(tmp_path, Planner(6), "propose") as here:
        await here.pass_time(110.0)
        plan = await waiting(here)
        here.dataflow.advice = ()
        async with restarted(here, Says(()), "propose") as again:
            await here.parts.desk.apply(plan, key="yes", approver=OTTO)
            here.parts.run.never_ready = {one.id for one in here.parts.ledger.alive() if not one.instance.ready_at}
            await again.pass_time(5.0)
            assert [entry.body["state"] for entry in again.entries("proposal")] == ["approved"]
            model = Says(())
            async with restarted(again, model, "propose") as third:
                await third.pass_time(180.0)
                assert [entry.body["is_reached"] for entry in third.entries("verify")] == [False]
                first = model.requests[0].messages[0].parts[0].text  # type: ignore[union-attr]  # it is said
                assert '"target":6,"ready":4' in first


async def test_a_wake_that_was_cut_off_with_its_process_is_ended_and_noted_by_the_next(tmp_path: Path) -> None:
    model = Planner(6)
    model.last_s = 60.0
    async with at_work(tmp_path, model, "auto") as here:
        await here.pass_time(55.0)
        await here.parts.pass_time(30.0)
        await here.maintainer.beat()
        looking = await started(here)
        for _ in range(400):
            if len(here.entries("request")) == 3:
                break
            await asyncio.sleep(0.005)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        assert here.entries("sleep") == here.entries("note") == []
        used = {(one.scope, one.unit): one.used for one in here.maintainer.status().budgets}
        async with restarted(here, Says(()), "auto") as again:
            [note] = await here.journal("note")
            assert note.message == "plan applied: from 4 to 6 nodes, 2 launched"
            assert note.reason == "its process ended in the middle of this wake"
            [sleep] = again.entries("sleep")
            assert (sleep.body["outcome"], sleep.wake) == ("cut_off", here.entries("wake")[0].wake)
            now = {(one.scope, one.unit): one.used for one in again.maintainer.status().budgets}
            assert {key: now[key] for key in used if key[1] != "seconds"} == {
                key: value for key, value in used.items() if key[1] != "seconds"
            }
            assert again.maintainer.status().counters["tokens"] == used["wake", "tokens"] > 0


async def test_a_proposal_that_the_fleet_service_knows_nothing_of_is_given_up_after_a_day(tmp_path: Path) -> None:
    async with at_work(tmp_path, Planner(6), "propose") as here:
        await here.pass_time(110.0)
        here.dataflow.advice = ()

        async def none(**_: object) -> tuple[()]:
            return ()

        here.fleet.proposals = none  # type: ignore[method-assign]  # another ledger
        await here.pass_time(60.0)
        assert here.entries("proposal") == []
        here.clock.advance(86400.0)
        await here.pass_time(10.0)
        assert [entry.body["state"] for entry in here.entries("proposal")] == ["unknown"]
        assert not any(note.message.startswith("proposal ") for note in await here.journal("note"))
