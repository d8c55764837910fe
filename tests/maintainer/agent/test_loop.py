"""The maintainer's loop in virtual time, with the real fleet manager and guard."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet.maintainer import MaintainerMode, MaintainerState, ProposalState
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.recommendations import LimitInEffect, Mode
from astraflow.contract.record_kinds import Severity
from astraflow.contract.records import render_summary
from maintainer.agent.llm.interface import Failure, ModelFailed, Part, Reply, Request, TextPart, ToolCall
from maintainer.agent.scorecard.leaderboard import leaderboard_stamp
from maintainer.agent.transcript.replay import replay_transcript
from maintainer.fleet.ledger.lifecycle import InstanceEvent
from tests.fakes.clock import settle
from tests.maintainer.fleet.parts import ALICE, OTTO, POOL, spec
from tests.maintainer.parts import OTHER, Says, Scene, advice, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


def too_few(present: int = 2) -> Any:
    return advice(present=present, target=6, low=5.0, high=8.0)


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


async def grown(here: Scene, nodes: int = 4) -> None:
    """Grows the pool and waits until its nodes are ready."""
    await here.parts.want(nodes)
    await here.parts.pass_time(60.0)


GROWS = "was too small; it grows now."


def planner(here: list[Scene], target: int, pool: str = POOL) -> Says:
    """Returns a model that plans once and applies twice with the same key."""

    def answer(request: Request) -> tuple[Part, ...]:
        turn = len(request.messages) // 2
        token = here[0].names.token("pool", pool)
        if turn == 0:
            return (call("fleet_plan", pool=token, target=target, retire=None, reason=f"{token} is too small"),)
        if turn in (1, 2):
            plan = json.loads(request.messages[2].parts[0].content)  # type: ignore[union-attr]  # reply of a tool
            return (call("fleet_apply", turn + 1, plan_id=plan["plan_id"], idempotency_key="once"),)
        return (TextPart(text=f"{token} {GROWS}"),)

    return Says(answer)


@pytest.mark.long
async def test_without_a_signal_no_token_is_used(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="looping") as here:
        await grown(here)
        here.dataflow.recommendations = (advice(present=4, target=4, low=3.0, high=6.0),)
        await here.pass_time(3600.0, step_s=30.0)
        assert here.entries("wake") == []
        assert here.maintainer.status().counters["tokens"] == 0
        assert here.maintainer.status().state is MaintainerState.SLEEPING


@pytest.mark.long
async def test_a_lasting_band_breach_wakes_the_model_after_the_third_tick(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(55.0)
        assert here.entries("wake") == []
        await here.pass_time(40.0)
        assert [entry.body["signals"] for entry in here.entries("wake")] == [
            [{"signal": "band_breach", "pool": POOL, "value": -3.0}]
        ]
        await here.pass_time(300.0)
        assert len(here.entries("wake")) == 1  # no repeated wake for a reported signal
        await here.pass_time(400.0)
        assert len(here.entries("wake")) == 2  # the signal persists at the next check


@pytest.mark.long
async def test_a_plan_in_the_limits_is_applied_verified_and_noted(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 6)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 6
        assert [entry.body["outcome"] for entry in here.entries("action")] == ["applied", "applied"]
        notes = await here.journal("note")
        applied = here.entries("action")[0].body["message"]
        assert f"plan applied: {applied}" in render_summary(notes[0])
        assert "from 4 to 6" in render_summary(notes[0])
        assert "2 launched" in render_summary(notes[0])
        assert notes[0].reason == f"{POOL} {GROWS}"  # tokens are replaced by names
        await here.pass_time(120.0)
        verify = here.entries("verify")[0].body
        assert (verify["is_reached"], verify["ready"]) == (True, 6)
        assert "6 of 6" in render_summary((await here.journal("note"))[1])
        assert len(await here.journal("apply")) == 2  # one by the test and one by the model, with a repeated key
        assert replay_transcript(here.transcript).differences == ()
        assert replay_transcript(here.transcript).verdicts == 3


@pytest.mark.long
async def test_in_propose_mode_a_person_decides(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 6), mode="propose") as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 4
        (proposal,), _ = await here.parts.proposals.page(only_waiting=True, before="", limit=9)
        assert (proposal.state, proposal.plan.target) == (ProposalState.WAITING, 6)
        assert len(await here.journal("propose")) == 1
        await here.parts.fleet_manager.apply(proposal.plan.id, key="yes", approver=OTTO)
        assert await here.size() == 6


@pytest.mark.long
async def test_shadow_mode_records_actions_without_effect(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 6), mode="shadow") as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 4
        assert {entry.body["outcome"] for entry in here.entries("action")} == {"recorded"}
        assert await here.journal("note") == await here.journal("propose") == []


@pytest.mark.long
async def test_a_plan_outside_the_limits_becomes_a_proposal_in_auto_mode(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 40), limits={"nodes": 2, "cool_down_s": 0.0}) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 4
        assert [entry.body["outcome"] for entry in here.entries("action")] == ["proposed", "proposed"]
        assert [entry.body["verdict"] for entry in here.entries("verdict")] == ["needs_approval"]


@pytest.mark.long
async def test_mode_off_reads_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, mode="off") as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(900.0, step_s=30.0)
        assert here.entries("wake") == []
        await here.mode(MaintainerMode.PROPOSE)
        await here.pass_time(120.0)
        assert len(here.entries("wake")) == 1


class Sleepy(Says):
    """Model that answers after `sleep_s` seconds."""

    def __init__(self, here: list[Scene], sleep_s: float) -> None:
        super().__init__(())
        self.here = here
        self.sleep_s = sleep_s

    async def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        await self.here[0].clock.sleep(self.sleep_s)
        return await super().reply(request)


async def started(here: Scene) -> "asyncio.Task[None]":
    """Starts a check; returns it once it waits for the model."""
    looking = asyncio.create_task(here.maintainer.check())
    for _ in range(200):
        await asyncio.sleep(0.005)
        if here.maintainer.status().state is MaintainerState.AWAKE and here.entries("request"):
            await asyncio.sleep(0.02)  # lets the check reach the model call
            return looking
    raise AssertionError("no model was asked")


@pytest.mark.long
@pytest.mark.parametrize("scope", [KillScope.AGENTS, KillScope.ALL])
async def test_the_kill_switch_ends_a_wake_within_a_heartbeat(tmp_path: Path, scope: KillScope) -> None:
    held: list[Scene] = []
    model = Sleepy(held, 60.0)
    async with scene(tmp_path, llm=model) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(55.0)
        await here.parts.pass_time(30.0)
        await here.maintainer.heartbeat()
        looking = await started(here)
        await here.parts.fleet_manager.kill_switch(scope, actor=OTTO, key="kill", reason="enough")
        await here.maintainer.heartbeat()
        await asyncio.wait_for(looking, 1.0)  # less than the model's 60 s
        assert here.entries("sleep")[-1].body["outcome"] == "stopped"
        assert here.maintainer.status().state is MaintainerState.STOPPED
        await here.pass_time(900.0, step_s=30.0)
        assert len(here.entries("wake")) == 1
        await here.parts.fleet_manager.kill_switch(KillScope.NONE, actor=ALICE, key="go", reason="looked at")
        assert here.entries("orders")[-1].body["kill"] == scope.value


@pytest.mark.long
async def test_a_wake_ends_when_its_time_is_spent(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=Sleepy(held, 1000.0)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(55.0)
        await here.parts.pass_time(30.0)
        await here.maintainer.heartbeat()
        looking = await started(here)
        here.clock.advance(121.0)
        await asyncio.wait_for(looking, 30.0)
        assert here.entries("budget")[-1].body["unit"] == "seconds"
        assert "wake budget" in render_summary((await here.journal("escalate"))[-1])
        assert "(seconds: 121 of 120)" in render_summary((await here.journal("escalate"))[-1])


@pytest.mark.long
@pytest.mark.parametrize("failure", Failure)
async def test_a_failing_model_does_nothing_and_is_called_with_growing_pauses(tmp_path: Path, failure: Failure) -> None:
    turns = [ModelFailed(failure, "broken") for _ in range(3)]
    async with scene(tmp_path, llm=Says(turns)) as here:
        await grown(here)
        before = await here.journal("apply")
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(400.0)
        assert [entry.body["rest_s"] for entry in here.entries("failure")] == [30.0, 60.0, 120.0]
        assert {entry.body["failure"] for entry in here.entries("failure")} == {failure.value}
        assert await here.journal("apply") == before
        assert len(await here.journal("escalate")) == 1  # after the third failure in a row
        assert here.entries("sleep")[-1].body["outcome"] == "done"  # the next call succeeded
        assert here.maintainer.status().problems == ()


@pytest.mark.long
async def test_the_pause_that_the_service_asks_for_is_respected(tmp_path: Path) -> None:
    async with scene(tmp_path, llm=Says([ModelFailed(Failure.RATE_LIMITED, "slow down", retry_after_s=500.0)])) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(500.0)
        assert len(here.entries("wake")) == 1
        assert here.maintainer.status().state is MaintainerState.BACKING_OFF
        await here.pass_time(120.0)
        assert len(here.entries("wake")) == 2


async def test_a_looping_model_is_stopped_by_its_budget(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="looping", config={"wake": {"tokens": 10**9}, "day": {"tokens": 10**9}}) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        sleep = here.entries("sleep")[-1].body
        assert (sleep["outcome"], sleep["tool_calls"]) == ("over_budget", 20)
        escalated = await here.journal("escalate")
        assert "tool_calls: 20 of 20" in render_summary(escalated[0])
        await here.maintainer.send_notices()
        assert here.posted[0]["kind"] == "escalation"


@pytest.mark.long
async def test_a_wake_never_exceeds_its_token_budget(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="looping", config={"wake": {"tokens": 12_000}}) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        sleep = here.entries("sleep")[-1].body
        assert sleep["outcome"] == "over_budget"
        assert 4_000 < float(str(sleep["tokens"])) <= 12_000


@pytest.mark.long
async def test_a_spent_daily_budget_pauses_until_midnight(tmp_path: Path) -> None:
    model = Says([])
    model.price = 3.0
    async with scene(tmp_path, llm=model, config={"wake": {"usd": 100.0}, "day": {"usd": 5.0}}) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(3600.0 * 3, step_s=60.0)
        assert len(here.entries("wake")) == 2
        assert here.maintainer.status().state is MaintainerState.OVER_BUDGET
        assert (
            len([decision for decision in await here.journal("escalate") if "day budget" in render_summary(decision)])
            == 1
        )
        here.clock.advance(86400.0)
        await here.pass_time(600.0, step_s=60.0)
        assert len(here.entries("wake")) == 3


async def test_a_clock_that_steps_back_over_midnight_renews_no_daily_budget_and_sends_no_digest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Says([])
    model.price = 3.0
    async with scene(tmp_path, llm=model, config={"wake": {"usd": 100.0}, "day": {"usd": 5.0}}) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        here.clock.advance(86400.0 - here.clock.wall() % 86400.0 + 8 * 3600.0)
        await here.pass_time(3600.0 * 3, step_s=60.0)
        answers = len(here.entries("response"))
        assert here.maintainer.status().state is MaintainerState.OVER_BUDGET
        monkeypatch.setattr(here.clock, "wall", lambda: here.clock.now() - 13 * 3600.0)
        await here.pass_time(3600.0 * 14, step_s=600.0)
        assert len(here.entries("response")) == answers == 1
        await here.maintainer.send_notices()
        assert [post for post in here.posted if post["kind"] == "digest"] == []


@pytest.mark.long
async def test_the_daily_usage_survives_a_restart(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        used = {line.unit: line.used for line in here.maintainer.status().budgets if line.scope == "day"}
        counters = here.maintainer.status().counters
    async with scene(tmp_path, llm="lazy") as here:
        again = {line.unit: line.used for line in here.maintainer.status().budgets if line.scope == "day"}
        assert again == used
        assert used["tokens"] > 0
        assert here.maintainer.status().counters == counters


@pytest.mark.long
async def test_several_changes_in_one_turn_are_refused(tmp_path: Path) -> None:
    held: list[Scene] = []

    def answer(request: Request) -> tuple[Part, ...]:
        token = held[0].names.token("pool", POOL)
        plan = {"pool": token, "retire": None, "reason": "more"}
        return (call("fleet_plan", 1, target=5, **plan), call("fleet_plan", 2, target=6, **plan))

    async with scene(tmp_path, llm=Says(answer)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        assert here.entries("verdict") == []
        assert here.entries("failure")[0].body["failure"] == "garbage"
        assert {json.loads(str(entry.body["result"]))["error"] for entry in here.entries("tool")} == {"one_at_a_time"}


@pytest.mark.long
@pytest.mark.parametrize(
    "bad",
    [
        ToolCall(id="x", name="fleet_delete_everything", arguments={}),
        ToolCall(id="x", name="fleet_plan", arguments=None),
        ToolCall(id="x", name="fleet_plan", arguments={"pool": 7}),
        ToolCall(id="x", name="fleet_plan", arguments={"pool": "eu", "target": "six", "retire": None, "reason": "r"}),
    ],
)
async def test_three_invalid_calls_end_the_wake(tmp_path: Path, bad: ToolCall) -> None:
    async with scene(tmp_path, llm=Says(lambda request: (bad,))) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        first = here.entries("wake")[0].wake
        assert len([entry for entry in here.entries("tool") if entry.wake == first]) == 3
        assert here.entries("failure")[0].body["failure"] == "garbage"


@pytest.mark.long
@pytest.mark.parametrize("character", ["reckless", "hostile", "lazy", "looping"])
async def test_no_character_bypasses_the_guard(tmp_path: Path, character: str) -> None:
    pools = [spec(max_nodes=8, min_nodes=2), spec(id=OTHER, max_nodes=8)]
    limits = {"nodes": 2, "share": 0.25, "changes_per_hour": 4, "cool_down_s": 60.0}
    async with scene(tmp_path, llm=character, pools=pools, limits=limits) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        sizes = set()
        for _ in range(20):
            await here.pass_time(60.0, step_s=30.0)
            sizes.add(await here.size())
        assert sizes <= {4}
        assert all(entry.actor != "maintainer" for entry in await here.journal("apply"))
        assert replay_transcript(here.transcript).differences == ()


async def test_failing_launches_are_moved_to_another_pool_and_escalated(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await grown(here, 2)
        await here.parts.pass_time(60.0)
        ledger = here.parts.ledger
        for _ in range(3):  # opens the circuit breaker
            await here.parts.want(await here.size() + 1)
            for record in ledger.alive(POOL):
                if record.instance.ready_at is None:
                    await here.parts.records.record_event(
                        record.id, InstanceEvent.GONE, message="VcpuLimitExceeded: quota is 0"
                    )
        short = {"capacity_groups_per_s": 2.0, "demand_groups_per_s": 4.0}
        here.dataflow.recommendations = (advice(present=2, target=4, low=3.0, high=6.0, inputs=short),)
        await here.pass_time(30.0)
        assert '"signal": "launch_failures"' in json.dumps(here.entries("wake")[0].body["signals"])
        assert await here.size(OTHER) == 1
        assert "cause: quota" in render_summary((await here.journal("escalate"))[0])


async def test_a_limit_is_escalated_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await grown(here)
        here.dataflow.recommendations = (
            advice(present=4, target=4, low=3.0, high=6.0, limited_by=(LimitInEffect.QUOTA,)),
        )
        await here.pass_time(590.0, step_s=10.0)
        [escalation] = await here.journal("escalate")
        assert render_summary(escalation).split(": ") == ["limit reached (1)", "quota"]
        assert escalation.severity is Severity.WARNING


async def test_the_loop_survives_any_outage_of_the_fleet_service(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        here.fleet.is_away = True
        await here.pass_time(300.0)
        assert here.entries("wake") == []
        here.fleet.is_away = False
        await here.pass_time(120.0)
        assert len(here.entries("wake")) == 1


async def test_the_fleet_service_has_an_equal_transcript(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="good") as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(110.0)
        await here.maintainer._recorder.transcript_uploader.upload()
        _, copied, has_older = await here.parts.maintainer_api.transcript_page(
            chain="", wake="", before=None, limit=1000
        )
        assert (list(reversed(copied)), has_older) == (here.entries(), False)


async def test_a_digest_is_sent_once_a_day(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy", pools=[spec(mode=Mode.ADVISE)]) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        for _ in range(2):
            here.clock.advance(86400.0)
            await here.pass_time(60.0, step_s=30.0)
            await here.maintainer.send_notices()
        digests = [post["text"] for post in here.posted if post["kind"] == "digest"]
        assert len(digests) == 2
        assert "1 wakes, 0 plans" in digests[0]
        assert len([entry for entry in await here.journal("note") if entry.reason == "daily digest"]) == 2


@pytest.mark.long
async def test_a_wake_leaves_one_note_of_all_that_was_done(tmp_path: Path) -> None:
    held: list[Scene] = []

    def answer(request: Request) -> tuple[Part, ...]:
        token, turn = held[0].names.token("pool", POOL), len(request.messages) // 2
        steps: list[Part] = [
            call("fleet_hold", pool=token, minutes=5, reason="until it is clear"),
            call("fleet_escalate", 2, severity="warning", text=f"{token} is odd, 3 of 4 nodes"),
        ]
        return (steps[turn],) if turn < len(steps) else (TextPart(text="Held, and told."),)

    async with scene(tmp_path, llm=Says(answer)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(110.0)
        [note] = await here.journal("note")
        assert render_summary(note) == (
            "hold applied: hold for 5 minutes: until it is clear; "
            f"escalation sent: warning: {POOL} is odd, 3 of 4 nodes"
        )
        assert (note.reason, note.subject) == ("Held, and told.", POOL)
        assert [entry.body["decision"] for entry in here.entries("note")] == [note.ordinal]


async def test_equal_escalations_are_sent_once_an_hour(tmp_path: Path) -> None:
    texts = ["pool is odd, 3 of 4 nodes", "pool is odd, 2 of 4 nodes", "quota is gone", "pool is odd, 1 of 4 nodes"]
    escalations: list[str] = []

    def answer(request: Request) -> tuple[Part, ...]:
        if len(request.messages) > 1:
            return (TextPart(text="Told."),)
        escalations.append(texts[len(escalations) % len(texts)])
        return (call("fleet_escalate", severity="warning", text=escalations[-1]),)

    async with scene(
        tmp_path, llm=Says(answer), config={"watch": {"wake_pause_s": 0.0, "check_interval_s": 600.0}}
    ) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(4),)
        await here.pass_time(2400.0, step_s=30.0)
        assert len(escalations) >= 3
        assert len(await here.journal("escalate")) == len(escalations), "the audit log has every escalation"
        await here.maintainer.send_notices()
        sent = [post["text"] for post in here.posted if post["kind"] == "escalation"]
        assert sent == [texts[0], texts[2]]
        here.clock.advance(3600.0)
        await here.pass_time(1200.0, step_s=30.0)
        await here.maintainer.send_notices()
        again = [post["text"] for post in here.posted if post["kind"] == "escalation"]
        assert len(again) > len(sent), "an hour later it is escalated again"


async def test_the_status_has_the_models_evaluation(tmp_path: Path) -> None:
    board = tmp_path / "leaderboard.json"
    async with scene(tmp_path, llm="good", config={"scorecard": {"leaderboard": str(board)}}) as here:
        await here.pass_time(10.0)
        status = here.maintainer.status()
        assert (status.evaluation, status.evaluation_source) == (None, str(board))
        assert str(board) in status.evaluation_problem
        line = {"model": "scripted good", "right_ratio": 1.0, "blind_ratio": 0.9, "violations": 0, "out_of_scope": 0}
        cases = {"scripted good": [{"case": "steady", "group": "right", "objections": []}]}
        board.write_text(json.dumps({**leaderboard_stamp(1_800_000_000.0), "lines": [line], "cases": cases}))
        await here.pass_time(70.0)
        known = (await here.fleet.maintainer()).status
        assert known is not None
        assert known.evaluation is not None
        assert (known.evaluation.passed, known.evaluation_problem) == (1, "")


async def test_the_loop_ends_with_its_task(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        running = asyncio.create_task(here.maintainer.run())
        await settle()
        await here.clock.pass_time(30.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
