"""`astraflow fleet`, against a real fleet plane."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from astraflow.cli.main import app
from astraflow.contract.errors import InvalidInput, NotPermitted
from tests.fakes.control_plane import TOKEN
from tests.fakes.fleet import RunningFleet, running_fleet

pytestmark = pytest.mark.anyio


async def run(fleet: RunningFleet, *arguments: str) -> Result:
    """In a thread: the command line has an event loop of its own."""
    given = ["fleet", *arguments, "--at", fleet.address, "--token", TOKEN]
    return await asyncio.to_thread(CliRunner().invoke, app, given)


async def read(fleet: RunningFleet, *arguments: str) -> Any:
    """What it says to scripts."""
    ran = await run(fleet, *arguments, "--json")
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return json.loads(ran.stdout)


async def test_a_pool_is_looked_at_planned_changed_and_held(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        before = await read(fleet, "status")
        assert [pool["spec"]["id"] for pool in before["pools"]] == ["eu"]
        assert before["pools"][0]["nodes"] == {"ready": 1}
        plan = await read(fleet, "plan", "eu", "--target", "3", "--reason", "the trainer waits")
        assert (plan["launches"], plan["verdict"]) == (2, "allowed")
        applied = await read(fleet, "apply", plan["id"], "--key", "k-1")
        assert len(applied["launched"]) == 2
        assert await read(fleet, "apply", plan["id"], "--key", "k-1") == applied
        listed = await read(fleet, "instances", "--pool", "eu")
        assert {one["id"] for one in listed} >= set(applied["launched"])
        held = await read(fleet, "hold", "eu", "--minutes", "5", "--reason", "a demonstration")
        assert held["kind"] == "hold"
        kinds = [entry["kind"] for entry in await read(fleet, "decisions", "--limit", "2")]
        assert kinds == ["hold", "apply"]


async def test_people_get_tables_and_what_to_type_next(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        ran = await run(fleet, "status")
        assert ran.exit_code == 0, ran.exception
        status = ran.output
        assert "eu" in status
        assert "1.00 $/h" in status
        planned = (await run(fleet, "plan", "eu", "--target", "2", "--reason", "more")).output
        assert "astraflow fleet apply" in planned
        too_many = (await run(fleet, "plan", "eu", "--target", "90", "--reason", "more")).output
        assert "max_nodes" in too_many
        assert "astraflow fleet apply" not in too_many
        for command in ("instances", "decisions"):
            assert "alice" in (await run(fleet, command)).output


async def test_the_kill_switch_is_turned_on_and_off(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        assert (await read(fleet, "kill", "on", "--agents", "--reason", "odd"))["kind"] == "kill_switch"
        assert (await read(fleet, "status"))["kill"] == "agents"
        await read(fleet, "kill", "on", "--reason", "very odd")
        plan = await read(fleet, "plan", "eu", "--target", "2", "--reason", "more")
        refused = await run(fleet, "apply", plan["id"])
        assert isinstance(refused.exception, NotPermitted)
        assert "kill switch" in str(refused.exception)
        assert "The kill switch is on for all: very odd" in (await run(fleet, "status")).output
        await read(fleet, "kill", "off", "--reason", "fine again")
        assert (await read(fleet, "status"))["kill"] == "none"


async def test_a_provider_is_listed_and_tested_and_nothing_is_started(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        (before,) = await read(fleet, "providers")
        assert (before["name"], before["kind"], before["pools"], before["last"]) == ("cloud", "cloud", ["eu"], None)
        assert "not tested yet" in (await run(fleet, "providers")).output
        found = await read(fleet, "test", "cloud")
        assert [(check["kind"], check["pool"], check["is_ok"]) for check in found["checks"]] == [
            ("list", None, True),
            ("launch", "eu", True),
            ("price", "eu", True),
        ]
        said = (await run(fleet, "test", "cloud")).output
        assert "yes launch for eu: a small machine would be started" in said
        assert "all 3 checks passed" in said
        assert "all 3 checks passed" in (await run(fleet, "providers")).output
        assert fleet.parts.states() == {"ready": 1}


async def test_a_provider_that_would_not_do_its_part_is_code_1_with_what_would_help(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, pool={"type": "enormous"}) as fleet:
        ran = await run(fleet, "test", "cloud")
        assert ran.exit_code == 1
        said = " ".join(ran.output.split())
        assert "no launch for eu: Invalid: no type is called 'enormous'" in said
        assert "Correct what is named: the provider's table in the fleet's file, or the pool's spec." in said
        assert "1 of 2 checks failed" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kill", "maybe", "--reason", "x"), "the kill switch is turned on"),
        (("plan", "eu", "--reason", "x"), "either a target or which instances"),
        (("plan", "eu", "--target", "1", "--reason", " "), "a plan needs a reason"),
        (("plan", "no pool!", "--target", "1", "--reason", "x"), "is not a name"),
        (("plan", "nowhere", "--target", "1", "--reason", "x"), "no pool is called"),
        (("test", "nowhere"), "no provider is called 'nowhere'; known: cloud"),
    ],
)
async def test_wrong_input_is_told(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    async with running_fleet(tmp_path) as fleet:
        ran = await run(fleet, *arguments)
        assert isinstance(ran.exception, InvalidInput)
        assert said in str(ran.exception)


def test_without_a_run_it_says_how_to_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("ASTRAFLOW_TOKEN", raising=False)
    ran = CliRunner().invoke(app, ["fleet", "status"])
    assert "astraflow run RECIPE --fleet" in str(ran.exception)
    assert "--token-file" in str(CliRunner().invoke(app, ["fleet", "status", "--at", "127.0.0.1:9"]).exception)
