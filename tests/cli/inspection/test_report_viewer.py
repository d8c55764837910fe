import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from astraflow.cli.inspection import report_viewer
from astraflow.cli.inspection.report_viewer import report_tables
from astraflow.cli.run_directory import RunDirectory
from astraflow.cli.run_endpoints import RunEndpoint, find_run
from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.ids import PolicyId
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.diagnosis import diagnose
from astraflow.contract.reports.report import Event, NodeState, Report
from astraflow.runtime.folders.launch_facts import LaunchFacts, write_launch
from astraflow.runtime.folders.run_folders import runs_folder
from tests import make
from tests.errors import raises_code
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun


def shown(*, width: int = 160, **parts: object) -> str:
    console = Console(width=width, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(report_tables(make.report(**parts)))  # type: ignore[arg-type]  # parts of a report
    return captured.get()


async def command(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "astraflow.cli", "report", *arguments, stdout=asyncio.subprocess.PIPE
    )


def test_tables_show_policies_flows_and_nodes() -> None:
    text = shown(nodes=(make.node_report(counters={"weight_bytes_delta": 1e6}),))
    for part in (
        "evening, up 1 s",
        "simulated: engine scripted",
        "solver",
        "train",
        "informative 1",
        "node-1",
        "1.0 MB",
    ):
        assert part in text


def test_a_fork_shows_where_it_comes_from() -> None:
    folder = runs_folder() / "evening"
    folder.mkdir(parents=True)
    write_launch(folder, LaunchFacts(parent="morning", parent_step=40))
    assert "evening, fork of morning at step 40, up 1 s" in shown()


def test_departed_nodes_are_not_shown() -> None:
    nodes = (make.node_report("node-1.1", state=NodeState.GONE), make.node_report("node-2.1"))
    text = shown(nodes=nodes)
    assert "node-2" in text
    assert "node-1" not in text


def test_a_repeated_event_shows_its_count() -> None:
    once = Event(ordinal=1, at=1.0, kind=RecordKind.NODE_LOST, subject="node-1", values={"silent_s": 9})
    refused, values = RecordKind.PUSH_REFUSED, {"error": "stale"}
    repeated = Event(ordinal=2, at=1.0, kind=refused, subject="node-2", values=values, repeats=3)
    console = Console(width=160, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(report_tables(replace(make.report(), events=(once, repeated))))
    text = captured.get()
    assert "requeued (" not in text
    assert "stale (4 times within a minute)" in text


@pytest.mark.long
@pytest.mark.anyio
async def test_once_prints_one_report() -> None:
    async with FakeControlPlane(sequence=30).serving() as address:
        reporting = await command(address, "--token", TOKEN, "--once")
        out, _ = await reporting.communicate()
    assert reporting.returncode == 0
    assert "solver" in out.decode()


@pytest.mark.long
@pytest.mark.anyio
async def test_json_prints_one_report_per_line_until_a_signal() -> None:
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as address:
        reporting = await command(address, "--token", TOKEN, "--json")
        assert reporting.stdout is not None
        first = json.loads(await reporting.stdout.readline())
        await fake.advance()
        second = json.loads(await reporting.stdout.readline())
        reporting.send_signal(signal.SIGINT)
        await reporting.wait()
    assert (first["sequence"], second["sequence"]) == (30, 31)
    assert first["nodes"][0]["state"] in {state.value for state in NodeState}
    assert reporting.returncode == 0


def test_the_active_run_of_this_machine_is_found_with_its_token() -> None:
    with RunDirectory.opened(None, name="smoke", seed=0, recipe="{}") as directory:
        directory.update_facts(dataflow="127.0.0.1:4711")
        assert find_run("", "", None).address == "127.0.0.1:4711"
        assert find_run("127.0.0.1:4711", "", None).token == directory.token
        assert directory.token not in repr(find_run("", "", None))
        with pytest.raises(InvalidInput) as caught:
            find_run("127.0.0.1:4712", "", None)
        assert caught.value.code == "cli.no_token"


def test_a_token_can_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "from-environment")
    assert find_run("h:1", "", file).token == "from-file"
    assert find_run("h:1", "", None).token == "from-environment"
    assert find_run("h:1", "given", None).token == "given"
    file.write_text("\n")
    with raises_code(InvalidInput, "cli.empty_file"):
        find_run("h:1", "", file)


@pytest.mark.anyio
async def test_without_a_terminal_a_report_is_a_line_at_most_every_five_seconds_and_a_diagnosis_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = SyntheticRun()

    async def recorded(_: RunEndpoint) -> AsyncGenerator[Report | AstraFlowError, None]:
        for second in (60, 61, 64, 65, 66, 70):
            yield replace(run.report(second), completion=None)
        for _attempt in range(3):
            yield Unavailable("gone", code="service.unreachable")

    monkeypatch.setattr(report_viewer, "reports", recorded)
    console = Console(file=io.StringIO(), width=400)
    assert isinstance(console.file, io.StringIO)
    await report_viewer.follow_plainly(RunEndpoint(address="", token=""), console, as_json=False)
    lines = console.file.getvalue().splitlines()
    assert lines.pop() == "the run is unavailable: gone"
    assert "unavailable" not in lines[-1]
    texts = [line.split(maxsplit=1)[1] for line in lines]
    diagnosis = diagnose(run.report(60), PolicyId(run.policies[0])).headline
    assert [text.partition("  ")[0] for text in texts if text.startswith("step ")] == ["step 50", "step 54", "step 59"]
    assert sum(text.startswith(diagnosis) for text in texts) == 1
