"""Output and prompts of `astraflow plugins`."""

import asyncio
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from astraflow.cli.inspection.plugins import plugin_slot_table, plugin_slots, read_change
from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.plugins import PlannedPlugins, PluginChange, PluginSlot
from tests import make
from tests.fakes.control_plane import TOKEN, FakeControlPlane


def change_of(**changes: str) -> PluginChange | None:
    nothing = dict.fromkeys(("flow", "policy", "selector", "filters", "sampler", "file", "reason"), "")
    return read_change(**{**nothing, **changes})


async def command(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "astraflow.cli",
        "plugins",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def test_the_table_shows_current_and_planned_plugins() -> None:
    planned = PlannedPlugins(
        slot=PluginSlot.FILTERS, specs=({"kind": "informative"},), actor="ada", reason="a try", version=Version(3)
    )
    flow = replace(make.flow_report(), selector={"kind": "greso", "step": 0.02}, filters=(), planned=(planned,))
    stream = replace(make.stream_report(), sampler={"kind": "replay"})
    console = Console(width=160)
    with console.capture() as captured:
        console.print(plugin_slot_table(plugin_slots(make.report(stream, flows=(flow,)))))
    lines = captured.get().splitlines()
    assert '{"kind": "greso", "step": 0.02}' in lines[1]
    assert "none" in lines[2]
    assert '{"kind": "informative"} (ada: a try)' in lines[2]
    assert '{"kind": "replay"}' in lines[3]


def test_a_change_is_parsed_from_json_with_its_actor() -> None:
    change = change_of(flow="train", selector='{"kind": "greso"}', filters="[]", reason="a try")
    assert change is not None
    assert (change.flow, change.selector, change.filters) == (FlowId("train"), {"kind": "greso"}, ())
    assert (change.policy, change.sampler, change.reason) == (None, None, "a try")
    assert "@" in change.actor


def test_without_options_there_is_no_change() -> None:
    assert change_of() is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"flow": "train", "selector": '{"kind": "greso"}'}, "plugins.reason_required"),
        ({"flow": "train", "selector": "greso", "reason": "r"}, "plugins.invalid_json"),
        ({"flow": "train", "selector": '"greso"', "reason": "r"}, "plugins.invalid_spec"),
        ({"flow": "train", "filters": '{"kind": "length"}', "reason": "r"}, "plugins.invalid_spec"),
        ({"flow": "train", "filters": '["length"]', "reason": "r"}, "plugins.invalid_spec"),
    ],
)
def test_an_invalid_change_is_refused(changes: dict[str, str], code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        change_of(**changes)
    assert caught.value.code == code


@pytest.mark.long
@pytest.mark.anyio
async def test_the_command_sends_the_change_and_prints_the_answer() -> None:
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as address:
        code, output, _ = await command(
            address, "--token", TOKEN, "--policy", "solver", "--sampler", '{"kind": "replay"}', "--reason", "a try"
        )
        shown_code, shown, _ = await command(address, "--token", TOKEN)
        refused_code, _, problem = await command(address, "--token", TOKEN, "--policy", "solver", "--sampler", "{}")
    assert (code, output.strip()) == (0, "it changes with the next version")
    assert [(change.policy, change.sampler) for change in fake.changes] == [(PolicyId("solver"), {"kind": "replay"})]
    assert shown_code == 0
    assert "policy solver" in shown
    assert refused_code == 2
    assert "[plugins.reason_required]" in problem
