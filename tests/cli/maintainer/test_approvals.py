"""`astraflow maintainer proposals`, `approve` and `reject`, against a real fleet plane."""

import asyncio
import getpass
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from astraflow.cli.main import app
from astraflow.client.fleet_plane import connect_fleet
from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.contract.fleet.plans import Plan, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.records import render_summary
from maintainer.agent.tools import results
from maintainer.mcp.server import OUTCOME_ADVICE
from tests.fakes.control_plane import TOKEN
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.maintainer.fleet.parts import HAL
from tests.words import command_of

pytestmark = pytest.mark.anyio

POOL = PoolId("eu")


async def run(fleet: RunningFleet, *arguments: str) -> Result:
    """Runs the command in a thread, because it starts its own event loop."""
    command = ["maintainer", *arguments, "--fleet", fleet.address]
    return await asyncio.to_thread(CliRunner(env={"ASTRAFLOW_TOKEN": TOKEN}).invoke, app, command)


async def read(fleet: RunningFleet, *arguments: str) -> Any:
    """Returns the command's JSON output."""
    ran = await run(fleet, *arguments, "--json")
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return json.loads(ran.stdout)


async def proposed(fleet: RunningFleet, target: int) -> Plan:
    """Submits an agent's plan for approval."""
    async with connect_fleet(fleet.address, TOKEN) as plane:
        plan = await plane.plan(PlanRequest(pool=POOL, actor=HAL, reason="the [b]trainer[/b] waits", target=target))
        await plane.propose(plan.id, actor=HAL, key=f"p-{plan.id}", reason="more")
        return plan


async def test_a_proposal_is_listed_and_approved_once_with_a_reason(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        assert "no proposals" in (await run(fleet, "proposals")).output
        plan = await proposed(fleet, 2)
        listed = (await run(fleet, "proposals")).output
        assert f"astraflow maintainer approve {plan.id}" in listed
        assert "[b]trainer[/b] waits" in listed, "text of other authors is not rendered as markup"
        assert "1 to launch" in listed
        assert "astraflow maintainer approve" in (await run(fleet, "status")).output
        decide = ("approve", plan.id, "--reason", "checked", "--key", "k-1")
        applied = await read(fleet, *decide)
        assert len(applied["launched"]) == 1
        assert await read(fleet, *decide) == applied, "a repeated key gets the first answer"
        async with connect_fleet(fleet.address, TOKEN) as plane:
            notes = [decision for decision in await plane.decisions(pool=POOL) if decision.kind.value == "note"]
            assert [(note.reason, note.actor) for note in notes] == [("checked", getpass.getuser())]
            [entry] = [
                decision
                for decision in await plane.decisions(pool=POOL)
                if decision.kind.value == "apply" and decision.key == "k-1"
            ]
            assert f"approved by {getpass.getuser()}" in render_summary(entry)
        [decided] = await read(fleet, "proposals", "--all")
        assert (decided["state"], decided["decided_by"]) == ("approved", getpass.getuser())
        assert await read(fleet, "proposals") == []
        again = await run(fleet, "approve", plan.id)
        assert isinstance(again.exception, Conflict)
        assert again.exception.code == "proposal.not_waiting"


async def test_a_rejection_needs_a_reason_and_prevents_approval(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        plan = await proposed(fleet, 2)
        assert (await run(fleet, "reject", plan.id)).exit_code == 2, "a rejection needs a reason"
        decide = ("reject", plan.id, "--reason", "not now", "--key", "n-1")
        decision = await read(fleet, *decide)
        assert (decision["kind"], decision["reason"]) == ("reject", "not now")
        assert (await read(fleet, *decide))["ordinal"] == decision["ordinal"]
        assert isinstance((await run(fleet, "approve", plan.id, "--key", "other")).exception, Conflict)
        other = await run(fleet, "reject", plan.id, "--reason", "again")
        assert isinstance(other.exception, InvalidInput)
        assert "not now" in (await run(fleet, "proposals", "--all")).output


def test_the_command_suggested_to_agents_exists() -> None:
    advice = " ".join([*results.ERROR_ADVICE.values(), *OUTCOME_ADVICE.values()])
    commands = re.findall(r"`astraflow ([a-z ]+?)(?: [A-Z].*?)?`", advice)
    assert "maintainer approve" in commands
    for command in commands:
        assert command_of(command.split())[1] == []
