import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from astraflow.cli.running.supervisor import ProcessEvent, Program, RestartLimits, RoleFailed, Supervisor
from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

QUICK = RestartLimits(first_delay_s=0.01, max_delay_s=0.02, stable_after_s=5.0, grace_s=0.5, ready_within_s=20.0)
SERVE = "import sys; print('ready here:1', flush=True); sys.stdin.read()"


def program(folder: Path, code: str, *, name: str = "role", **options: object) -> Program:
    return Program(name=name, argv=(sys.executable, "-c", code), log=folder / f"{name}.log", **options)  # type: ignore[arg-type]  # options of Program


class Heard:
    """Records supervisor events and lets a test wait for them."""

    def __init__(self) -> None:
        self.happenings: list[ProcessEvent] = []

    def __call__(self, event: ProcessEvent) -> None:
        self.happenings.append(event)

    def of(self, kind: str) -> list[ProcessEvent]:
        return [event for event in self.happenings if event.kind == kind]

    async def until(self, kind: str, count: int = 1) -> list[ProcessEvent]:
        await eventually(lambda: len(self.of(kind)) >= count)
        return self.of(kind)


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 (other processes set no events)
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
async def test_a_program_is_ready_when_it_says_so_and_stopped_at_the_end(tmp_path: Path) -> None:
    events = Heard()
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, SERVE))
        where = await supervisor.ready("role")
    assert where == "here:1"
    assert not is_running(events.of("started")[0].pid)
    assert (tmp_path / "role.log").read_text() == "ready here:1\n"


@pytest.mark.long
async def test_a_killed_program_is_restarted(tmp_path: Path) -> None:
    events = Heard()
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, SERVE))
        await supervisor.ready("role")
        os.kill(events.of("started")[0].pid, signal.SIGKILL)
        await events.until("ready", 2)
    assert supervisor.restarts == 1
    assert events.of("failed")[0].message.endswith("signal 9")


async def test_a_program_that_fails_with_an_error_is_reported_with_it(tmp_path: Path) -> None:
    events = Heard()
    code = "import sys; print('ready x', flush=True); print('error: no service [a.code]', file=sys.stderr); sys.exit(1)"
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, code))
        await events.until("failed")
    assert events.of("failed")[0].message == "exited with code 1 (no service [a.code])"


async def test_a_program_that_ends_with_a_traceback_is_reported_with_its_last_line_and_the_log(tmp_path: Path) -> None:
    events = Heard()
    code = "def work():\n  raise ValueError('no such room')\nwork()"
    with pytest.raises(ExceptionGroup):
        async with Supervisor(events, restart_limits=QUICK) as supervisor:
            supervisor.start(program(tmp_path, code))
            await supervisor.wait_until_exited("role")
    assert "ValueError: no such room; its traceback is in" in events.of("failed")[0].message
    assert str(tmp_path) in events.of("failed")[0].message


async def test_output_that_reaches_the_log_after_the_error_is_no_part_of_it(tmp_path: Path) -> None:
    events = Heard()
    code = "import sys; print('error: two lines\\nof it [a.code]\\nready x', file=sys.stderr); sys.exit(1)"
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, code))
        await events.until("failed")
    assert events.of("failed")[0].message == "exited with code 1 (two lines\nof it [a.code])"


async def test_a_program_that_keeps_failing_is_abandoned_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with Supervisor(Heard(), restart_limits=QUICK) as supervisor:
            supervisor.start(program(tmp_path, "raise ValueError('unlucky')"))
            await supervisor.ready("role")
    (problem,) = failed.value.exceptions
    assert isinstance(problem, RoleFailed)
    assert problem.code == "process.keeps_failing"
    assert "5 times within 20 s" in str(problem)
    assert "ValueError: unlucky" in str(problem)


async def test_a_program_that_refuses_its_input_is_not_restarted(tmp_path: Path) -> None:
    events = Heard()
    code = "import sys; print('error: port 1:\\nstop it', file=sys.stderr); sys.exit(2)"
    with pytest.raises(ExceptionGroup) as failed:
        async with Supervisor(events, restart_limits=QUICK) as supervisor:
            supervisor.start(program(tmp_path, code))
            await supervisor.ready("role")
    assert str(failed.value.exceptions[0]) == "role: port 1:\nstop it"
    assert len(events.of("started")) == 1


@pytest.mark.long
async def test_a_failed_program_stops_the_others(tmp_path: Path) -> None:
    events = Heard()
    with pytest.raises(ExceptionGroup):
        async with Supervisor(events, restart_limits=QUICK) as supervisor:
            supervisor.start(program(tmp_path, SERVE, name="good"))
            await supervisor.ready("good")
            supervisor.start(program(tmp_path, "import sys; sys.exit(2)", name="bad"))
            await asyncio.sleep(20)
    assert not any(is_running(event.pid) for event in events.of("started"))


@pytest.mark.long
async def test_a_program_that_ignores_a_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    events = Heard()
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print('ready', child.pid, flush=True); time.sleep(60)"
    )
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, code))
        grandchild = int(await supervisor.ready("role"))
    assert not is_running(events.of("started")[0].pid)
    await eventually(lambda: not is_running(grandchild))


@pytest.mark.parametrize("code", [0, 143], ids=["complete", "terminated"])
async def test_a_program_that_may_exit_is_not_restarted(tmp_path: Path, code: int) -> None:
    events = Heard()
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, f"raise SystemExit({code})", announces=False, may_exit=True))
        await events.until("exited")
    assert supervisor.restarts == 0
    assert events.of("failed") == []


@pytest.mark.long
async def test_programs_stop_in_the_order_of_their_waves(tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        f"def stop(*_): open({str(order)!r}, 'a').write('NAME '); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop); print('ready x', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    async with Supervisor(Heard(), restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, code.replace("NAME", "service"), name="service", stop_wave=1))
        supervisor.start(program(tmp_path, code.replace("NAME", "node"), name="node"))
        await supervisor.ready("service")
        await supervisor.ready("node")
    assert order.read_text().split() == ["node", "service"]


async def test_progress_lines_become_events(tmp_path: Path) -> None:
    events = Heard()
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, f"print('progress half way', flush=True); {SERVE}"))
        await supervisor.ready("role")
    assert [event.message for event in events.of("progress")] == ["half way"]


async def test_a_program_that_is_never_ready_fails_with_its_log(tmp_path: Path) -> None:
    restart_limits = RestartLimits(ready_within_s=0.5, grace_s=0.5)
    with pytest.raises(ExceptionGroup) as failed:
        async with Supervisor(Heard(), restart_limits=restart_limits) as supervisor:
            supervisor.start(program(tmp_path, "import sys; print('busy', flush=True); sys.stdin.read()"))
            await supervisor.ready("role")
    (problem,) = failed.value.exceptions
    assert isinstance(problem, RoleFailed)
    assert problem.code == "process.not_ready"
    assert "0.5 s" in str(problem)
    assert str(problem).endswith("\n  busy")


async def test_a_failed_inessential_program_does_not_stop_the_others(tmp_path: Path) -> None:
    events = Heard()
    async with Supervisor(events, restart_limits=QUICK) as supervisor:
        supervisor.start(program(tmp_path, SERVE, name="service"))
        supervisor.start(program(tmp_path, "import sys; sys.exit(2)", name="web", is_essential=False))
        await supervisor.ready("service")
        with raises_code(RoleFailed, "process.not_ready", "'web'"):
            await supervisor.ready("web")
    assert [event.program for event in events.of("abandoned")] == ["web"]


async def test_a_program_that_was_ready_is_restarted_twice_after_refusing_its_input(tmp_path: Path) -> None:
    events = Heard()
    with pytest.raises(ExceptionGroup) as failed:
        async with Supervisor(events, restart_limits=QUICK) as supervisor:
            supervisor.start(program(tmp_path, "import sys; sys.exit(2)", announces=False))
            supervisor.mark_ready("role")
            await supervisor.wait_until_exited("role")
    (problem,) = failed.value.exceptions
    assert isinstance(problem, RoleFailed)
    assert problem.code == "process.refused"
    assert "'role'" in str(problem)
    assert len(events.of("started")) == 3


async def test_a_missing_program_is_reported_with_its_name(tmp_path: Path) -> None:
    absent = Program(name="web", argv=("/nowhere/python",), log=tmp_path / "web.log")
    with pytest.raises(ExceptionGroup) as failed:
        async with Supervisor(Heard(), restart_limits=QUICK) as supervisor:
            supervisor.start(absent)
            await supervisor.ready("web")
    (problem,) = failed.value.exceptions
    assert isinstance(problem, InvalidInput)
    assert problem.code == "process.not_started"
    assert "'web'" in str(problem)


@pytest.mark.long
async def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from astraflow.cli.running.supervisor import Program, Supervisor\n"
        "async def main():\n"
        f"    role = Program(name='role', argv=(sys.executable, '-c', {SERVE!r}), log=Path({str(tmp_path)!r}, 'l'))\n"
        "    async with Supervisor(lambda happening: print(happening.kind, happening.pid, flush=True)) as supervisor:\n"
        "        supervisor.start(role); await supervisor.ready('role'); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    pid = int((await process.stdout.readline()).split()[1])
    assert (await process.stdout.readline()).split()[0] == b"ready"
    process.kill()
    await process.wait()
    await eventually(lambda: not is_running(pid))
