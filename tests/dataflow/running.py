"""A dataflow service over real gRPC on port 0, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.data_plane import NodeDataClient, TrainerDataClient
from astraflow.contract.ids import PolicyId, PoolId, TaskId
from astraflow.contract.nodes import NodeFacts
from astraflow.dataflow.config import DataflowConfig, EvaluationConfig, FlowConfig, StreamConfig
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.run import Run
from astraflow.dataflow.service import build_run, serve
from astraflow.dataflow.storage.journal import Journal
from astraflow.runtime.clock import Clock
from astraflow.wire.channel import ServiceChannel, dial
from astraflow.wire.server import ListenOptions
from tests.fakes.clock import ManualClock

TOKEN = "a-token-for-tests"


def config(
    *,
    policies: tuple[str, ...] = ("solver",),
    batch_groups: int = 2,
    max_staleness: int = 1,
    group_size: int = 2,
    filters: tuple[str, ...] = ("keep_all",),
    lease_s: float = 5.0,
    max_attempts: int = 2,
    sampler: dict[str, Any] | None = None,
    evaluations: dict[str, EvaluationConfig] | None = None,
    **more: Any,
) -> DataflowConfig:
    """Returns a small run with one flow for each policy."""
    flows = {
        f"train-{policy}": FlowConfig(
            dataset={"kind": "letters"},
            workflow={"kind": "single_turn", "policy": policy, "max_new_tokens": 6},
            reward={"kind": "exact_match"},
            group_size=group_size,
            filters=tuple({"kind": kind} for kind in filters),
            max_attempts=max_attempts,
        )
        for policy in policies
    }
    return DataflowConfig(
        run="test",
        flows=flows,
        evaluations=evaluations or {},
        streams={
            policy: StreamConfig(
                batch_groups=batch_groups, max_staleness=max_staleness, sampler=sampler or {"kind": "fresh"}
            )
            for policy in policies
        },
        models={policy: {"kind": "scripted"} for policy in policies},
        lease_s=lease_s,
        heartbeat_s=0.2,
        report_s=0.1,
        **more,
    )


def sessions_config(**options: Any) -> DataflowConfig:
    """Returns a small run whose flow has episodes of several trajectories. options: of `config`."""
    run = config(**options)
    workflow = {"kind": "plan_and_solve", "planner": "solver", "solver": "solver", "solutions": 7}
    flow = run.flows["train-solver"].model_copy(update={"workflow": workflow})
    return run.model_copy(update={"flows": {"train-solver": flow}})


def evaluation(policy: str = "solver", **options: Any) -> EvaluationConfig:
    """Returns an evaluation of three prompts of the same dataset, two samples each."""
    values = {
        "dataset": {"kind": "letters"},
        "workflow": {"kind": "single_turn", "policy": policy, "max_new_tokens": 6},
        "reward": {"kind": "exact_match"},
        "samples": 2,
        "prompts": 3,
        "max_attempts": 2,
    }
    return EvaluationConfig.parse({**values, **options}, where="evaluation")


def facts(name: str = "node", *, running: tuple[TaskId, ...] = (), policies: tuple[PolicyId, ...] = ()) -> NodeFacts:
    """Returns the facts with which a node joins."""
    return NodeFacts(
        name=name,
        pool=PoolId("local"),
        region="here",
        engine="scripted",
        is_simulated=True,
        hardware="cpu",
        capacity=8,
        price_per_hour=0.0,
        software="test",
        running=running,
        policies=policies,
    )


def archive_in(directory: Path) -> Archive:
    """Returns an archive that is never flushed to its file."""
    return Archive(directory / "history.sqlite", clock=ManualClock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Running service and clients of its planes."""

    address: str
    link: ServiceChannel
    nodes: NodeDataClient
    control: ControlPlaneClient

    def trainer(self, policy: str = "solver") -> TrainerDataClient:
        """Returns a trainer client for one policy."""
        return TrainerDataClient(self.link, PolicyId(policy))


@asynccontextmanager
async def running(
    directory: Path,
    run: DataflowConfig | None = None,
    *,
    port: int = 0,
    weights_address: str = "127.0.0.1:1",
    clock: Clock | None = None,
) -> AsyncIterator[Service]:
    """Serves until the block ends."""
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(
            run or config(),
            listen=ListenOptions(port=port, token=TOKEN, drain_s=0.5),
            directory=directory,
            weights_address=weights_address,
            stop=stop,
            on_ready=ready.set_result,
            clock=clock,
        )
    )
    waited: set[asyncio.Future[Any]] = {serving, ready}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    try:
        async with dial(ready.result(), token=TOKEN) as link:
            yield Service(
                address=ready.result(), link=link, nodes=NodeDataClient(link), control=ControlPlaneClient(link)
            )
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def opened(directory: Path, run_config: DataflowConfig) -> AsyncIterator[tuple[Run, Journal]]:
    """Opens a run without a server: restores it, and commits its journal until the block ends."""
    with closing(archive_in(directory)) as archive, closing(Journal(directory / "journal.sqlite")) as journal:
        run = build_run(run_config, journal=journal, archive=archive, clock=ManualClock())
        run.restore(grace_s=1)
        async with committing(journal):
            yield run, journal


@asynccontextmanager
async def committing(journal: Journal) -> AsyncIterator[None]:
    """Commits a journal until the block ends, and closes it."""
    working = asyncio.create_task(journal.run())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        journal.close()
