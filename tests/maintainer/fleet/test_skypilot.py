"""The SkyPilot provider keeps the port's promises, against a stand-in of its API server."""

import doctest
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers, skypilot_task
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Retry,
    State,
    Unknown,
)
from maintainer.fleet.providers.skypilot import SkyPilot
from maintainer.fleet.providers.skypilot_api import refusal
from maintainer.fleet.providers.skypilot_task import cluster_name, task_of
from tests.fakes.skypilot_api import FakeSkyPilot
from tests.suites.provider import CANARY, GIVE_UP_S, ProviderSuite, World, launch_id, launches, listed, retire, until

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "fakes" / "sleeper.py"))

ERRORS: dict[type[ProviderError], tuple[str, str]] = {
    Quota: ("ResourcesUnavailableError", "Failed to provision: VcpuLimitExceeded: you have requested more vCPU"),
    Capacity: ("ResourcesUnavailableError", "Failed to acquire resources in all zones in us-east-1"),
    Auth: ("NoCloudAccessError", "Cloud access is not set up. Run: \x1b[1msky check\x1b[0m"),
    Invalid: ("InvalidSkyPilotConfigError", "Invalid resources YAML: 'nosuch' does not match"),
    Retry: ("RequestInterruptedError", "interrupted by an API server restart"),
    Unknown: ("RuntimeError", "something broke"),
}


class SkyWorld(World):
    """One user of the stand-in."""

    def __init__(self, fake: FakeSkyPilot) -> None:
        self.fake = fake
        self.providers: list[Provider] = []

    async def provider(self, **options: Any) -> SkyPilot:
        given = {
            "endpoint": self.fake.endpoint,
            "program": SLEEPER,
            "types": {
                "small": {"cpus": "2+", "usd_per_hour": 1.0},
                "large": {"accelerators": "H100:8", "usd_per_hour": 4.0},
            },
        } | options
        directory = self.fake.directory / "own"
        built = providers.build({"kind": "skypilot", **given}, clock=SystemClock(), directory=directory)
        assert isinstance(built, SkyPilot)
        self.providers.append(built)
        return built

    async def lose(self, launch_id: str) -> None:
        self.fake.lose(cluster_name(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        name, message = ERRORS[error]
        self.fake.launch_errors.append({"type": name, "message": message})
        return await self.provider()

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        bodies = [body for _, path, body in self.fake.seen if path != "/launch"]
        logs = [path.read_text() for path in self.fake.directory.glob("*.log")]
        lines = [
            Path(f"/proc/{job.pid}/cmdline").read_text() for one in self.fake.clusters.values() for job in one.jobs
        ]
        paths = [path for _, path, _ in self.fake.seen]
        return "".join([*bodies, *logs, *lines, *paths, *(one.yaml for one in self.fake.clusters.values())])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SkyWorld]:
    with FakeSkyPilot(tmp_path / "sky") as fake:
        world = SkyWorld(fake)
        try:
            yield world
        finally:
            for provider in world.providers:
                await provider.close()


class TestSkyPilot(ProviderSuite):
    """The suite, on clusters that sleep."""


async def test_a_launch_that_shows_nowhere_yet_is_listed_and_can_be_retired(world: SkyWorld) -> None:
    world.fake.queue_s = 60.0  # no worker takes it: SkyPilot has no such cluster
    provider, launch = await world.provider(answer_wait_s=0), launch_id()
    handle = await provider.launch(world.spec(), launch)
    (instance,) = await provider.list(world.cluster)
    assert (instance.state, instance.handle, instance.tags) == (State.PENDING, handle, world.spec().tags)
    assert world.fake.clusters == {}
    await retire(world, provider, launch)
    world.fake.queue_s = 0.0
    await world.pause()
    assert world.fake.clusters == {}, "the launch went on after it was retired"


async def test_what_a_launch_left_behind_when_it_failed_is_stuck_until_it_is_ended(world: SkyWorld) -> None:
    """https://github.com/skypilot-org/skypilot/pull/2990: a failed teardown before a failover leaked the machine."""
    error = {"type": "ResourcesUnavailableError", "message": "failed over, could not tear down", "leaks": True}
    world.fake.launch_errors.append(error)
    provider, launch = await world.provider(), launch_id()
    with pytest.raises(Capacity):
        await provider.launch(world.spec(), launch)
    (left,) = await listed(world, provider)
    assert left.state is State.STUCK
    assert world.fake.is_leaked(cluster_name(launch))
    await retire(world, provider, launch)
    assert not world.fake.is_leaked(cluster_name(launch))


async def test_a_teardown_that_failed_is_asked_for_again_and_is_no_end(world: SkyWorld) -> None:
    """https://github.com/skypilot-org/skypilot/pull/4443: what was not confirmed to be gone is not forgotten."""
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    world.fake.down_errors += [{"type": "RuntimeError", "message": "the cloud did not answer"}] * 2
    deadline = time.monotonic() + GIVE_UP_S
    while world.fake.down_errors:
        with pytest.raises(Unknown, match="the cloud did not answer"):
            await provider.retire(launch)
        assert world.fake.is_leaked(cluster_name(launch))
        assert time.monotonic() < deadline
    assert await launches(world, provider) == [launch]
    await retire(world, provider, launch)
    assert not world.fake.is_leaked(cluster_name(launch))


async def test_a_machine_that_somebody_ended_in_the_console_wedges_nothing(world: SkyWorld) -> None:
    """https://github.com/skypilot-org/skypilot/issues/632."""
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    await world.lose(launch)
    assert await launches(world, provider, wait_for=0) == []
    await retire(world, provider, launch)
    again = await provider.launch(world.spec(), launch_id())
    await until(world, provider, again, lambda seen: seen.state is State.RUNNING)


async def test_a_second_job_on_the_same_machine_starts_no_second_node(world: SkyWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    await provider._api.launch(
        cluster_name(launch), task_of(provider._options, world.spec(), launch, now=time.time())
    )  # another host's service
    cluster, deadline = world.fake.clusters[cluster_name(launch)], time.monotonic() + GIVE_UP_S
    while len(cluster.jobs) < 2 or cluster.jobs[1].poll() is None:
        assert time.monotonic() < deadline
        await world.pause()
    assert [job.poll() for job in cluster.jobs] == [None, 0]


async def test_a_machine_whose_node_has_ended_is_ended_by_skypilot(world: SkyWorld) -> None:
    provider = await world.provider(program=(sys.executable, "-S", "-c", "raise SystemExit(0)"))
    handle = await provider.launch(world.spec(), launch_id())
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    asked = next(body for _, path, body in world.fake.seen if path == "/launch")
    assert '\\"down\\": true' in asked


async def test_a_launch_that_fails_late_is_gone_and_says_why(world: SkyWorld) -> None:
    world.fake.launch_errors.append({"type": "ResourcesUnavailableError", "message": "no H100 in any zone"})
    provider, launch = await world.provider(answer_wait_s=0), launch_id()
    handle = await provider.launch(world.spec(), launch)
    seen = await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    assert "no H100 in any zone" in seen.message
    (instance,) = await provider.list(world.cluster)
    assert (instance.state, instance.tags) == (State.GONE, world.spec().tags)
    assert instance.message == seen.message


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_launch_whose_answer_was_lost_is_one_launch_in_the_end(world: SkyWorld, is_done: bool) -> None:
    world.fake.http_faults.append(("/launch", 503, is_done))
    provider, launch = await world.provider(), launch_id()
    with pytest.raises(Retry):
        await provider.launch(world.spec(), launch)
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert len(world.fake.clusters[cluster_name(launch)].jobs) == 1


async def test_a_stopped_cluster_costs_and_is_to_be_ended(world: SkyWorld) -> None:
    provider, launch = await world.provider(), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    world.fake.clusters[cluster_name(launch)].status = "STOPPED"
    assert (await provider.describe(handle)).state is State.STUCK
    await retire(world, provider, launch)


async def test_who_asks_is_said_by_a_token_of_the_environment(world: SkyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fake.token = "service-account"
    with pytest.raises(Auth):
        await (await world.provider()).list(world.cluster)
    monkeypatch.setenv("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "service-account")
    assert await (await world.provider()).list(world.cluster) == ()


async def test_what_skypilot_is_asked_for_follows_from_type_region_spot_and_pool(world: SkyWorld) -> None:
    provider = await world.provider(types={"gpu": {"infra": "aws", "accelerators": "H100:8"}}, regions={"eu": "gcp/eu"})
    spec = world.spec(region="eu", is_spot=True, options={"disk_size": 500, "setup": "pip install astraflow"})
    spec = replace(spec, tags=replace(spec.tags, pool="EU:gpu"))
    task = task_of(provider._options, spec, launch_id(), now=time.time())
    resources = task["resources"]
    assert (resources["infra"], resources["accelerators"], resources["disk_size"]) == ("gcp/eu", "H100:8", 500)
    assert resources["use_spot"] is True
    assert resources["labels"]["astraflow-pool"] == "eu-gpu"
    assert task["setup"] == "pip install astraflow"
    assert CANARY not in str({**task, "secrets": None})


async def test_a_server_that_is_away_is_asked_again_later(world: SkyWorld) -> None:
    with pytest.raises(Retry, match="on the way"):
        await (await world.provider(endpoint="http://127.0.0.1:9")).list(world.cluster)


@pytest.mark.parametrize("wrong", ["", "../up", "a_b", "-a", "x" * 51, "a;b"])
async def test_an_id_that_names_no_cluster_is_refused(world: SkyWorld, wrong: str) -> None:
    with pytest.raises(Invalid, match="no launch id"):
        await (await world.provider()).launch(world.spec(), wrong)


@pytest.mark.parametrize(("kind", "said"), ERRORS.items())
def test_each_refusal_leads_to_the_right_next_step(kind: type[ProviderError], said: tuple[str, str]) -> None:
    found = refusal({"type": said[0], "message": said[1], "object": "gASVpickled"})
    assert type(found) is kind
    assert "pickled" not in str(found)
    assert "\x1b" not in str(found)


def test_credentials_do_not_belong_into_the_endpoint() -> None:
    with pytest.raises(InvalidInput, match="endpoint"):
        providers.check({"kind": "skypilot", "endpoint": "https://user:secret@sky.example"})


def test_doctests_hold() -> None:
    assert doctest.testmod(skypilot_task).failed == 0
