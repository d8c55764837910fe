"""The Slurm provider keeps the port's promises, with commands that stand in for Slurm's on PATH."""

import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.runtime.clock import SystemClock
from maintainer.fleet.providers import providers
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
from tests.suites.provider import CANARY, ProviderSuite, World, launch_id, launches, listed, retire, until

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-S", "-E", str(Path(__file__).parents[2] / "fakes" / "sleeper.py"))

REFUSALS: dict[type[ProviderError], str] = {
    Quota: "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS "
    "policy (job submit limit, user's size and/or time limits)",
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
