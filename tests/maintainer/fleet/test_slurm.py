"""The Slurm provider keeps the port's promises, with commands that stand in for Slurm's on PATH."""

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
from maintainer.fleet.providers import providers, slurm_jobs
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    LaunchSpec,
    Provider,
    ProviderError,
    Quota,
    Retired,
    Retry,
    State,
    Unknown,
)
from maintainer.fleet.providers.slurm import Slurm
from maintainer.fleet.providers.slurm_jobs import PREFIX, Job, parse_sacct, parse_squeue, read_job, refusal
from tests.fakes import slurm_commands
from tests.suites.provider import CANARY, ProviderSuite, World, launch_id, launches, listed, until

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "fakes" / "sleeper.py"))

REFUSALS: dict[type[ProviderError], str] = {
    Quota: "sbatch: error: AssocMaxSubmitJobLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)",
    Capacity: "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)",
    Auth: "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    Invalid: "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    Retry: "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    Unknown: "sbatch: error: Batch job submission failed: Unexpected message received",
}


class SlurmWorld(World):
    """A cluster in a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands = slurm_commands.install(directory / "slurm")
        self.fake = slurm_commands.Cluster(directory / "slurm")

    async def provider(self, **options: Any) -> Slurm:
        given = {
            "program": SLEEPER,
            "types": {"small": {"usd_per_hour": 1.0}, "large": {"usd_per_hour": 4.0, "gres": "gpu:8"}},
            "spot_qos": "preemptible",
        } | options
        built = providers.build({"kind": "slurm", **given}, clock=SystemClock(), directory=self.directory / "own")
        assert isinstance(built, Slurm)
        return built

    async def lose(self, launch_id: str) -> None:
        slurm_commands.lose(self.fake, self.job(launch_id))

    async def failing(self, error: type[ProviderError]) -> Provider | None:
        fault = {"command": "sbatch", "stderr": REFUSALS[error], "is_after": error in (Retry, Unknown)}
        self.fake.configure(faults=[fault])
        return await self.provider()

    async def duplicate(self, launch_id: str) -> bool:
        job = {key: value for key, value in self.job(launch_id).items() if key != "pid"}
        self.fake.submit(job | {"is_singleton": False})
        return True

    def wrong_spec(self) -> LaunchSpec | None:
        return self.spec(type="enormous")

    def spoken(self) -> str:
        logs = [path.read_text() for path in self.directory.rglob("*.log")]
        said = [json.dumps({**job, "environment": None}) for job in self.fake.jobs()]
        lines = [Path(f"/proc/{job['pid']}/cmdline") for job in self.fake.jobs() if "pid" in job]
        calls = (self.fake.directory / "calls.jsonl").read_text()
        return "".join([calls, *said, *logs, *(path.read_text() for path in lines if path.exists())])

    def job(self, launch_id: str) -> dict[str, Any]:
        """The latest of that name."""
        return [job for job in self.fake.jobs() if job["name"] == PREFIX + launch_id][-1]


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlurmWorld]:
    world = SlurmWorld(tmp_path)
    monkeypatch.setenv("PATH", f"{world.commands}{os.pathsep}{os.environ['PATH']}")
    try:
        yield world
    finally:
        slurm_commands.end_all(world.fake)


class TestSlurm(ProviderSuite):
    """The suite, on jobs that sleep."""


async def test_the_token_is_in_the_jobs_environment_and_what_the_service_has_beside_is_not(
    world: SlurmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "the run's own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for nodes")
    launch = launch_id()
    await (await world.provider()).launch(world.spec(), launch)
    environment = world.job(launch)["environment"]
    assert environment["ASTRAFLOW_TOKEN"] == CANARY
    assert "AWS_SECRET_ACCESS_KEY" not in environment


async def test_what_is_asked_of_slurm_follows_from_type_region_spot_and_pool(world: SlurmWorld) -> None:
    provider = await world.provider(
        types={"gpu": {"gres": "gpu:h100:8", "cpus_per_task": 16, "mem": "64G"}}, regions={"eu": "spot"}
    )
    launch = launch_id()
    options = {"mem": "128G", "account": "team; rm -rf /"}  # an argument, whatever stands in it
    await provider.launch(world.spec(region="eu", is_spot=True, options=options), launch)
    asked = next(argv for argv in calls(world) if argv[0] == "sbatch")
    said = {"--partition=spot", "--qos=preemptible", "--gres=gpu:h100:8", "--cpus-per-task=16", "--mem=128G"}
    assert said | {"--account=team; rm -rf /", "--no-requeue", "--dependency=singleton"} <= set(asked)
    assert world.job(launch)["arguments"][: len(SLEEPER)] == list(SLEEPER)


async def test_a_second_submission_of_one_name_waits_and_is_ended(world: SlurmWorld, tmp_path: Path) -> None:
    one, launch = await world.provider(), launch_id()
    handle = await one.launch(world.spec(), launch)
    await until(world, one, handle, lambda seen: seen.state is State.RUNNING)
    copy = {key: value for key, value in world.job(launch).items() if key != "pid"}
    world.fake.submit(copy)  # by a fleet service of another host, in the same moment
    while world.job(launch)["reason"] != "Dependency":
        await world.pause()
    assert await launches(world, one, wait_for=2) == [launch, launch]
    while await one.retire(launch, keep=handle) is not Retired.GONE:
        await world.pause()
    (left,) = await listed(world, one)
    assert left.handle == handle


async def test_a_job_in_the_queue_says_what_it_waits_for(world: SlurmWorld) -> None:
    world.fake.configure(slots=0, reason="QOSMaxJobsPerUserLimit")
    provider = await world.provider()
    handle = await provider.launch(world.spec(), launch_id())
    seen = await until(world, provider, handle, lambda seen: bool(seen.message))
    assert (seen.state, seen.message) == (State.PENDING, "Quota: QOSMaxJobsPerUserLimit")
    world.fake.configure(slots=4)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)


@pytest.mark.parametrize(
    ("reason", "kind"), [("Resources", Capacity), ("AssocGrpGRES", Quota), ("QOSNotAllowed", Auth)]
)
async def test_a_launch_that_may_not_wait_is_taken_back(
    world: SlurmWorld, reason: str, kind: type[ProviderError]
) -> None:
    world.fake.configure(slots=0, reason=reason)
    provider, launch = await world.provider(place_wait_s=0.3), launch_id()
    with pytest.raises(kind, match=reason):
        await provider.launch(world.spec(), launch)
    assert await launches(world, provider, wait_for=0) == []
    assert world.job(launch)["state"] == "CANCELLED"


async def test_a_job_that_can_never_start_is_stuck(world: SlurmWorld) -> None:
    world.fake.configure(slots=0, reason="AssocMaxWallDurationPerJobLimit")
    provider = await world.provider()
    handle = await provider.launch(world.spec(), launch_id())
    seen = await until(world, provider, handle, lambda seen: seen.state is State.STUCK)
    assert "AssocMaxWallDurationPerJobLimit" in seen.message


@pytest.mark.parametrize("has_comments", [True, False])
async def test_what_left_the_queue_is_read_from_the_accounting(world: SlurmWorld, has_comments: bool) -> None:
    provider, launch = (
        await world.provider(program=(sys.executable, "-S", "-c", "import sys; sys.exit(3)")),
        launch_id(),
    )
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)
    world.fake.configure(min_job_age_s=0, comments_in_accounting=has_comments)
    seen = await provider.describe(handle)
    assert (seen.state, seen.message) == (State.GONE, "FAILED (exit code 3:0)")
    assert (seen.tags is not None) == has_comments
    assert await provider.launch(world.spec(), launch) == handle  # a launch has one life
    assert len(world.fake.jobs()) == 1


async def test_without_accounting_what_left_the_queue_is_gone(world: SlurmWorld) -> None:
    world.fake.configure(accounting=False, min_job_age_s=0)
    with pytest.raises(Invalid, match="accounting storage is disabled"):
        await (await world.provider()).launch(world.spec(), launch_id())
    provider, launch = await world.provider(has_accounting=False), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    await world.lose(launch)
    assert (await provider.describe(handle)).state is State.GONE


async def test_a_node_that_does_not_listen_is_killed_after_the_clusters_wait(world: SlurmWorld) -> None:
    world.fake.configure(kill_wait_s=0.2)
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
    provider, launch = await world.provider(program=(sys.executable, "-S", "-c", deaf)), launch_id()
    handle = await provider.launch(world.spec(), launch)
    await until(world, provider, handle, lambda seen: seen.state is State.RUNNING)
    assert await provider.retire(launch) is Retired.GOING
    await until(world, provider, handle, lambda seen: seen.state is State.GONE)


async def test_tags_that_fit_no_comment_are_refused(world: SlurmWorld) -> None:
    spec = world.spec()
    with pytest.raises(Invalid, match="characters"):
        await (await world.provider()).launch(replace(spec, tags=replace(spec.tags, run="r" * 1200)), launch_id())
    assert world.fake.jobs() == []


async def test_a_command_that_hangs_is_ended(world: SlurmWorld) -> None:
    slow = world.commands / "squeue"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(Retry, match="no answer"):
        await (await world.provider(timeout_s=0.2)).list(world.cluster)


async def test_a_launch_that_is_cancelled_ends_its_command(world: SlurmWorld, tmp_path: Path) -> None:
    slow = world.commands / "squeue"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    task = asyncio.create_task((await world.provider()).list(world.cluster))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await world.pause()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


async def test_where_there_is_no_slurm_it_says_so(world: SlurmWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Invalid, match="squeue cannot be started"):
        await (await world.provider()).list(world.cluster)


def test_jobs_of_others_and_broken_comments_are_read_without_harm() -> None:
    text = (
        "1|RUNNING|1700000000|other|None|(null)\n"
        "2|RUNNING|1700000000|astraflow-A|None|a | comment | of somebody\n"
        '3|PENDING|N/A|astraflow-B|Priority|{"tags": 1}\n'
        "nonsense\n"
    )
    first, second = parse_squeue(text)
    assert (first.launch_id, first.submitted_at, read_job(first).tags) == ("A", 1700000000.0, None)
    assert (read_job(second).state, read_job(second).tags) == (State.PENDING, None)


def test_a_job_that_somebody_cancelled_is_gone_in_the_accounting() -> None:
    (job,) = parse_sacct("7|CANCELLED by 1000|1700000000|astraflow-A|0:15|\n")
    assert (read_job(job).state, read_job(job).message) == (State.GONE, "CANCELLED")


def test_a_state_of_a_later_slurm_ends_nothing() -> None:
    assert read_job(Job(id="1", name="astraflow-A", state="DREAMING")).state is State.RUNNING


@pytest.mark.parametrize(("kind", "said"), REFUSALS.items())
def test_each_refusal_leads_to_the_right_next_step(kind: type[ProviderError], said: str) -> None:
    assert type(refusal("submitting a job", 1, said)) is kind


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidInput, match="program"):
        providers.check({"kind": "slurm"})
    with pytest.raises(InvalidInput, match="mem"):
        providers.check({"kind": "slurm", "program": ["/x"], "types": {"a": {"mem": "lots"}}})


def test_doctests_hold() -> None:
    assert doctest.testmod(slurm_jobs).failed == 0


def calls(world: SlurmWorld) -> list[list[str]]:
    """Command lines, in order."""
    return [json.loads(line) for line in (world.fake.directory / "calls.jsonl").read_text().splitlines()]
