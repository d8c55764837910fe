"""The SkyPilot provider satisfies the provider interface, against a simulated API server."""

import doctest
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    InvalidError,
    LaunchSpec,
    Provider,
    ProviderError,
    QuotaError,
    RetryError,
    State,
    UnknownError,
)
from maintainer.fleet.providers.skypilot import tasks
from maintainer.fleet.providers.skypilot.api import refusal
from maintainer.fleet.providers.skypilot.provider import SkyPilot
from maintainer.fleet.providers.skypilot.tasks import cluster_name, task_of
from maintainer.testing.provider_harness import (
    CANARY,
    GIVE_UP_S,
    ProviderHarness,
    launch_id,
    launches,
    listed,
    retire,
    until,
)
from maintainer.testing.provider_suite import ProviderSuite
from tests.errors import raises_code
from tests.fakes.skypilot_api import FakeSkyPilot

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[3] / "fakes" / "sleeping_node.py"))

ERRORS: dict[type[ProviderError], tuple[str, str]] = {
    QuotaError: ("ResourcesUnavailableError", "Failed to provision: VcpuLimitExceeded: you have requested more vCPU"),
    CapacityError: ("ResourcesUnavailableError", "Failed to acquire resources in all zones in us-east-1"),
    AuthError: ("NoCloudAccessError", "Cloud access is not set up. Run: \x1b[1msky check\x1b[0m"),
    InvalidError: ("InvalidSkyPilotConfigError", "Invalid resources YAML: 'nosuch' does not match"),
    RetryError: ("RequestInterruptedError", "interrupted by an API server restart"),
    UnknownError: ("RuntimeError", "something broke"),
}


class SkyHarness(ProviderHarness):
    """User of the simulated API server."""

    def __init__(self, fake: FakeSkyPilot) -> None:
        self.fake = fake
        self.providers: list[Provider] = []
        self.others = ExitStack()
        """Further servers."""

    async def provider(self, **options: Any) -> SkyPilot:
        defaults = {
            "endpoint": self.fake.endpoint,
            "program": SLEEPER,
            "types": {
                "small": {"cpus": "2+", "usd_per_hour": 1.0},
                "large": {"accelerators": "H100:8", "usd_per_hour": 4.0},
            },
        } | options
        directory = self.fake.directory / "own"
        built = providers.build({"kind": "skypilot", **defaults}, clock=SystemClock(), directory=directory)
        assert isinstance(built, SkyPilot)
        self.providers.append(built)
        return built

    async def lose(self, launch_id: str) -> None:
        self.fake.lose(cluster_name(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        name, message = ERRORS[error]
        self.fake.launch_errors.append({"type": name, "message": message})
        return await self.provider()

    async def at(self, address: str) -> Provider | None:
        return await self.provider(endpoint=address)

    async def renewable(self) -> Provider | None:
        self.fake.token = "old"
        self.token_file.write_text("old\n")
        return await self.provider(token_file=str(self.token_file))

    async def expire(self) -> None:
        self.fake.token = "new"

    async def renew(self) -> None:
        self.token_file.write_text("new\n")

    @property
    def token_file(self) -> Path:
        return self.fake.directory / "token"

    async def removed_place(self) -> tuple[Provider, Provider, LaunchSpec] | None:
        other = self.others.enter_context(FakeSkyPilot(self.fake.directory / "other"))
        return await self.provider(), await self.provider(endpoint=other.endpoint), self.spec()

    async def preempted(self) -> tuple[Provider, Handle] | None:
        provider, launch = await self.provider(), launch_id()
        handle = await provider.launch(self.spec(is_spot=True), launch)
        await until(self, provider, handle, lambda instance: instance.state is State.RUNNING)
        with self.fake.lock:
            self.fake.clusters[handle.id].status = "STOPPED"
        return provider, handle

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def captured_output(self) -> str:
        bodies = [body for _, path, body in self.fake.seen if path != "/launch"]
        logs = [path.read_text() for path in self.fake.directory.glob("*.log")]
        lines = [
            Path(f"/proc/{job.pid}/cmdline").read_text()
            for cluster in self.fake.clusters.values()
            for job in cluster.jobs
        ]
        paths = [path for _, path, _ in self.fake.seen]
        return "".join([*bodies, *logs, *lines, *paths, *(cluster.yaml for cluster in self.fake.clusters.values())])


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SkyHarness]:
    with FakeSkyPilot(tmp_path / "sky") as fake:
        harness = SkyHarness(fake)
        try:
            yield harness
        finally:
            for provider in harness.providers:
                await provider.close()
            harness.others.close()


class TestSkyPilot(ProviderSuite):
    """Runs the provider suite with sleeping clusters."""


async def test_a_launch_without_a_cluster_is_listed_and_can_be_retired(harness: SkyHarness) -> None:
    harness.fake.queue_s = 60.0  # no worker accepts the request, so SkyPilot has no such cluster
    provider, launch = await harness.provider(answer_wait_s=0), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    (instance,) = await provider.list(harness.cluster)
    assert (instance.state, instance.handle, instance.tags) == (State.PENDING, handle, harness.spec().tags)
    assert harness.fake.clusters == {}
    await retire(harness, provider, launch)
    harness.fake.queue_s = 0.0
    await harness.pause()
    assert harness.fake.clusters == {}, "the launch continued after it was retired"


async def test_remains_of_a_failed_launch_are_stuck_until_they_are_retired(harness: SkyHarness) -> None:
    """https://github.com/skypilot-org/skypilot/pull/2990: a failed teardown before a failover leaked the machine."""
    error = {"type": "ResourcesUnavailableError", "message": "failed over, could not tear down", "leaks": True}
    harness.fake.launch_errors.append(error)
    provider, launch = await harness.provider(), launch_id()
    with pytest.raises(CapacityError):
        await provider.launch(harness.spec(), launch)
    (left,) = await listed(harness, provider)
    assert left.state is State.STUCK
    assert harness.fake.is_leaked(cluster_name(launch))
    await retire(harness, provider, launch)
    assert not harness.fake.is_leaked(cluster_name(launch))


async def test_a_failed_teardown_is_retried_and_the_cluster_stays_listed(harness: SkyHarness) -> None:
    """https://github.com/skypilot-org/skypilot/pull/4443: an unconfirmed teardown stays recorded."""
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    error = {"type": "RuntimeError", "message": "the cloud did not answer"}
    harness.fake.down_errors += [error] * 2
    deadline = time.monotonic() + GIVE_UP_S
    while harness.fake.down_errors:
        with raises_code(UnknownError, "unknown_error", error["message"]):
            await provider.retire(launch)
        assert harness.fake.is_leaked(cluster_name(launch))
        assert time.monotonic() < deadline
    assert await launches(harness, provider) == [launch]
    await retire(harness, provider, launch)
    assert not harness.fake.is_leaked(cluster_name(launch))


@pytest.mark.long
async def test_a_cluster_terminated_in_the_console_blocks_nothing(harness: SkyHarness) -> None:
    """https://github.com/skypilot-org/skypilot/issues/632."""
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    await harness.lose(launch)
    assert await launches(harness, provider, wait_for=0) == []
    await retire(harness, provider, launch)
    again = await provider.launch(harness.spec(), launch_id())
    await until(harness, provider, again, lambda instance: instance.state is State.RUNNING)


async def test_a_second_job_on_a_cluster_starts_no_second_node(harness: SkyHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    await provider._api.launch(
        cluster_name(launch), task_of(provider._options, harness.spec(), launch, now=time.time())
    )  # launched by the service of another host
    cluster, deadline = harness.fake.clusters[cluster_name(launch)], time.monotonic() + GIVE_UP_S
    while len(cluster.jobs) < 2 or cluster.jobs[1].poll() is None:
        assert time.monotonic() < deadline
        await harness.pause()
    assert [job.poll() for job in cluster.jobs] == [None, 0]


async def test_skypilot_terminates_a_cluster_whose_node_has_ended(harness: SkyHarness) -> None:
    provider = await harness.provider(program=(sys.executable, "-S", "-c", "raise SystemExit(0)"))
    handle = await provider.launch(harness.spec(), launch_id())
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    launch_body = next(body for _, path, body in harness.fake.seen if path == "/launch")
    assert '\\"down\\": true' in launch_body


async def test_a_launch_that_fails_late_is_gone_with_a_reason(harness: SkyHarness) -> None:
    error = {"type": "ResourcesUnavailableError", "message": "no H100 in any zone"}
    harness.fake.launch_errors.append(error)
    provider, launch = await harness.provider(answer_wait_s=0), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    description = await until(harness, provider, handle, lambda description: description.state is State.GONE)
    assert error["message"] in description.message
    (instance,) = await provider.list(harness.cluster)
    assert (instance.state, instance.tags) == (State.GONE, harness.spec().tags)
    assert instance.message == description.message


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_launch_whose_answer_was_lost_is_one_cluster(harness: SkyHarness, is_done: bool) -> None:
    harness.fake.http_faults.append(("/launch", 503, is_done))
    provider, launch = await harness.provider(), launch_id()
    with pytest.raises(RetryError):
        await provider.launch(harness.spec(), launch)
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert len(harness.fake.clusters[cluster_name(launch)].jobs) == 1


@pytest.mark.long
async def test_a_stopped_cluster_still_costs_and_is_stuck(harness: SkyHarness) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    harness.fake.clusters[cluster_name(launch)].status = "STOPPED"
    assert (await provider.describe(handle)).state is State.STUCK
    await retire(harness, provider, launch)


async def test_the_service_token_is_read_from_the_environment(
    harness: SkyHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.fake.token = "service-account"
    with pytest.raises(AuthError):
        await (await harness.provider()).list(harness.cluster)
    monkeypatch.setenv("SKYPILOT_SERVICE_ACCOUNT_TOKEN", "service-account")
    assert await (await harness.provider()).list(harness.cluster) == ()


async def test_a_task_follows_from_type_region_spot_and_pool(harness: SkyHarness) -> None:
    provider = await harness.provider(
        types={"gpu": {"infra": "aws", "accelerators": "H100:8"}}, regions={"eu": "gcp/eu"}
    )
    spec = harness.spec(region="eu", is_spot=True, options={"disk_size": 500, "setup": "pip install astraflow"})
    spec = replace(spec, tags=replace(spec.tags, pool="EU:gpu"))
    task = task_of(provider._options, spec, launch_id(), now=time.time())
    resources = task["resources"]
    assert (resources["infra"], resources["accelerators"], resources["disk_size"]) == ("gcp/eu", "H100:8", 500)
    assert resources["use_spot"] is True
    assert resources["labels"]["astraflow-pool"] == "eu-gpu"
    assert task["setup"] == spec.options["setup"]
    assert CANARY not in str({**task, "secrets": None})


async def test_an_unreachable_server_is_a_temporary_failure(harness: SkyHarness) -> None:
    with pytest.raises(RetryError) as caught:
        await (await harness.provider(endpoint="http://127.0.0.1:9")).list(harness.cluster)
    assert caught.value.code == "provider.unreachable"


@pytest.mark.parametrize("wrong", ["", "../up", "a_b", "-a", "x" * 51, "a;b"])
async def test_an_invalid_launch_id_is_refused(harness: SkyHarness, wrong: str) -> None:
    with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.invalid_launch_id"):
        await (await harness.provider()).launch(harness.spec(), wrong)


@pytest.mark.parametrize(("kind", "error"), ERRORS.items())
def test_each_refusal_has_a_provider_error(kind: type[ProviderError], error: tuple[str, str]) -> None:
    provider_error = refusal({"type": error[0], "message": error[1], "object": "gASVpickled"})
    assert type(provider_error) is kind
    assert "pickled" not in str(provider_error)
    assert "\x1b" not in str(provider_error)


def test_an_endpoint_with_credentials_is_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "endpoint"):
        providers.check({"kind": "skypilot", "endpoint": "https://user:secret@sky.example"})


def test_doctests_hold() -> None:
    assert doctest.testmod(tasks).failed == 0
