"""The maintainer's loop, in virtual time, over a real desk and guard."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.advice import Cap, Mode
from astraflow.contract.fleet import KillScope
from astraflow.contract.maintenance import MaintainerMode, MaintainerState, ProposalState
from maintainer.fleet.lifecycle import Sight
from maintainer.llm.base import Failure, ModelFailed, Part, Reply, Request, Said, ToolCall
from maintainer.replay import replayed
from maintainer.standing.board import stamp
from tests.fakes.clock import settle
from tests.maintainer.fleet.parts import ALICE, OTTO, POOL, spec
from tests.maintainer.parts import OTHER, Says, Scene, advice, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


def too_few(present: int = 2) -> Any:
    return advice(present=present, target=6, low=5.0, high=8.0)


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


async def grown(here: Scene, nodes: int = 4) -> None:
    """A pool that works."""
    await here.parts.want(nodes)
    await here.parts.pass_time(60.0)


def planner(here: list[Scene], target: int, pool: str = POOL) -> Says:
    """Plans once and applies twice under one key."""

    def answer(request: Request) -> tuple[Part, ...]:
        turn = len(request.messages) // 2
        token = here[0].names.token("pool", pool)
        if turn == 0:
            return (call("fleet_plan", pool=token, target=target, retire=None, reason=f"{token} is too small"),)
        if turn in (1, 2):
            plan = json.loads(request.messages[2].parts[0].content)  # type: ignore[union-attr]  # a tool's reply
            return (call("fleet_apply", turn + 1, plan_id=plan["plan_id"], idempotency_key="once"),)
        return (Said(text=f"{token} was too small; it grows now."),)

    return Says(answer)


async def test_nothing_is_the_matter_and_no_token_is_used(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="looping") as here:
        await grown(here)
        here.dataflow.advice = (advice(present=4, target=4, low=3.0, high=6.0),)
        await here.pass_time(3600.0, step_s=30.0)
        assert here.entries("wake") == []
        assert here.maintainer.status().counters["tokens"] == 0
        assert here.maintainer.status().state is MaintainerState.SLEEPING


async def test_a_band_that_stays_breached_wakes_it_after_the_third_tick(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(55.0)
        assert here.entries("wake") == []
        await here.pass_time(40.0)
        assert [entry.body["signals"] for entry in here.entries("wake")] == [
            [{"signal": "band_breach", "pool": POOL, "value": -3.0}]
        ]
        await here.pass_time(300.0)
        assert len(here.entries("wake")) == 1  # it was told
        await here.pass_time(400.0)
        assert len(here.entries("wake")) == 2  # at the next look it is still the matter


async def test_a_plan_in_the_envelope_is_applied_verified_and_noted(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 6)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 6
        assert [entry.body["outcome"] for entry in here.entries("action")] == ["applied", "applied"]
        notes = await here.journal("note")
        assert "plan applied: from 4 to 6 nodes, 2 launched" in notes[0].message
        assert notes[0].reason == f"{POOL} was too small; it grows now."  # tokens are names again
        await here.pass_time(120.0)
        verify = here.entries("verify")[0].body
        assert (verify["is_reached"], verify["ready"]) == (True, 6)
        assert (await here.journal("note"))[1].message.endswith("6 of 6 nodes work")
        assert len(await here.journal("apply")) == 2  # the test's own, and one: the key was the same
        assert replayed(here.transcript).differences == ()
        assert replayed(here.transcript).verdicts == 3


async def test_in_propose_mode_a_person_decides(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 6), mode="propose") as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 4
        (proposal,), _ = await here.parts.proposals.page(only_waiting=True, before="", limit=9)
        assert (proposal.state, proposal.plan.target) == (ProposalState.WAITING, 6)
        assert len(await here.journal("propose")) == 1
        await here.parts.desk.apply(proposal.plan.id, key="yes", approver=OTTO)
        assert await here.size() == 6


async def test_in_shadow_mode_nothing_happens_and_everything_is_written_down(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 6), mode="shadow") as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 4
        assert {entry.body["outcome"] for entry in here.entries("action")} == {"recorded"}
        assert await here.journal("note") == await here.journal("propose") == []


async def test_outside_the_envelope_a_person_is_asked_even_in_auto(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=planner(held, 40), envelope={"nodes": 2, "cool_down_s": 0.0}) as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(110.0)
        assert await here.size() == 4
        assert [entry.body["outcome"] for entry in here.entries("action")] == ["proposed", "proposed"]
        assert [entry.body["verdict"] for entry in here.entries("verdict")] == ["needs_approval"]


async def test_off_means_that_it_looks_at_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, mode="off") as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(900.0, step_s=30.0)
        assert here.entries("wake") == []
        await here.mode(MaintainerMode.PROPOSE)
        await here.pass_time(120.0)
        assert len(here.entries("wake")) == 1


class Sleepy(Says):
    """Takes minutes to answer."""

    def __init__(self, here: list[Scene], sleep_s: float) -> None:
        super().__init__(())
        self.here = here
        self.sleep_s = sleep_s

    async def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        await self.here[0].clock.sleep(self.sleep_s)
        return await super().reply(request)


async def started(here: Scene) -> "asyncio.Task[None]":
    """A look that has got as far as the model."""
    looking = asyncio.create_task(here.maintainer.look())
    for _ in range(200):
        await asyncio.sleep(0.005)
        if here.maintainer.status().state is MaintainerState.AWAKE and here.entries("request"):
            await asyncio.sleep(0.02)  # until it waits for the model
            return looking
    raise AssertionError("no model was asked")


@pytest.mark.parametrize("scope", [KillScope.AGENTS, KillScope.ALL])
async def test_the_kill_switch_ends_a_wake_within_a_beat(tmp_path: Path, scope: KillScope) -> None:
    held: list[Scene] = []
    model = Sleepy(held, 60.0)
    async with scene(tmp_path, llm=model) as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(55.0)
        await here.parts.pass_time(30.0)
        await here.maintainer.beat()
        looking = await started(here)
        await here.parts.desk.kill_switch(scope, actor=OTTO, key="kill", reason="enough")
        await here.maintainer.beat()
        await asyncio.wait_for(looking, 1.0)  # the model never answered: its 60 s have not passed
        assert here.entries("sleep")[-1].body["outcome"] == "stopped"
        assert here.maintainer.status().state is MaintainerState.STOPPED
        await here.pass_time(900.0, step_s=30.0)
        assert len(here.entries("wake")) == 1
        await here.parts.desk.kill_switch(KillScope.NONE, actor=ALICE, key="go", reason="looked at")
        assert here.entries("orders")[-1].body["kill"] == scope.value


async def test_a_wake_that_lasts_too_long_is_over(tmp_path: Path) -> None:
    held: list[Scene] = []
    async with scene(tmp_path, llm=Sleepy(held, 1000.0)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(55.0)
        await here.parts.pass_time(30.0)
        await here.maintainer.beat()
        looking = await started(here)
        here.clock.advance(121.0)
        await asyncio.wait_for(looking, 30.0)
        assert here.entries("budget")[-1].body["unit"] == "seconds"
        assert "budget of a wake is spent" in (await here.journal("escalate"))[-1].message


@pytest.mark.parametrize("failure", Failure)
async def test_a_model_that_fails_does_nothing_and_is_left_alone_for_longer_each_time(
    tmp_path: Path, failure: Failure
) -> None:
    turns = [ModelFailed(failure, "broken") for _ in range(3)]
    async with scene(tmp_path, llm=Says(turns)) as here:
        await grown(here)
        before = await here.journal("apply")
        here.dataflow.advice = (too_few(),)
        await here.pass_time(400.0)
        assert [entry.body["rest_s"] for entry in here.entries("failure")] == [30.0, 60.0, 120.0]
        assert {entry.body["failure"] for entry in here.entries("failure")} == {failure.value}
        assert await here.journal("apply") == before
        assert len(await here.journal("escalate")) == 1  # after the third in a row
        assert here.entries("sleep")[-1].body["outcome"] == "done"  # then it answered
        assert here.maintainer.status().troubles == ()


async def test_what_the_service_asks_to_wait_is_waited(tmp_path: Path) -> None:
    async with scene(tmp_path, llm=Says([ModelFailed(Failure.RATE_LIMITED, "slow down", retry_after_s=500.0)])) as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(500.0)
        assert len(here.entries("wake")) == 1
        assert here.maintainer.status().state is MaintainerState.BACKING_OFF
        await here.pass_time(120.0)
        assert len(here.entries("wake")) == 2


async def test_a_looping_model_is_ended_by_its_budget(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="looping", config={"wake": {"tokens": 10**9}, "day": {"tokens": 10**9}}) as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(110.0)
        sleep = here.entries("sleep")[-1].body
        assert (sleep["outcome"], sleep["tool_calls"]) == ("over_budget", 20)
        escalated = await here.journal("escalate")
        assert "tool_calls: 20 of 20" in escalated[0].message
        await here.maintainer.notify()
        assert here.posted[0]["kind"] == "escalation"


async def test_tokens_are_never_more_than_a_wake_may_use(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="looping", config={"wake": {"tokens": 12_000}}) as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(110.0)
        sleep = here.entries("sleep")[-1].body
        assert sleep["outcome"] == "over_budget"
        assert 4_000 < float(str(sleep["tokens"])) <= 12_000


async def test_a_day_that_is_spent_lets_it_sleep_until_midnight(tmp_path: Path) -> None:
    model = Says([])
    model.price = 3.0
    async with scene(tmp_path, llm=model, config={"wake": {"usd": 100.0}, "day": {"usd": 5.0}}) as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(3600.0 * 3, step_s=60.0)
        assert len(here.entries("wake")) == 2
        assert here.maintainer.status().state is MaintainerState.OVER_BUDGET
        assert len([one for one in await here.journal("escalate") if "budget of a day" in one.message]) == 1
        here.clock.advance(86400.0)
        await here.pass_time(600.0, step_s=60.0)
        assert len(here.entries("wake")) == 3


async def test_what_a_day_has_used_survives_a_restart(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(110.0)
        used = {line.unit: line.used for line in here.maintainer.status().budgets if line.scope == "day"}
        counters = here.maintainer.status().counters
    async with scene(tmp_path, llm="lazy") as here:
        again = {line.unit: line.used for line in here.maintainer.status().budgets if line.scope == "day"}
        assert again == used
        assert used["tokens"] > 0
        assert here.maintainer.status().counters == counters


async def test_several_changes_at_once_are_none(tmp_path: Path) -> None:
    held: list[Scene] = []

    def answer(request: Request) -> tuple[Part, ...]:
        token = held[0].names.token("pool", POOL)
        plan = {"pool": token, "retire": None, "reason": "more"}
        return (call("fleet_plan", 1, target=5, **plan), call("fleet_plan", 2, target=6, **plan))

    async with scene(tmp_path, llm=Says(answer)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(110.0)
        assert here.entries("verdict") == []
        assert here.entries("failure")[0].body["failure"] == "garbage"
        assert {json.loads(str(entry.body["result"]))["error"] for entry in here.entries("tool")} == {"one_at_a_time"}


@pytest.mark.parametrize(
    "bad",
    [
        ToolCall(id="x", name="fleet_delete_everything", arguments={}),
        ToolCall(id="x", name="fleet_plan", arguments=None),
        ToolCall(id="x", name="fleet_plan", arguments={"pool": 7}),
        ToolCall(id="x", name="fleet_plan", arguments={"pool": "eu", "target": "six", "retire": None, "reason": "r"}),
    ],
)
async def test_calls_that_are_none_end_the_wake_after_three(tmp_path: Path, bad: ToolCall) -> None:
    async with scene(tmp_path, llm=Says(lambda request: (bad,))) as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(110.0)
        first = here.entries("wake")[0].wake
        assert len([entry for entry in here.entries("tool") if entry.wake == first]) == 3
        assert here.entries("failure")[0].body["failure"] == "garbage"


@pytest.mark.parametrize("character", ["reckless", "hostile", "lazy", "looping"])
async def test_whatever_the_character_the_guard_is_never_passed(tmp_path: Path, character: str) -> None:
    pools = [spec(max_nodes=8, min_nodes=2), spec(id=OTHER, max_nodes=8)]
    envelope = {"nodes": 2, "share": 0.25, "changes_per_hour": 4, "cool_down_s": 60.0}
    async with scene(tmp_path, llm=character, pools=pools, envelope=envelope) as here:
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        sizes = set()
        for _ in range(20):
            await here.pass_time(60.0, step_s=30.0)
            sizes.add(await here.size())
        assert sizes <= {4}
        assert all(entry.actor.name != "maintainer" for entry in await here.journal("apply"))
        assert replayed(here.transcript).differences == ()


async def test_launches_that_fail_are_made_elsewhere_and_people_are_told(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await grown(here, 2)
        await here.parts.pass_time(60.0)
        ledger = here.parts.ledger
        for _ in range(3):  # the breaker opens: no more are tried here for now
            await here.parts.want(await here.size() + 1)
            for record in ledger.alive(POOL):
                if record.instance.ready_at is None:
                    await here.parts.fleet.see(record.id, Sight.GONE, message="VcpuLimitExceeded: quota is 0")
        short = {"capacity_groups_per_s": 2.0, "demand_groups_per_s": 4.0}
        here.dataflow.advice = (advice(present=2, target=4, low=3.0, high=6.0, inputs=short),)
        await here.pass_time(30.0)
        assert '"signal": "launch_failures"' in json.dumps(here.entries("wake")[0].body["signals"])
        assert await here.size(OTHER) == 1
        assert "cause: quota" in (await here.journal("escalate"))[0].message


async def test_a_cap_is_told_to_people_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await grown(here)
        here.dataflow.advice = (advice(present=4, target=4, low=3.0, high=6.0, capped_by=(Cap.QUOTA,)),)
        await here.pass_time(590.0, step_s=10.0)
        assert [entry.message for entry in await here.journal("escalate")] == ["warning: cap_hit (1): quota"]


async def test_the_fleet_service_may_be_away_for_any_time(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        here.fleet.is_away = True
        await here.pass_time(300.0)
        assert here.entries("wake") == []
        here.fleet.is_away = False
        await here.pass_time(120.0)
        assert len(here.entries("wake")) == 1


async def test_the_copy_at_the_fleet_service_is_the_same(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="good") as here:
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(110.0)
        await here.maintainer._recorder.mirror.push()
        _, copied, has_older = await here.parts.liaison.page(chain="", wake="", before=None, limit=1000)
        assert (list(reversed(copied)), has_older) == (here.entries(), False)


async def test_a_digest_is_sent_once_a_day(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy", pools=[spec(mode=Mode.ADVISE)]) as here:
        await grown(here)
        here.dataflow.advice = (too_few(),)
        await here.pass_time(110.0)
        for _ in range(2):
            here.clock.advance(86400.0)
            await here.pass_time(60.0, step_s=30.0)
        await here.maintainer.notify()
        digests = [one["text"] for one in here.posted if one["kind"] == "digest"]
        assert len(digests) == 2
        assert "1 wakes, 0 plans" in digests[0]
        assert len([entry for entry in await here.journal("note") if entry.reason == "daily digest"]) == 2


async def test_a_wake_leaves_one_note_of_all_that_was_done(tmp_path: Path) -> None:
    held: list[Scene] = []

    def answer(request: Request) -> tuple[Part, ...]:
        token, turn = held[0].names.token("pool", POOL), len(request.messages) // 2
        steps: list[Part] = [
            call("fleet_hold", pool=token, minutes=5, reason="until it is clear"),
            call("fleet_escalate", 2, severity="warning", text=f"{token} is odd, 3 of 4 nodes"),
        ]
        return (steps[turn],) if turn < len(steps) else (Said(text="Held, and told."),)

    async with scene(tmp_path, llm=Says(answer)) as here:
        held.append(here)
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(110.0)
        [note] = await here.journal("note")
        assert note.message == (
            "hold applied: held for 5 minutes: until it is clear; "
            f"people were told: warning: {POOL} is odd, 3 of 4 nodes"
        )
        assert (note.reason, note.pool) == ("Held, and told.", POOL)
        assert [entry.body["decision"] for entry in here.entries("note")] == [note.ordinal]


async def test_people_are_not_told_the_same_again_within_the_hour(tmp_path: Path) -> None:
    said = ["pool is odd, 3 of 4 nodes", "pool is odd, 2 of 4 nodes", "quota is gone", "pool is odd, 1 of 4 nodes"]
    told: list[str] = []

    def answer(request: Request) -> tuple[Part, ...]:
        if len(request.messages) > 1:
            return (Said(text="Told."),)
        told.append(said[len(told) % len(said)])
        return (call("fleet_escalate", severity="warning", text=told[-1]),)

    async with scene(tmp_path, llm=Says(answer), config={"watch": {"rest_s": 0.0, "look_s": 600.0}}) as here:
        await grown(here)
        here.dataflow.advice = (too_few(4),)
        await here.pass_time(2400.0, step_s=30.0)
        assert len(told) >= 3
        assert len(await here.journal("escalate")) == len(told), "the journal has all of them"
        await here.maintainer.notify()
        sent = [one["text"] for one in here.posted if one["kind"] == "escalation"]
        assert sent == ["warning: pool is odd, 3 of 4 nodes", "warning: quota is gone"]
        here.clock.advance(3600.0)
        await here.pass_time(1200.0, step_s=30.0)
        await here.maintainer.notify()
        again = [one["text"] for one in here.posted if one["kind"] == "escalation"]
        assert len(again) > len(sent), "an hour later it is told again"


async def test_its_status_says_what_is_known_of_how_good_it_is(tmp_path: Path) -> None:
    board = tmp_path / "leaderboard.json"
    async with scene(tmp_path, llm="good", config={"standing": {"leaderboard": str(board)}}) as here:
        await here.pass_time(10.0)
        told = here.maintainer.status()
        assert (told.evaluation, told.evaluation_source) == (None, str(board))
        assert "is not there" in told.evaluation_problem
        line = {"model": "scripted good", "right_ratio": 1.0, "blind_ratio": 0.9, "violations": 0, "out_of_scope": 0}
        cases = {"scripted good": [{"case": "steady", "group": "right", "objections": []}]}
        board.write_text(json.dumps({**stamp(1_800_000_000.0), "lines": [line], "cases": cases}))
        await here.pass_time(70.0)
        known = (await here.fleet.maintainer()).status
        assert known is not None
        assert known.evaluation is not None
        assert (known.evaluation.passed, known.evaluation_problem) == (1, "")


async def test_the_run_ends_with_its_task(tmp_path: Path) -> None:
    async with scene(tmp_path, llm="lazy") as here:
        running = asyncio.create_task(here.maintainer.run())
        await settle()
        await here.clock.pass_time(30.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
