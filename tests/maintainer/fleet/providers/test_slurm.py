"""The Slurm provider satisfies the provider interface, with simulated Slurm commands on PATH."""

import asyncio
import doctest
import json
import os
import sys
from collections.abc import AsyncIterator
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
    RetireResult,
    RetryError,
    State,
    UnknownError,
    unread_places,
)
from maintainer.fleet.providers.slurm import jobs
from maintainer.fleet.providers.slurm.jobs import PREFIX, Job, parse_sacct, parse_squeue, read_job, refusal
from maintainer.fleet.providers.slurm.provider import Slurm
from maintainer.testing.provider_harness import CANARY, ProviderHarness, launch_id, launches, listed, until
from maintainer.testing.provider_requests import RequestSuite
from maintainer.testing.provider_suite import LifecycleSuite
from tests.errors import raises_code
from tests.fakes import slurm_commands

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[3] / "fakes" / "sleeping_node.py"))

REFUSALS: dict[type[ProviderError], str] = {
    QuotaError: "sbatch: error: AssocMaxSubmitJobLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)",
    CapacityError: "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)",
    AuthError: "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    InvalidError: "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    RetryError: "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    UnknownError: "sbatch: error: Batch job submission failed: Unexpected message received",
}


class SlurmHarness(ProviderHarness):
    """Simulated cluster in a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands = slurm_commands.install(directory / "slurm")
        self.fake = slurm_commands.Cluster(directory / "slurm")

    async def provider(self, **options: Any) -> Slurm:
        defaults = {
            "program": SLEEPER,
            "types": {"small": {"usd_per_hour": 1.0}, "large": {"usd_per_hour": 4.0, "gres": "gpu:8"}},
            "spot_qos": "preemptible",
        } | options
        built = providers.build({"kind": "slurm", **defaults}, clock=SystemClock(), directory=self.directory / "own")
        assert isinstance(built, Slurm)
        return built

    async def lose(self, launch_id: str) -> None:
        slurm_commands.lose(self.fake, self.job(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        fault = {"command": "sbatch", "stderr": REFUSALS[error], "is_after": error in (RetryError, UnknownError)}
        self.fake.configure(faults=[fault])
        return await self.provider()

    async def duplicate(self, launch_id: str) -> bool:
        job = {key: value for key, value in self.job(launch_id).items() if key != "pid"}
        self.fake.submit(job | {"is_singleton": False})
        return True

    async def preempted(self) -> tuple[Provider, Handle] | None:
        provider, launch = await self.provider(), launch_id()
        handle = await provider.launch(self.spec(is_spot=True), launch)
        await until(self, provider, handle, lambda instance: instance.state is State.RUNNING)
        slurm_commands.lose(self.fake, self.job(launch), state="PREEMPTED")
        return provider, handle

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def captured_output(self) -> str:
        logs = [path.read_text() for path in self.directory.rglob("*.log")]
        jobs = [json.dumps({**job, "environment": None}) for job in self.fake.jobs()]
        lines = [Path(f"/proc/{job['pid']}/cmdline") for job in self.fake.jobs() if "pid" in job]
        calls = (self.fake.directory / "calls.jsonl").read_text()
        return "".join([calls, *jobs, *logs, *(path.read_text() for path in lines if path.exists())])

    def job(self, launch_id: str) -> dict[str, Any]:
        """Returns the latest job of a launch."""
        return [job for job in self.fake.jobs() if job["name"] == PREFIX + launch_id][-1]


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlurmHarness]:
    harness = SlurmHarness(tmp_path)
    monkeypatch.setenv("PATH", f"{harness.commands}{os.pathsep}{os.environ['PATH']}")
    try:
        yield harness
    finally:
        slurm_commands.end_all(harness.fake)


class TestSlurm(RequestSuite):
    """Runs the provider suite with sleeping jobs."""


@pytest.mark.long
class TestSlurmLifecycle(LifecycleSuite):
    """Runs the provider suite with sleeping jobs."""


async def test_the_jobs_environment_has_the_token_and_no_other_secret(
    harness: SlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "the run's own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for nodes")
    launch = launch_id()
    await (await harness.provider()).launch(harness.spec(), launch)
    environment = harness.job(launch)["environment"]
    assert environment["ASTRAFLOW_TOKEN"] == CANARY
    assert "AWS_SECRET_ACCESS_KEY" not in environment


async def test_jobs_in_another_cluster_are_not_gone(
    harness: SlurmHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, launch, own = await harness.provider(), launch_id(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    other = slurm_commands.install(tmp_path / "other-slurm")
    with monkeypatch.context() as environment:
        environment.setenv("PATH", f"{other}{os.pathsep}{os.environ['PATH']}")
        environment.setenv("SLURM_CONF", str(tmp_path / "other-slurm" / "slurm.conf"))
        elsewhere = await harness.provider()
        assert list(unread_places(await elsewhere.list(harness.cluster))) == [launch]
        for call in (elsewhere.retire(launch), elsewhere.describe(handle)):
            with pytest.raises(InvalidError, check=lambda problem: problem.code == "provider.place_removed"):
                await call
        assert await elsewhere.retire(own) is RetireResult.GONE
    assert await launches(harness, provider) == [launch]


@pytest.mark.long
async def test_sbatch_arguments_follow_from_type_region_spot_and_pool(harness: SlurmHarness) -> None:
    provider = await harness.provider(
        types={"gpu": {"gres": "gpu:h100:8", "cpus_per_task": 16, "mem": "64G"}}, regions={"eu": "spot"}
    )
    launch = launch_id()
    options = {"mem": "128G", "account": "team; rm -rf /"}  # passed as one argument
    await provider.launch(harness.spec(region="eu", is_spot=True, options=options), launch)
    command = next(argv for argv in calls(harness) if argv[0] == "sbatch")
    expected = {"--partition=spot", "--qos=preemptible", "--gres=gpu:h100:8", "--cpus-per-task=16", "--mem=128G"}
    assert expected | {f"--account={options['account']}", "--no-requeue", "--dependency=singleton"} <= set(command)
    assert harness.job(launch)["arguments"][: len(SLEEPER)] == list(SLEEPER)


@pytest.mark.long
async def test_a_second_job_of_one_name_waits_and_is_cancelled(harness: SlurmHarness, tmp_path: Path) -> None:
    provider, launch = await harness.provider(), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    copy = {key: value for key, value in harness.job(launch).items() if key != "pid"}
    harness.fake.submit(copy)  # submitted by another host's fleet service at the same time
    while harness.job(launch)["reason"] != "Dependency":
        await harness.pause()
    assert await launches(harness, provider, wait_for=2) == [launch, launch]
    while await provider.retire(launch, keep=handle) is not RetireResult.GONE:
        await harness.pause()
    (left,) = await listed(harness, provider)
    assert left.handle == handle


@pytest.mark.long
async def test_a_queued_job_reports_what_it_waits_for(harness: SlurmHarness) -> None:
    harness.fake.configure(slots=0, reason="QOSMaxJobsPerUserLimit")
    provider = await harness.provider()
    handle = await provider.launch(harness.spec(), launch_id())
    instance = await until(harness, provider, handle, lambda instance: bool(instance.message))
    assert (instance.state, instance.message) == (State.PENDING, "QuotaError: QOSMaxJobsPerUserLimit")
    harness.fake.configure(slots=4)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)


@pytest.mark.parametrize(
    ("reason", "kind"), [("Resources", CapacityError), ("AssocGrpGRES", QuotaError), ("QOSNotAllowed", AuthError)]
)
async def test_a_launch_that_may_not_wait_is_cancelled(
    harness: SlurmHarness, reason: str, kind: type[ProviderError]
) -> None:
    harness.fake.configure(slots=0, reason=reason)
    provider, launch = await harness.provider(schedule_wait_s=0.3), launch_id()
    with pytest.raises(kind, match=reason):
        await provider.launch(harness.spec(), launch)
    assert await launches(harness, provider, wait_for=0) == []
    assert harness.job(launch)["state"] == "CANCELLED"


async def test_a_job_that_can_never_start_is_stuck(harness: SlurmHarness) -> None:
    harness.fake.configure(slots=0, reason="AssocMaxWallDurationPerJobLimit")
    provider = await harness.provider()
    handle = await provider.launch(harness.spec(), launch_id())
    instance = await until(harness, provider, handle, lambda instance: instance.state is State.STUCK)
    assert "AssocMaxWallDurationPerJobLimit" in instance.message


@pytest.mark.parametrize("has_comments", [True, False])
async def test_a_finished_job_is_read_from_the_accounting(harness: SlurmHarness, has_comments: bool) -> None:
    provider, launch = (
        await harness.provider(program=(sys.executable, "-S", "-c", "import sys; sys.exit(3)")),
        launch_id(),
    )
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)
    harness.fake.configure(min_job_age_s=0, comments_in_accounting=has_comments)
    instance = await provider.describe(handle)
    assert instance.state is State.GONE
    assert instance.message.startswith("FAILED ")
    assert "3:0" in instance.message
    assert (instance.tags is not None) == has_comments
    assert await provider.launch(harness.spec(), launch) == handle  # a launch starts only once
    assert len(harness.fake.jobs()) == 1


async def test_without_accounting_a_finished_job_is_gone(harness: SlurmHarness) -> None:
    harness.fake.configure(accounting=False, min_job_age_s=0)
    with raises_code(InvalidError, "invalid_error", "accounting"):
        await (await harness.provider()).launch(harness.spec(), launch_id())
    provider, launch = await harness.provider(has_accounting=False), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    await harness.lose(launch)
    assert (await provider.describe(handle)).state is State.GONE


@pytest.mark.long
async def test_a_node_that_ignores_its_end_is_killed_after_killwait(harness: SlurmHarness) -> None:
    harness.fake.configure(kill_wait_s=0.2)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
    provider, launch = await harness.provider(program=(sys.executable, "-S", "-c", deaf)), launch_id()
    handle = await provider.launch(harness.spec(), launch)
    await until(harness, provider, handle, lambda instance: instance.state is State.RUNNING)
    assert await provider.retire(launch) is RetireResult.TERMINATING
    await until(harness, provider, handle, lambda instance: instance.state is State.GONE)


async def test_tags_too_long_for_a_comment_are_refused(harness: SlurmHarness) -> None:
    spec = harness.spec()
    with raises_code(InvalidError, "provider.tags_too_long"):
        await (await harness.provider()).launch(replace(spec, tags=replace(spec.tags, run="r" * 1200)), launch_id())
    assert harness.fake.jobs() == []


async def test_a_hanging_command_is_ended(harness: SlurmHarness) -> None:
    slow = harness.commands / "squeue"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    with raises_code(RetryError, "provider.no_answer", "no answer"):
        await (await harness.provider(timeout_s=0.2)).list(harness.cluster)


async def test_a_launch_that_is_cancelled_ends_its_command(harness: SlurmHarness, tmp_path: Path) -> None:
    slow = harness.commands / "squeue"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    task = asyncio.create_task((await harness.provider()).list(harness.cluster))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await harness.pause()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_a_missing_slurm_command_is_reported(harness: SlurmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with raises_code(InvalidError, "provider.command_missing"):
        await (await harness.provider()).list(harness.cluster)


def test_jobs_of_others_and_malformed_comments_are_ignored() -> None:
    text = (
        "1|RUNNING|1700000000|other|None|(null)\n"
        "2|RUNNING|1700000000|astraflow-A|None|a | comment | of another user\n"
        '3|PENDING|N/A|astraflow-B|Priority|{"tags": 1}\n'
        "nonsense\n"
    )
    first, second = parse_squeue(text)
    assert (first.launch_id, first.submitted_at, read_job(first).tags) == ("A", 1700000000.0, None)
    assert (read_job(second).state, read_job(second).tags) == (State.PENDING, None)


def test_a_cancelled_job_is_gone_in_the_accounting() -> None:
    (job,) = parse_sacct("7|CANCELLED by 1000|1700000000|astraflow-A|0:15|\n")
    assert (read_job(job).state, read_job(job).message) == (State.GONE, "CANCELLED")


def test_an_unknown_job_state_ends_nothing() -> None:
    assert read_job(Job(id="1", name="astraflow-A", state="DREAMING")).state is State.RUNNING


@pytest.mark.parametrize(("kind", "message"), REFUSALS.items())
def test_each_refusal_has_a_provider_error(kind: type[ProviderError], message: str) -> None:
    assert type(refusal("submitting a job", 1, message)) is kind


def test_invalid_options_are_refused() -> None:
    with raises_code(InvalidInput, "config.invalid", "program"):
        providers.check({"kind": "slurm"})
    with raises_code(InvalidInput, "config.invalid", "mem"):
        providers.check({"kind": "slurm", "program": ["/x"], "types": {"a": {"mem": "lots"}}})


def test_doctests_hold() -> None:
    assert doctest.testmod(jobs).failed == 0


def calls(harness: SlurmHarness) -> list[list[str]]:
    """Returns the command lines in order."""
    return [json.loads(line) for line in (harness.fake.directory / "calls.jsonl").read_text().splitlines()]
