"""The local provider keeps the port's promises, and does what its options say to machines."""

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
    Breakable,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Retired,
    State,
)
from maintainer.fleet.providers.local_process import LocalProcess, LocalProcessOptions
from tests.suites.provider import GIVE_UP_S, ProviderSuite, World, launch_id, listed, retire, until

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "fakes" / "sleeper.py"))


class LocalWorld(World):
    """A folder of machines."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def provider(self, **options: Any) -> Provider:
        given = {"program": SLEEPER, "types": {"small": 1.0, "large": 4.0}, "grace_s": 5.0} | options
        return LocalProcess(LocalProcessOptions(**given), clock=SystemClock(), directory=self.directory)

    async def lose(self, launch_id: str) -> None:
        os.killpg(self.pid(launch_id), signal.SIGKILL)

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        if error is Capacity:
            return await self.provider(refused_share=1.0)
        return await self.provider(max_instances=0) if error is Quota else None

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        lines = [Path(f"/proc/{self.pid(place.name)}/cmdline") for place in self.directory.iterdir()]
        return "".join(path.read_text(errors="replace") for path in [*files, *lines])

    def pid(self, launch_id: str) -> int:
        return int(json.loads((self.directory / launch_id / "machine.json").read_text())["pid"])

    async def end(self) -> None:
        """Whatever a test left running is ended."""
        provider = await self.provider()
        for cluster in (self.cluster, "strangers"):
            for instance in await provider.list(cluster):
                await retire(self, provider, instance.handle.launch_id)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    world = LocalWorld(tmp_path / "machines")
    try:
        yield world
    finally:
        await world.end()


class TestLocalProcess(ProviderSuite):
    """The suite, on processes that sleep."""


async def test_a_machine_that_boots_slowly_is_pending_until_its_delay_is_over(world: LocalWorld) -> None:
    provider = await world.provider(launch_delay_s=0.5)
    before = time.monotonic()
    handle = await provider.launch(world.spec(), launch_id())
    assert (await provider.describe(handle)).state is State.PENDING
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert time.monotonic() - before >= 0.5


async def test_a_machine_that_does_not_boot_is_gone_and_says_why(world: LocalWorld) -> None:
    provider = await world.provider(boot_failure_share=1.0)
    handle = await provider.launch(world.spec(), launch_id())
    seen = await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    assert "boot" in seen.message


async def test_a_machine_that_is_killed_says_nothing_and_is_gone(world: LocalWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    os.kill(world.pid(launch), signal.SIGKILL)  # the machine's own process: its node holds the lock still
    assert (await provider.describe(handle)).state is not State.GONE
    await retire(world, provider, launch)
    assert (await provider.describe(handle)).state is State.GONE


async def test_a_machine_that_is_lost_ends_at_once_with_all_that_runs_on_it(world: LocalWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    assert isinstance(provider, Breakable)
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    group = world.pid(launch)
    await provider.lose(launch)
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    assert [pid for pid in members(group) if state_of(pid) not in ("Z", "")] == []
    await provider.lose(launch)
    await provider.lose("01NEVER")
    assert (await provider.describe(handle)).state is State.GONE


async def test_a_spot_machine_is_told_and_then_taken_away(world: LocalWorld) -> None:
    provider, launch = await world.provider(spot_mean_life_s=0.3, notice_s=60.0), launch_id()
    handle = await provider.launch(world.spec(is_spot=True), launch)
    seen = await until(world, provider, handle, lambda seen: seen.notice_at is not None)
    assert "taken away" in seen.message
    assert (world.directory / launch / "notice.json").exists()
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)


async def test_only_spot_machines_are_taken_away(world: LocalWorld) -> None:
    provider = await world.provider(spot_mean_life_s=0.01)
    handle = await provider.launch(world.spec(), launch_id())
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    for _ in range(5):
        await world.pause()
    assert (await provider.describe(handle)).state is State.RUNNING


async def test_a_slow_machine_stands_still_in_between_and_ends_when_it_is_told_to(world: LocalWorld) -> None:
    provider, launch = await world.provider(slow_share=1.0, slow_speed=0.2), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    states: set[str] = set()
    deadline = time.monotonic() + GIVE_UP_S
    while "T" not in states and time.monotonic() < deadline:
        states |= {state_of(pid) for pid in members(world.pid(launch))}
    assert "T" in states
    await retire(world, provider, launch)


async def test_a_node_that_does_not_listen_is_killed_after_the_grace(world: LocalWorld, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf.py"
    deaf.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n")
    provider, launch = await world.provider(grace_s=0.2, program=(sys.executable, "-S", str(deaf))), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert await provider.retire(launch) is Retired.GOING
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)


async def test_a_folder_whose_machine_was_never_started_is_started_by_the_next_launch(world: LocalWorld) -> None:
    provider, launch, spec = await world.provider(), launch_id(), world.spec()
    assert isinstance(provider, LocalProcess)
    provider._folders.make(launch, provider._order(spec, launch))  # the crash comes here
    handle = await (await world.provider()).launch(spec, launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert len(await listed(world, provider)) == 1


async def test_what_happens_to_a_launch_follows_from_the_seed(world: LocalWorld) -> None:
    async def refused(seed: int) -> list[bool]:
        provider, outcomes = await world.provider(refused_share=0.5, seed=seed), []
        for ordinal in range(12):
            try:
                await provider.launch(world.spec(), f"seeded-{ordinal}")
                outcomes.append(False)
            except Capacity:
                outcomes.append(True)
        await world.end()
        for place in world.directory.iterdir():
            shutil.rmtree(place)
        return outcomes

    once = await refused(1)
    assert set(once) == {True, False}
    assert await refused(1) == once
    assert await refused(2) != once


@pytest.mark.parametrize("wrong", ["", "../up", ".hidden", "a/b", "x" * 65])
async def test_an_id_that_is_no_name_is_refused(world: LocalWorld, wrong: str) -> None:
    with pytest.raises(Invalid, match="no launch id"):
        await (await world.provider()).launch(world.spec(), wrong)


async def test_faults_are_labelled_as_simulated(world: LocalWorld) -> None:
    plain = LocalProcess(LocalProcessOptions(), clock=SystemClock(), directory=world.directory)
    faulty = LocalProcess(
        LocalProcessOptions(launch_delay_s=3, spot_mean_life_s=60), clock=SystemClock(), directory=world.directory
    )
    assert plain.capabilities().simulated == ()
    assert faulty.capabilities().simulated == ("launch delay", "preemption")


def test_it_is_found_by_its_kind_and_a_wrong_kind_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    spec = {"kind": "local_process", "max_instances": 3}
    assert isinstance(providers.build(spec, clock=SystemClock(), directory=tmp_path), LocalProcess)
    with pytest.raises(InvalidInput, match="local_process"):
        providers.check({"kind": "local_proces"})


def members(group: int) -> list[int]:
    """Processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def state_of(pid: int) -> str:
    """`S` sleeps, `T` stands still."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
