"""The local provider satisfies the provider interface and applies its options to machines."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    CapacityError,
    FaultInjectable,
    Handle,
    InvalidError,
    LaunchSpec,
    Provider,
    ProviderError,
    QuotaError,
    RetireResult,
    State,
)
from maintainer.fleet.providers.local_process.provider import LocalProcess, LocalProcessOptions
from maintainer.testing.provider_harness import GIVE_UP_S, ProviderHarness, launch_id, listed, retire, until
from maintainer.testing.provider_suite import ProviderSuite
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[3] / "fakes" / "sleeping_node.py"))


class LocalHarness(ProviderHarness):
    """Provider harness with machines in a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def provider(self, **options: Any) -> Provider:
        fields = {"program": SLEEPER, "types": {"small": 1.0, "large": 4.0}, "grace_s": 5.0} | options
        return LocalProcess(LocalProcessOptions(**fields), clock=SystemClock(), directory=self.directory)

    async def lose(self, launch_id: str) -> None:
        os.killpg(self.pid(launch_id), signal.SIGKILL)

    async def preempted(self) -> tuple[Provider, Handle] | None:
        provider = await self.provider(spot_mean_life_s=0.01, notice_s=0.5)
        return provider, await provider.launch(self.spec(is_spot=True), launch_id())

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        if error is CapacityError:
            return await self.provider(refused_share=1.0)
        return await self.provider(max_instances=0) if error is QuotaError else None

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def captured_output(self) -> str:
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        lines = [Path(f"/proc/{self.pid(folder.name)}/cmdline") for folder in self.directory.iterdir()]
        return "".join(path.read_text(errors="replace") for path in [*files, *lines])

    def pid(self, launch_id: str) -> int:
        return int(json.loads((self.directory / launch_id / "machine.json").read_text())["pid"])

    async def end(self) -> None:
        """Ends all machines that a test left running."""
        provider = await self.provider()
        for cluster in (self.cluster, "strangers"):
            for instance in await provider.list(cluster):
                await retire(self, provider, instance.handle.launch_id)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[LocalHarness]:
    harness = LocalHarness(tmp_path / "machines")
    try:
        yield harness
    finally:
        await harness.end()


class TestLocalProcess(ProviderSuite):
    """Runs the provider suite with sleeping processes."""


async def test_a_slow_launch_is_pending_until_its_delay_is_over(harness: LocalHarness) -> None:
    provider = await harness.provider(launch_delay_s=0.5)
    before = time.monotonic()
    handle = await provider.launch(harness.spec(), launch_id())
    assert (await provider.describe(handle)).state is State.PENDING
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert time.monotonic() - before >= 0.5


async def test_a_failed_launch_is_gone_with_a_reason(harness: LocalHarness) -> None:
    provider = await harness.provider(boot_failure_share=1.0)
    handle = await provider.launch(harness.spec(), launch_id())
    instance = await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    assert "boot" in instance.message


async def test_a_killed_instance_is_gone_without_a_message(harness: LocalHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    os.kill(harness.pid(launch), signal.SIGKILL)  # the machine's main process; its node still holds the lock
    assert (await provider.describe(handle)).state is not State.GONE
    await retire(harness, provider, launch)
    assert (await provider.describe(handle)).state is State.GONE


async def test_a_lost_instance_ends_immediately_with_all_its_processes(harness: LocalHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    assert isinstance(provider, FaultInjectable)
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    group = harness.pid(launch)
    await provider.inject_fault(launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    assert [pid for pid in members(group) if state_of(pid) not in ("Z", "")] == []
    await provider.inject_fault(launch)
    await provider.inject_fault("01NEVER")
    assert (await provider.describe(handle)).state is State.GONE


@pytest.mark.long
async def test_a_spot_instance_gets_a_notice_and_is_then_preempted(harness: LocalHarness) -> None:
    provider, launch = await harness.provider(spot_mean_life_s=3.0, notice_s=60.0), launch_id()
    handle = await provider.launch(harness.spec(is_spot=True), launch)
    instance = await until(harness, provider, handle, lambda instance: instance.notice_at is not None)
    assert "preempt" in instance.message  # it may be gone already
    assert (harness.directory / launch / "notice.json").exists()
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)


async def test_only_spot_instances_are_preempted(harness: LocalHarness) -> None:
    provider = await harness.provider(spot_mean_life_s=0.01)
    handle = await provider.launch(harness.spec(), launch_id())
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    for _ in range(5):
        await harness.pause()
    assert (await provider.describe(handle)).state is State.RUNNING


async def test_a_throttled_instance_pauses_and_ends_on_request(harness: LocalHarness) -> None:
    provider, launch = await harness.provider(slow_share=1.0, slow_speed=0.2), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    states: set[str] = set()
    deadline = time.monotonic() + GIVE_UP_S
    while "T" not in states and time.monotonic() < deadline:
        states |= {state_of(pid) for pid in members(harness.pid(launch))}
    assert "T" in states
    await retire(harness, provider, launch)


async def test_a_node_that_ignores_its_end_is_killed_after_the_grace_time(
    harness: LocalHarness, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf.py"
    deaf.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n")
    provider, launch = await harness.provider(grace_s=0.2, program=(sys.executable, "-S", str(deaf))), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert await provider.retire(launch) is RetireResult.TERMINATING
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)


async def test_a_claimed_folder_is_started_by_the_repeated_launch(harness: LocalHarness) -> None:
    provider, launch, spec = await harness.provider(), launch_id(), harness.spec()
    assert isinstance(provider, LocalProcess)
    provider._folders.make(launch, provider._order(spec, launch))  # simulates a crash before the start
    handle = await (await harness.provider()).launch(spec, launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert len(await listed(harness, provider)) == 1


@pytest.mark.long
async def test_simulated_faults_follow_from_the_seed(harness: LocalHarness) -> None:
    async def refused(seed: int) -> list[bool]:
        provider, outcomes = await harness.provider(refused_share=0.5, seed=seed), []
        for ordinal in range(12):
            try:
                await provider.launch(harness.spec(), f"seeded-{ordinal}")
                outcomes.append(False)
            except CapacityError:
                outcomes.append(True)
        await harness.end()
        for folder in harness.directory.iterdir():
            shutil.rmtree(folder)
        return outcomes

    once = await refused(1)
    assert set(once) == {True, False}
    assert await refused(1) == once
    assert await refused(2) != once


@pytest.mark.parametrize("wrong", ["", "../up", ".hidden", "a/b", "x" * 65])
async def test_an_invalid_launch_id_is_refused(harness: LocalHarness, wrong: str) -> None:
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.invalid_launch_id"):
        await (await harness.provider()).launch(harness.spec(), wrong)


async def test_faults_are_labelled_as_simulated(harness: LocalHarness) -> None:
    plain = LocalProcess(LocalProcessOptions(), clock=SystemClock(), directory=harness.directory)
    faulty = LocalProcess(
        LocalProcessOptions(launch_delay_s=3, spot_mean_life_s=60), clock=SystemClock(), directory=harness.directory
    )
    assert plain.capabilities().simulated == ()
    assert faulty.capabilities().simulated == ("launch delay", "preemption")


def test_a_provider_is_found_by_its_kind_and_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    spec = {"kind": "local_process", "max_instances": 3}
    assert isinstance(providers.build(spec, clock=SystemClock(), directory=tmp_path), LocalProcess)
    with raises_code(InvalidInput, "plugin.unknown_kind", "local_process"):
        providers.check({"kind": "local_proces"})


def members(group: int) -> list[int]:
    """Returns the processes of a group."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    pids.append(int(entry.name))
            except ProcessLookupError:
                continue
    return pids


def state_of(pid: int) -> str:
    """Returns the process state: `S` sleeping, `T` stopped, empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
