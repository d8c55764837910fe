"""A wake counts its tokens and cost exactly, also for interrupted turns; a turn that may exceed the budget does not
start."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.fleet.maintainer import MaintainerState, TranscriptEntry
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.records import render_summary
from maintainer.agent.llm.interface import MAX_PARTIAL_CHARACTERS, Failure, ModelFailed, Prices, Reply, Request, Usage
from tests.maintainer.agent.test_loop import call, grown, started, too_few
from tests.maintainer.fleet.parts import ALICE, OTTO
from tests.maintainer.parts import Says, Scene, scene

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

PRICES = Prices(input=10.0, output=50.0)


class Paid(Says):
    """Model with real prices and a callback before each reply."""

    def __init__(self, first: Callable[[Request], Awaitable[None]] | None = None) -> None:
        super().__init__([])
        self.first = first

    async def reply(self, request: Request) -> Reply:
        if self.first is not None:
            await self.first(request)
        return await super().reply(request)

    def usd(self, usage: Usage) -> float:
        return PRICES.usd(usage)


def used(entry: TranscriptEntry) -> Usage:
    body: Any = entry.body
    return Usage(**body["usage"])


def lines(here: Scene) -> dict[tuple[str, str], float]:
    return {(line.scope, line.unit): line.used for line in here.maintainer.status().budgets}


async def waiting_check(here: Scene) -> "asyncio.Task[None]":
    """Returns a check that waits for the model's answer."""
    await grown(here)
    here.dataflow.recommendations = (too_few(),)
    await here.pass_time(55.0)
    await here.parts.pass_time(30.0)
    await here.maintainer.heartbeat()
    return await started(here)


async def cut(here: Scene, how: str) -> TranscriptEntry:
    """Interrupts a turn by the wake's time limit or the kill switch; returns its transcript entry."""
    looking = await waiting_check(here)
    if how == "stopped":
        await here.parts.fleet_manager.kill_switch(KillScope.AGENTS, actor=OTTO, key="kill", reason="enough")
        await here.maintainer.heartbeat()
    else:
        here.clock.advance(121.0)
    await asyncio.wait_for(looking, 10.0)
    [entry] = here.entries("failure")
    assert entry.body["failure"] == how
    assert here.maintainer.status().counters["failures"] == 0, "no service failed"
    if how == "stopped":
        await here.parts.fleet_manager.kill_switch(KillScope.NONE, actor=ALICE, key="go", reason="looked at")
    return entry


@pytest.mark.parametrize("how", ["out_of_time", "stopped"])
async def test_a_cancelled_turn_counts_the_received_tokens(tmp_path: Path, how: str) -> None:
    async def half(request: Request) -> None:
        request.partial_reply.usage = Usage(input=3000, output=1, cache_read=500)
        request.partial_reply.add("x" * 600)
        await asyncio.Event().wait()

    async with scene(tmp_path, llm=Paid(half)) as here:
        entry = await cut(here, how)
        assert used(entry) == Usage(input=3000, output=200, cache_read=500)  # estimate: 600 characters are 200 tokens
        assert (entry.body["is_estimated"], entry.body["said"]) == (True, "x" * 600)
        assert entry.body["usd"] == pytest.approx(PRICES.usd(used(entry)))
        for scope in ("wake", "day"):
            assert lines(here)[scope, "tokens"] == 3700
            assert lines(here)[scope, "usd"] == pytest.approx(PRICES.usd(used(entry)))
        before = lines(here)
        assert here.entries("sleep")[-1].body["tokens"] == 3700
    async with scene(tmp_path, llm="lazy") as again:
        assert {key: value for key, value in lines(again).items() if key[0] == "day"} == {
            key: value for key, value in before.items() if key[0] == "day"
        }


@pytest.mark.parametrize("how", ["out_of_time", "stopped"])
async def test_a_turn_cancelled_before_any_answer_counts_its_whole_limit(tmp_path: Path, how: str) -> None:
    async def silent(request: Request) -> None:
        await asyncio.Event().wait()

    async with scene(tmp_path, llm=Paid(silent)) as here:
        entry = await cut(here, how)
        request: Any = here.entries("request")[0].body
        assert used(entry).output == request["max_tokens"]
        assert used(entry).input > 1000
        assert entry.body["is_estimated"] is True
        assert lines(here)["day", "tokens"] == used(entry).total


@pytest.mark.parametrize(
    ("failure", "is_estimated"),
    [(Failure.TIMEOUT, True), (Failure.DROPPED, True), (Failure.RATE_LIMITED, False), (Failure.CONNECTION, False)],
)
async def test_a_request_without_an_answer_counts_if_it_may_have_been_processed(
    tmp_path: Path, failure: Failure, is_estimated: bool
) -> None:
    async def fail(request: Request) -> None:
        raise ModelFailed(failure, "no answer")

    async with scene(tmp_path, llm=Paid(fail)) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(95.0)
        entry = here.entries("failure")[0]
        assert entry.body["is_estimated"] is is_estimated
        assert (used(entry).total > 0) is is_estimated
        assert (lines(here)["day", "usd"] > 0) is is_estimated


@pytest.mark.long
@pytest.mark.parametrize("failure", [Failure.CUT, Failure.REFUSED, Failure.GARBAGE])
async def test_the_partial_text_of_a_failed_answer_is_kept_and_bounded(tmp_path: Path, failure: Failure) -> None:
    begun = 'I will not, because "'

    async def fail(request: Request) -> None:
        request.partial_reply.add(begun)
        request.partial_reply.add("a" * 10_000)
        problem = ModelFailed(failure, "no answer")
        problem.usage = Usage(input=100, output=5000)
        raise problem

    async with scene(tmp_path, llm=Paid(fail)) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(95.0)
        body = here.entries("failure")[0].body
        partial_text = str(body["said"])
        assert partial_text.startswith(f"{begun}aaa")
        assert len(partial_text) == MAX_PARTIAL_CHARACTERS
        assert (body["is_estimated"], used(here.entries("failure")[0]).total) == (False, 5100)


@pytest.mark.long
async def test_a_turn_that_exceeds_the_budget_is_not_started(tmp_path: Path) -> None:
    model = Paid()
    async with scene(tmp_path, llm=model, config={"wake": {"usd": 0.01}}) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        assert model.requests == []
        assert here.entries("request") == []
        budget = here.entries("budget")[0].body
        assert (budget["unit"], budget["scope"], budget["used"]) == ("usd", "wake", 0.0)
        assert "usd: 0 of 0.01" in render_summary((await here.journal("escalate"))[0])
        assert lines(here)["day", "usd"] == 0.0


@pytest.mark.long
async def test_the_budget_limits_the_length_of_an_answer(tmp_path: Path) -> None:
    model = Paid()
    usd = 0.08
    async with scene(tmp_path, llm=model, config={"wake": {"usd": usd}}) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        most = model.requests[0].max_tokens
        assert 64 <= most < 2000
        assert most * PRICES.output / 1e6 < usd
    free = Says([])
    free.price = 0.0
    async with scene(tmp_path / "free", llm=free) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        assert free.requests[0].max_tokens == 2000


@pytest.mark.long
async def test_the_daily_time_budget_survives_a_restart(tmp_path: Path) -> None:
    held: list[Scene] = []

    async def slow(request: Request) -> None:
        held[0].clock.advance(40.0)

    config = {"day": {"duration_s": 100.0}, "watch": {"wake_pause_s": 0.0, "check_interval_s": 120.0}}
    async with scene(tmp_path, llm=Paid(slow), config=config) as here:
        held.append(here)
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(1500.0)
        budget = here.entries("budget")[-1].body
        assert (budget["scope"], budget["unit"], budget["limit"]) == ("day", "seconds", 100.0)
        assert 100.0 <= lines(here)["day", "seconds"] <= 130.0
        assert len(here.entries("wake")) == 3
        assert here.maintainer.status().state is MaintainerState.OVER_BUDGET
        before = lines(here)["day", "seconds"]
    async with scene(tmp_path, llm="lazy", config=config) as again:
        assert lines(again)["day", "seconds"] == pytest.approx(before, abs=0.2)
        again.clock.advance(86400.0)
        assert lines(again)["day", "seconds"] == 0.0


async def test_a_wake_gets_at_most_the_days_remaining_time(tmp_path: Path) -> None:
    async def silent(request: Request) -> None:
        await asyncio.Event().wait()

    async with scene(tmp_path, llm=Paid(silent), config={"day": {"duration_s": 30.0}}) as here:
        looking = await waiting_check(here)
        here.clock.advance(31.0)
        await asyncio.wait_for(looking, 10.0)
        budget = here.entries("budget")[-1].body
        assert (budget["scope"], budget["unit"]) == ("day", "seconds")
        assert here.maintainer.status().state is MaintainerState.OVER_BUDGET


@pytest.mark.long
async def test_calls_are_counted_before_they_run(tmp_path: Path) -> None:
    model = Says(lambda request: (call("fleet_report", len(request.messages), pool=None, format="concise"),))
    config = {"wake": {"tool_calls": 3}, "day": {"tool_calls": 2}}
    async with scene(tmp_path, llm=model, config=config) as here:
        await grown(here)
        here.dataflow.recommendations = (too_few(),)
        await here.pass_time(110.0)
        assert len(here.entries("tool")) == 2
        assert here.entries("budget")[0].body["scope"] == "day"
