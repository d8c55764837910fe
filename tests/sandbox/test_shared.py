"""Sandboxes that flows share."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.sandbox import sandboxes
from astraflow.sandbox.base import Job, JobLimits, JobResult, Level, Outcome, SandboxError, Session
from astraflow.sandbox.shared import SharedSandbox, levels_in_use

pytestmark = pytest.mark.anyio


class CountedOptions(Config):
    name: str = "a"
    fails: bool = False


@sandboxes.register("counted", options=CountedOptions)
class Counted:
    """Sandbox that counts how often it was started and closed."""

    events: list[str] = []  # noqa: RUF012 (emptied by a fixture)

    def __init__(self, options: CountedOptions) -> None:
        self._options = options

    @property
    def level(self) -> Level:
        return Level.RESTRICTED

    async def start(self) -> None:
        await asyncio.sleep(0)
        self.events.append(f"start {self._options.name}")
        if self._options.fails:
            raise SandboxError("no", code="sandbox.too_weak")

    async def close(self) -> None:
        self.events.append(f"close {self._options.name}")

    async def run(self, job: Job) -> JobResult:
        return JobResult(outcome=Outcome.PASSED, exit_status=0, stdout=job.source, stderr="", wall_s=0.0)

    def session(self, limits: JobLimits, *, port: int | None = None) -> AbstractAsyncContextManager[Session]:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def events() -> Iterator[list[str]]:
    Counted.events.clear()
    yield Counted.events


async def test_equal_specifications_share_a_sandbox_until_the_last_user_leaves(events: list[str]) -> None:
    first, second = SharedSandbox({"kind": "counted"}), SharedSandbox({"kind": "counted", "name": "a"})
    await asyncio.gather(first.start(), second.start())
    assert levels_in_use() == (Level.RESTRICTED,)
    await first.close()
    await first.close()
    assert (await second.run(Job(source="x"))).stdout == "x"
    assert events == ["start a"]
    await second.close()
    assert (events, levels_in_use()) == (["start a", "close a"], ())


async def test_other_specifications_have_their_own(events: list[str]) -> None:
    first, second = SharedSandbox({"kind": "counted"}), SharedSandbox({"kind": "counted", "name": "b"})
    await first.start()
    await second.start()
    await first.close()
    await second.close()
    assert events == ["start a", "start b", "close a", "close b"]


async def test_a_sandbox_can_be_started_again(events: list[str]) -> None:
    sandbox = SharedSandbox({"kind": "counted"})
    for _ in range(2):
        await sandbox.start()
        await sandbox.close()
    assert events == ["start a", "close a"] * 2


async def test_a_sandbox_that_cannot_start_is_closed(events: list[str]) -> None:
    sandbox = SharedSandbox({"kind": "counted", "fails": True})
    with pytest.raises(SandboxError):
        await sandbox.start()
    with pytest.raises(SandboxError):
        await sandbox.run(Job(source="x"))
    await sandbox.close()
    assert (events, levels_in_use()) == (["start a", "close a"], ())


async def test_a_wrong_specification_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput):
        SharedSandbox({"kind": "counted", "unknown": 1})
