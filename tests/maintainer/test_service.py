"""The maintainer as its processes run it: over gRPC, beside a real fleet service; and its command line."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.access.callers import Caller
from astraflow.access.callers import Role as Holder
from astraflow.access.credentials import Seal, new_id
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.errors import NotPermitted
from astraflow.contract.fleet import Actor, KillScope, PlanId, PlanRequest, Role
from astraflow.contract.maintenance import Maintainer, MaintainerMode, MaintainerState, ProposalState
from astraflow.wire.server import Listen
from maintainer.__main__ import main
from maintainer.config import MaintainerConfig
from maintainer.fleet import guard
from maintainer.fleet.evidence import Evidence
from maintainer.fleet.guard import Limits, Situation
from maintainer.fleet.service import serve as serve_fleet
from maintainer.outbox import Outbox
from maintainer.service import NOTICES_FILE, built, serve
from maintainer.transcript import Kind, Transcript, line_of, read
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, spec
from tests.maintainer.fleet.test_service import LOCAL, PATIENCE_S, config
from tests.maintainer.test_notifying import receiving

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def planes(directory: Path, **changes: Any) -> AsyncIterator[tuple[str, str]]:
    """Addresses of a dataflow and of a fleet service. changes: of its configuration."""
    plane, stop, ready = FakeControlPlane(sequence=5), asyncio.Event(), asyncio.get_running_loop().create_future()
    async with plane.serving() as dataflow, asyncio.TaskGroup() as tasks:
        fleet = serve_fleet(
            config(**changes),
            dataflow=dataflow,
            join_address=dataflow,
            token=TOKEN,
            authority=None,
            listen=Listen(token=TOKEN),
            directory=directory / "fleet",
            stop=stop,
            on_ready=ready.set_result,
        )
        tasks.create_task(fleet)
        try:
            yield dataflow, await asyncio.wait_for(ready, PATIENCE_S)
        finally:
            stop.set()


async def until(fleet: FleetPlaneClient, holds: Any) -> Maintainer:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(seen := await fleet.maintainer()):
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(0.05)
    return seen


def told(**changes: Any) -> MaintainerConfig:
    return MaintainerConfig.parse({"mode": "propose", "watch": {"observe_s": 0.1}, **changes}, where="")


@pytest.mark.anyio
async def test_people_see_it_steer_it_and_stop_it_through_the_fleet_plane(tmp_path: Path) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    async with planes(tmp_path) as (dataflow, address), connect_fleet(address, TOKEN) as fleet:
        assert (await fleet.maintainer()).status is None
        async with asyncio.TaskGroup() as tasks:
            running = serve(
                told(),
                dataflow=dataflow,
                fleet=address,
                token=TOKEN,
                authority=None,
                directory=tmp_path / "maintainer",
                stop=stop,
                on_ready=lambda what: ready.set(),
            )
            tasks.create_task(running)
            seen = await until(fleet, lambda one: one.status is not None)
            assert seen.status is not None
            assert (seen.mode, seen.status.is_simulated) == (MaintainerMode.PROPOSE, True)
            assert {line.unit for line in seen.status.budgets} >= {"tokens", "usd", "tool_calls", "seconds"}
            await fleet.set_maintainer_mode(MaintainerMode.SHADOW, actor=OTTO, key="m", reason="a look first")
            await until(fleet, lambda one: one.status.mode is MaintainerMode.SHADOW)
            began = time.monotonic()
            await fleet.kill_switch(KillScope.AGENTS, actor=OTTO, key="k", reason="enough")
            await until(fleet, lambda one: one.status.state is MaintainerState.STOPPED)
            assert time.monotonic() - began < PATIENCE_S
            entries = (await fleet.transcript(limit=10)).entries
            assert [entry.kind for entry in reversed(entries)][:2] == ["opened", "orders"]
            stop.set()
        assert ready.is_set()
        kept = read(tmp_path / "maintainer" / "transcript.jsonl").entries
        assert tuple(reversed(entries)) == kept[: len(entries)]


@pytest.mark.anyio
@pytest.mark.timeout(240)
async def test_what_an_agent_escalates_reaches_a_webhook_over_http_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with planes(tmp_path) as (dataflow, address), connect_fleet(address, TOKEN) as fleet, receiving() as hook:
        monkeypatch.setenv("ASTRAFLOW_WEBHOOK_URL", hook.url)
        kept = tmp_path / "maintainer" / NOTICES_FILE
        for life, words in enumerate(("quota is gone", "still gone")):
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                running = serve(
                    told(),
                    dataflow=dataflow,
                    fleet=address,
                    token=TOKEN,
                    authority=None,
                    directory=tmp_path / "maintainer",
                    stop=stop,
                    on_ready=lambda what: None,
                )
                tasks.create_task(running)
                await fleet.escalate("warning", actor=HAL, key=f"e{life}", reason=words)
                deadline = time.monotonic() + 2 * PATIENCE_S
                while (
                    len(hook.got) <= life or Outbox(kept, run="run-1").unsent
                ):  # one that ends before that sends again
                    assert time.monotonic() < deadline, hook.got
                    await asyncio.sleep(0.05)
                stop.set()
        assert [got["text"] for got in hook.got] == ["warning: quota is gone", "warning: still gone"]
        assert {got["title"] for got in hook.got} == {"hal escalates"}


@pytest.mark.anyio
async def test_a_proposal_is_approved_or_rejected_over_the_wire(tmp_path: Path) -> None:
    async with planes(tmp_path) as (_, address), connect_fleet(address, TOKEN) as fleet:
        for number, decide in enumerate(("approve", "reject")):
            asked = PlanRequest(pool=LOCAL, actor=ALICE, reason="more", target=number + 1)
            plan = await fleet.plan(asked)
            assert json.loads(plan.guard_json)["proposal"]["actor"] == "alice"
            proposal = await fleet.propose(plan.id, actor=ALICE, key=f"p{number}", reason="more")
            assert proposal.state is ProposalState.WAITING
            assert [one.plan.id for one in await fleet.proposals()] == [plan.id]
            if decide == "approve":
                await fleet.apply(plan.id, key="yes", approver=ALICE)
            else:
                await fleet.reject(plan.id, actor=OTTO, key="no", reason="too many")
            assert await fleet.proposals() == ()
        states = [one.state for one in await fleet.proposals(only_waiting=False)]
        assert states == [ProposalState.REJECTED, ProposalState.APPROVED]
        await fleet.hand_over("all is well", pool=LOCAL, actor=HAL, key="n", reason="a note")
        assert (await fleet.decisions(limit=1))[0].kind == "note"


@pytest.mark.anyio
async def test_who_holds_an_agents_credential_sets_no_mode_and_rejects_nothing(tmp_path: Path) -> None:
    agent = Seal(TOKEN).text(Caller(id=new_id(), role=Holder.AGENT, expires_at=2e10, name="hal"))
    async with planes(tmp_path) as (dataflow, address), connect_fleet(address, agent) as fleet:
        root = Actor(name="root", role=Role.ADMIN)
        with pytest.raises(NotPermitted, match="SetMaintainerMode is open to"):
            await fleet.set_maintainer_mode(MaintainerMode.AUTO, actor=root, key="m", reason="trust me")
        with pytest.raises(NotPermitted, match="RejectPlan is open to"):
            await fleet.reject(PlanId("p"), actor=root, key="r", reason="r")
        async with built(
            told(), dataflow=dataflow, fleet=address, token=agent, authority=None, directory=tmp_path / "m"
        ) as maintainer:
            status = await maintainer.once()
        assert status.counters["wakes"] == 1.0


def test_replay_is_quiet_when_the_guard_says_the_same_and_shows_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    asyncio.run(_with_verdicts(path))
    assert main(["replay", str(path)]) == 0
    assert "1 of 1 verdicts are the same" in capsys.readouterr().out
    path.write_bytes(path.read_bytes() + b'{"torn')
    assert main(["replay", str(path)]) == 0
    assert "torn (6 bytes)" in capsys.readouterr().out
    asyncio.run(_with_verdicts(tmp_path / "other.jsonl", verdict="needs_approval"))
    assert main(["replay", str(tmp_path / "other.jsonl")]) == 1
    said = capsys.readouterr().out
    assert "-needs_approval" in said
    assert "+refused" in said
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    assert main(["replay", str(path)]) != 0


def test_the_exact_prompt_is_shown_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompt"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["system"].startswith("You look after")
    assert [tool["name"] for tool in shown["tools"]][-1] == "fleet_escalate"


@pytest.mark.anyio
async def test_what_a_model_would_be_told_now_is_shown_beside_a_running_maintainer(tmp_path: Path) -> None:
    async with planes(tmp_path) as (dataflow, address):
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "maintainer", "prompt", "--dataflow", dataflow, "--fleet", address),
            env={**os.environ, "ASTRAFLOW_TOKEN": TOKEN},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, problem = await asyncio.wait_for(asking.communicate(), 30.0)
    assert asking.returncode == 0, problem
    first = json.loads(said)["first_message"]
    assert '"pools":[{"pool":"pool-' in first
    assert LOCAL not in first.split('"pools"')[1].split('"provider"')[0]


async def _with_verdicts(path: Path, *, verdict: str = "refused") -> None:
    situation = Situation(
        now=0.0, spec=spec(max_nodes=3), instances=(), target=1, rule_target=1, report_age_s=1.0, changed_at=(),
        cool_down_s=0.0, hold_until=None, breaker_until=None, kill=KillScope.NONE, usd_per_hour=0.0, usd_today=0.0,
        fleet_usd_per_hour=0.0, fleet_usd_today=0.0,
    )  # fmt: skip
    proposal = guard.Proposal(actor=HAL, target=9, launches=9, victims=(), usd_per_hour_change=9.0)
    evidence = Evidence(situation=situation, proposal=proposal, limits=Limits())
    findings = [[one.code, one.verdict.value, one.message] for one in evidence.findings()]
    body = {"plan": "p", "pool": "eu", "guard": json.loads(evidence.to_json()), "findings": findings}
    with Transcript(path, ManualClock()) as transcript:
        assert line_of(await transcript.add(Kind.VERDICT, {**body, "verdict": verdict}))
