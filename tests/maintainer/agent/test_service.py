"""The maintainer over gRPC with a real fleet service, and its command line."""

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
from astraflow.access.credentials import CredentialSigner, new_id
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.errors import NotPermitted
from astraflow.contract.fleet.maintainer import Maintainer, MaintainerMode, MaintainerState, ProposalState
from astraflow.contract.fleet.plans import Actor, PlanId, PlanRequest, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.record_kinds import Severity
from astraflow.wire.server import ListenOptions
from maintainer.__main__ import main
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.notifications.notice_queue import NoticeQueue
from maintainer.agent.prompt import SYSTEM
from maintainer.agent.service import NOTICES_FILE, open_maintainer, serve
from maintainer.agent.transcript.transcript import Kind, Transcript, line_of, read
from maintainer.fleet.guard import guard
from maintainer.fleet.guard.guard import Situation
from maintainer.fleet.guard.inputs import GuardInputs
from maintainer.fleet.guard.rules import Limits
from maintainer.fleet.service import serve as serve_fleet
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun
from tests.maintainer.agent.notifications.test_webhook import receiving
from tests.maintainer.fleet.parts import ALICE, HAL, OTTO, spec
from tests.maintainer.fleet.test_service import LOCAL, PATIENCE_S, config

pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def planes(directory: Path, **changes: Any) -> AsyncIterator[tuple[str, str]]:
    """Yields addresses of a dataflow and a fleet service. changes: fleet configuration."""
    plane = FakeControlPlane(sequence=5, synthetic_run=SyntheticRun(has_fault=False))
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with plane.serving() as dataflow, asyncio.TaskGroup() as tasks:
        fleet = serve_fleet(
            config(**changes),
            dataflow=dataflow,
            join_address=dataflow,
            token=TOKEN,
            authority=None,
            listen=ListenOptions(token=TOKEN),
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
    while not holds(maintainer_view := await fleet.maintainer()):
        assert time.monotonic() < deadline, maintainer_view
        await asyncio.sleep(0.05)
    return maintainer_view


def maintainer_config(**changes: Any) -> MaintainerConfig:
    return MaintainerConfig.parse({"mode": "propose", "watch": {"observe_interval_s": 0.1}, **changes}, where="")


@pytest.mark.anyio
async def test_people_watch_and_control_the_maintainer_over_the_fleet_service(tmp_path: Path) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    async with planes(tmp_path) as (dataflow, address), connect_fleet(address, TOKEN) as fleet:
        assert (await fleet.maintainer()).status is None
        async with asyncio.TaskGroup() as tasks:
            running = serve(
                maintainer_config(),
                dataflow=dataflow,
                fleet=address,
                token=TOKEN,
                authority=None,
                directory=tmp_path / "maintainer",
                stop=stop,
                on_ready=lambda what: ready.set(),
            )
            tasks.create_task(running)
            maintainer_view = await until(fleet, lambda view: view.status is not None)
            assert maintainer_view.status is not None
            assert (maintainer_view.mode, maintainer_view.status.is_simulated) == (MaintainerMode.PROPOSE, True)
            assert {line.unit for line in maintainer_view.status.budgets} >= {"tokens", "usd", "tool_calls", "seconds"}
            await fleet.set_maintainer_mode(MaintainerMode.SHADOW, actor=OTTO, key="m", reason="a look first")
            await until(fleet, lambda view: view.status.mode is MaintainerMode.SHADOW)
            began = time.monotonic()
            await fleet.kill_switch(KillScope.AGENTS, actor=OTTO, key="k", reason="enough")
            await until(fleet, lambda view: view.status.state is MaintainerState.STOPPED)
            assert time.monotonic() - began < PATIENCE_S
            entries = (await fleet.transcript(limit=10)).entries
            assert [entry.kind for entry in reversed(entries)][:2] == ["opened", "orders"]
            stop.set()
        assert ready.is_set()
        kept = read(tmp_path / "maintainer" / "transcript.jsonl").entries
        assert tuple(reversed(entries)) == kept[: len(entries)]


@pytest.mark.anyio
@pytest.mark.timeout(240)
async def test_an_agents_escalation_reaches_a_webhook_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with planes(tmp_path) as (dataflow, address), connect_fleet(address, TOKEN) as fleet, receiving() as hook:
        monkeypatch.setenv("ASTRAFLOW_WEBHOOK_URL", hook.url)
        kept = tmp_path / "maintainer" / NOTICES_FILE
        reasons = ("quota is gone", "still gone")
        for life, words in enumerate(reasons):
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                running = serve(
                    maintainer_config(),
                    dataflow=dataflow,
                    fleet=address,
                    token=TOKEN,
                    authority=None,
                    directory=tmp_path / "maintainer",
                    stop=stop,
                    on_ready=lambda what: None,
                )
                tasks.create_task(running)
                await fleet.escalate(Severity.WARNING, actor=HAL, key=f"e{life}", reason=words)
                deadline = time.monotonic() + 2 * PATIENCE_S
                while (
                    len(hook.got) <= life or NoticeQueue(kept, run="run-1").unsent
                ):  # a process that ends earlier sends the notice again
                    assert time.monotonic() < deadline, hook.got
                    await asyncio.sleep(0.05)
                stop.set()
        assert [notification["text"] for notification in hook.got] == list(reasons)
        assert {notification["title"] for notification in hook.got} == {"hal escalates"}


@pytest.mark.long
@pytest.mark.anyio
async def test_a_proposal_is_approved_or_rejected_over_the_network(tmp_path: Path) -> None:
    async with planes(tmp_path) as (_, address), connect_fleet(address, TOKEN) as fleet:
        for number, decide in enumerate(("approve", "reject")):
            request = PlanRequest(pool=LOCAL, actor=ALICE, reason="more", target=number + 1)
            plan = await fleet.plan(request)
            assert json.loads(plan.guard_json)["proposal"]["actor"] == "alice"
            proposal = await fleet.propose(plan.id, actor=ALICE, key=f"p{number}", reason="more")
            assert proposal.state is ProposalState.WAITING
            assert [proposal.plan.id for proposal in await fleet.proposals()] == [plan.id]
            if decide == "approve":
                await fleet.apply(plan.id, key="yes", approver=ALICE)
            else:
                await fleet.reject(plan.id, actor=OTTO, key="no", reason="too many")
            assert await fleet.proposals() == ()
        states = [proposal.state for proposal in await fleet.proposals(only_waiting=False)]
        assert states == [ProposalState.REJECTED, ProposalState.APPROVED]
        await fleet.hand_over("all is well", pool=LOCAL, actor=HAL, key="n", reason="a note")
        assert (await fleet.decisions(limit=1))[0].kind.value == "note"


@pytest.mark.long
@pytest.mark.anyio
async def test_an_agents_credential_cannot_set_the_mode_or_reject_plans(tmp_path: Path) -> None:
    agent = CredentialSigner(TOKEN).sign(Caller(id=new_id(), role=Holder.AGENT, expires_at=2e10, name="hal"))
    async with planes(tmp_path) as (dataflow, address), connect_fleet(address, agent) as fleet:
        root = Actor(name="root", role=Role.ADMIN)
        with raises_code(NotPermitted, "route.not_permitted", "SetMaintainerMode"):
            await fleet.set_maintainer_mode(MaintainerMode.AUTO, actor=root, key="m", reason="trust me")
        with raises_code(NotPermitted, "route.not_permitted", "RejectPlan"):
            await fleet.reject(PlanId("p"), actor=root, key="r", reason="r")
        async with open_maintainer(
            maintainer_config(), dataflow=dataflow, fleet=address, token=agent, authority=None, directory=tmp_path / "m"
        ) as maintainer:
            status = await maintainer.run_one_wake()
        assert status.counters["wakes"] == 1.0


def test_replay_shows_only_verdicts_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    asyncio.run(_with_verdicts(path))
    assert main(["replay", str(path)]) == 0
    assert "1 of 1" in capsys.readouterr().out
    path.write_bytes(path.read_bytes() + b'{"torn')
    assert main(["replay", str(path)]) == 0
    assert "incomplete (6 bytes)" in capsys.readouterr().out
    asyncio.run(_with_verdicts(tmp_path / "other.jsonl", verdict="needs_approval"))
    assert main(["replay", str(tmp_path / "other.jsonl")]) == 1
    output = capsys.readouterr().out
    assert "-needs_approval" in output
    assert "+refused" in output
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    assert main(["replay", str(path)]) != 0


def test_the_prompt_is_printed_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompt"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["system"] == SYSTEM
    assert [tool["name"] for tool in shown["tools"]][-1] == "fleet_escalate"


@pytest.mark.long
@pytest.mark.anyio
async def test_the_models_next_message_is_printed_beside_a_running_maintainer(tmp_path: Path) -> None:
    async with planes(tmp_path) as (dataflow, address):
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "maintainer", "prompt", "--dataflow", dataflow, "--fleet", address),
            env={**os.environ, "ASTRAFLOW_TOKEN": TOKEN},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, problem = await asyncio.wait_for(asking.communicate(), 30.0)
    assert asking.returncode == 0, problem
    first = json.loads(output)["first_message"]
    assert '"pools":[{"pool":"pool-' in first
    assert LOCAL not in first.split('"pools"')[1].split('"provider"')[0]


async def _with_verdicts(path: Path, *, verdict: str = "refused") -> None:
    situation = Situation(
        now=0.0, spec=spec(max_nodes=3), instances=(), target=1, rule_target=1, report_age_s=1.0, changed_at=(),
        cool_down_s=0.0, hold_until_at=None, breaker_until=None, kill=KillScope.NONE, usd_per_hour=0.0,
        usd_today=0.0, fleet_usd_per_hour=0.0, fleet_usd_today=0.0,
    )  # fmt: skip
    proposal = guard.ProposedChange(actor=HAL, target=9, launches=9, victims=(), usd_per_hour_change=9.0)
    evidence = GuardInputs(situation=situation, proposal=proposal, limits=Limits())
    findings = [[finding.code.value, finding.verdict.value, finding.message] for finding in evidence.violations()]
    body = {"plan": "p", "pool": "eu", "guard": json.loads(evidence.to_json()), "findings": findings}
    with Transcript(path, ManualClock()) as transcript:
        assert line_of(await transcript.add(Kind.VERDICT, {**body, "verdict": verdict}))
