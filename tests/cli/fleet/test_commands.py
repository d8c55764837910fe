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
    """Runs the command in a thread, because it starts its own event loop."""
    command = ["fleet", *arguments, "--address", fleet.address, "--token", TOKEN]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


async def read(fleet: RunningFleet, *arguments: str) -> Any:
    """Returns the command's JSON output."""
    ran = await run(fleet, *arguments, "--json")
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return json.loads(ran.stdout)


async def test_a_pool_can_be_shown_planned_changed_and_held(tmp_path: Path) -> None:
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
        assert {instance["id"] for instance in listed} >= set(applied["launched"])
        held = await read(fleet, "hold", "eu", "--minutes", "5", "--reason", "a demonstration")
        assert held["kind"] == "hold"
        kinds = [entry["kind"] for entry in await read(fleet, "decisions", "--limit", "2")]
        assert kinds == ["hold", "apply"]


async def test_table_output_suggests_the_next_command(tmp_path: Path) -> None:
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
        assert "all: very" in (await run(fleet, "status")).output
        await read(fleet, "kill", "off", "--reason", "fine again")
        assert (await read(fleet, "status"))["kill"] == "none"


async def test_a_preflight_check_starts_no_instance(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, nodes=1) as fleet:
        (before,) = await read(fleet, "providers")
        assert (before["name"], before["kind"], before["pools"], before["last_preflight"]) == (
            "cloud",
            "cloud",
            ["eu"],
            None,
        )
        assert "not checked" in (await run(fleet, "providers")).output
        preflight_result = await read(fleet, "preflight", "cloud")
        assert [(check["kind"], check["pool"], check["is_ok"]) for check in preflight_result["checks"]] == [
            ("list", None, True),
            ("launch", "eu", True),
            ("price", "eu", True),
        ]
        output = (await run(fleet, "preflight", "cloud")).output
        assert "launch for eu" in output
        assert "all 3 checks" in output
        assert "all 3 checks" in (await run(fleet, "providers")).output
        assert fleet.parts.states() == {"ready": 1}


async def test_a_failed_preflight_check_exits_with_1_and_names_the_cause(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, pool={"type": "enormous"}) as fleet:
        ran = await run(fleet, "preflight", "cloud")
        assert ran.exit_code == 1
        output = " ".join(ran.output.split())
        assert "failed launch" in output
        assert "'enormous'" in output
        assert "pool's spec" in output
        assert "1 of 2" in output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("kill", "maybe", "--reason", "x"), "kill_switch.unknown_value"),
        (("plan", "eu", "--reason", "x"), "plan.invalid_change"),
        (("plan", "eu", "--target", "1", "--reason", " "), "plan.invalid_reason"),
        (("plan", "no pool!", "--target", "1", "--reason", "x"), "id.invalid_name"),
        (("plan", "nowhere", "--target", "1", "--reason", "x"), "fleet.pool_not_found"),
        (("preflight", "nowhere"), "fleet.unknown_provider"),
    ],
)
async def test_invalid_arguments_are_refused(tmp_path: Path, arguments: tuple[str, ...], code: str) -> None:
    async with running_fleet(tmp_path) as fleet:
        ran = await run(fleet, *arguments)
        assert isinstance(ran.exception, InvalidInput)
        assert ran.exception.code == code


def test_without_an_active_run_the_error_names_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("ASTRAFLOW_TOKEN", raising=False)
    ran = CliRunner().invoke(app, ["fleet", "status"])
    assert "--fleet" in str(ran.exception)
    assert "--token-file" in str(CliRunner().invoke(app, ["fleet", "status", "--address", "127.0.0.1:9"]).exception)
