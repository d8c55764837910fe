"""Tools `bash` and `python`: in a sandbox that the tests control, and in the real one of this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.runtime.config.base import Config
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, JobLimits, JobResult, Level, Outcome, SandboxError
from astraflow.tools import tool_sources
from astraflow.tools.base import ToolError
from tests import make
from tests.errors import raises_code

pytestmark = pytest.mark.anyio


class FakeOptions(Config):
    """Fault of the sandbox."""

    fails_to_open: bool = False


@sandboxes.register("test_fake", options=FakeOptions)
class FakeSandbox:
    """Echoes commands; `die` loses the session, and names of outcomes end with them."""

    level = Level.NONE
    latest: "FakeSandbox"

    def __init__(self, options: FakeOptions) -> None:
        self._options = options
        self.open = 0
        self.limits: JobLimits | None = None
        FakeSandbox.latest = self

    async def run(self, job: Job) -> JobResult:
        raise AssertionError("tools use sessions")

    @asynccontextmanager
    async def session(self, limits: JobLimits, *, port: int | None = None) -> AsyncIterator["FakeSandbox"]:
        if self._options.fails_to_open:
            raise SandboxError("no worker", code="sandbox.probe_failed")
        self.limits = limits
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> JobResult:
        if command == "die":
            raise SandboxError("the worker is gone", code="sandbox.worker_lost")
        names = [outcome.value for outcome in Outcome]
        outcome = Outcome(command) if command in names else Outcome.PASSED
        text = "" if command == "silent" else f"{command}\n"
        return JobResult(
            outcome=outcome,
            exit_status=2 if outcome is Outcome.FAILED else None,
            stdout=text,
            stderr="",
            wall_s=0.0,
            is_output_cut=command == "long",
        )

    async def python(self, source: str, *, timeout_s: float = 30.0) -> JobResult:
        return await self.shell(f"python {source} {timeout_s:g}")


def source(**options: Any) -> Any:
    return tool_sources.build({"kind": "sandbox", "sandbox": {"kind": "test_fake"}, **options})


@asynccontextmanager
async def started(built: Any) -> AsyncIterator[Any]:
    try:
        await built.start()
        yield built
    finally:
        await built.close()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("ls", "ls"),
        ("silent", "[no output]"),
        ("long", "long\n[the output was cut]"),
        ("failed", "failed\n[exit status 2]"),
        ("timeout", "timeout\n[stopped after the time limit]"),
        ("memory", "memory\n[stopped at the memory limit]"),
        ("crashed", "crashed\n[killed by a signal]"),
    ],
)
async def test_output_and_outcome_are_text(command: str, shown: str) -> None:
    async with started(source()) as built, built.open(make.prompt(), 0) as (bash, python):
        assert (bash.name, python.name) == ("bash", "python")
        assert await bash.call({"command": command}) == shown


async def test_limits_and_tools_are_options() -> None:
    async with started(source(tools=["python"], call_s=3, memory_mib=64, output_bytes=100, processes=4)) as built:
        async with built.open(make.prompt(), 0) as (python,):
            assert await python.call({"source": "x"}) == "python x 3"
            assert python.timeout_s > 3
            with raises_code(ToolError, "tool.invalid_arguments"):
                await python.call({"command": "x"})
        limits = FakeSandbox.latest.limits
        assert limits == JobLimits(wall_s=3, memory_bytes=64 * 2**20, output_bytes=100, processes=4)
        assert FakeSandbox.latest.open == 0


async def test_a_lost_sandbox_is_a_failure() -> None:
    async with started(source()) as built:
        with raises_code(RolloutFailed, "rollout.sandbox_failed") as failure:
            async with built.open(make.prompt(), 0) as (bash, _):
                await bash.call({"command": "die"})
        assert failure.value.boundary is Boundary.ENVIRONMENT
        assert FakeSandbox.latest.open == 0
    async with started(source(sandbox={"kind": "test_fake", "fails_to_open": True})) as built:
        with raises_code(RolloutFailed, "rollout.sandbox_failed"):
            async with built.open(make.prompt(), 0):
                pass


@pytest.mark.long
async def test_a_real_shell_and_interpreter_last_for_the_episode() -> None:
    spec = {"kind": "local", "workers": 1, "allow_weak": True}
    async with started(source(sandbox=spec, call_s=10)) as built:
        async with built.open(make.prompt(), 0) as (bash, python):
            assert await bash.call({"command": "x=4; echo hello > file"}) == "[no output]"
            assert await bash.call({"command": "cat file; echo $x"}) == "hello\n4"
            assert await bash.call({"command": "exit_with() { return 3; }; exit_with"}) == "[exit status 3]"
            assert await python.call({"source": "y = 6"}) == "[no output]"
            assert await python.call({"source": "y * 7"}) == "42"
            assert "ZeroDivisionError" in await python.call({"source": "1 / 0"})
        async with built.open(make.prompt(), 1) as (bash, _):
            assert "hello" not in await bash.call({"command": "cat file"})
