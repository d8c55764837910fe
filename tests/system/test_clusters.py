"""Runs whose nodes are pods, jobs and clusters: real nodes, started through simulated cluster managers."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from astraflow.client.fleet_plane import FleetPlaneClient
from tests.fakes import slurm_commands
from tests.fakes.kubernetes_api import FakeCluster, is_over
from tests.fakes.skypilot_api import FakeSkyPilot
from tests.system.processes import ROOT, assert_balanced, running
from tests.system.test_fleet import STEADY, fleet_of, ready, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.long]

PROGRAM = [sys.executable, "-m", "astraflow.cli"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBackend:
    """A cluster manager that starts nodes."""

    options: dict[str, Any]
    """Options of its provider."""
    lose: Callable[[str], None]
    """Ends a launch's machine without a request."""
    alive: Callable[[], int]


@contextmanager
def kubernetes(directory: Path, _: pytest.MonkeyPatch) -> Iterator[ClusterBackend]:
    with FakeCluster(directory) as cluster:

        def lose(launch: str) -> None:
            for pod in cluster.pods(astraflow_launch=launch):
                cluster.lose(pod)

        yield ClusterBackend(
            options={"kind": "kubernetes", "image": "none", "command": PROGRAM, "kubeconfig": str(cluster.kubeconfig)},
            lose=lose,
            alive=lambda: sum(1 for pod in cluster.pods() if not is_over(pod)),
        )


@contextmanager
def slurm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterBackend]:
    commands = slurm_commands.install(directory)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    cluster = slurm_commands.Cluster(directory)

    def alive() -> list[dict[str, Any]]:
        return [job for job in cluster.jobs() if job["state"] not in slurm_commands.OVER]

    def lose(launch: str) -> None:
        slurm_commands.lose(cluster, next(job for job in alive() if job["name"].endswith(launch)))

    try:
        forwarded_variables = ["PATH", "HOME", "PYTHONPATH"]
        yield ClusterBackend(
            options={
                "kind": "slurm",
                "program": PROGRAM,
                "forwarded_variables": forwarded_variables,
                "listing_lag_s": 1.0,
            },
            lose=lose,
            alive=lambda: len(alive()),
        )
    finally:
        slurm_commands.end_all(cluster)


@contextmanager
def skypilot(directory: Path, _: pytest.MonkeyPatch) -> Iterator[ClusterBackend]:
    with FakeSkyPilot(directory) as sky:
        yield ClusterBackend(
            options={"kind": "skypilot", "program": PROGRAM, "endpoint": sky.endpoint, "listing_lag_s": 1.0},
            lose=lambda launch: sky.lose(f"astraflow-{launch.lower()}"),
            alive=lambda: len(sky.clusters),
        )


@asynccontextmanager
async def fleet_on(backend: ClusterBackend, directory: Path) -> AsyncIterator[tuple[Any, FleetPlaneClient]]:
    """Starts a run with two nodes on this backend."""
    recipe = directory / "recipe.toml"
    options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in backend.options.items())
    recipe.write_text(
        f'extends = "{ROOT}/recipes/smoke/recipe.toml"\n'
        f"[fleet.providers.there]\n{options}\n"
        f'[fleet.pools.local]\nprovider = "there"\nmode = "on"\nmin_nodes = 2\ncapacity = 32\ndrain_s = 5.0\n'
    )
    async with running(str(recipe), directory / "run", *STEADY) as run, fleet_of(run) as fleet:
        yield run, fleet


@pytest.mark.parametrize(
    "backend_factory",
    [kubernetes, pytest.param(slurm, marks=pytest.mark.long), pytest.param(skypilot, marks=pytest.mark.long)],
)
async def test_nodes_on_clusters_join_are_replaced_and_end_with_the_run(
    backend_factory: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with backend_factory(tmp_path / "there", monkeypatch) as backend:
        async with fleet_on(backend, tmp_path) as (run, fleet):
            await until(fleet, ready(2))
            await run.steps_more(3)
            lost = (await fleet.instances())[0].id
            backend.lose(lost)
            await until(fleet, lambda status: not ready(2)(status))
            await until(fleet, ready(2))
            assert lost not in {instance.id for instance in await fleet.instances()}
            assert_balanced(await run.steps_more(3))
        assert backend.alive() == 0
