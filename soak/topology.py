"""Processes of the soak and their connections: clients, links with faults, a recorder, the service.

node-1..4, trainer-* ── a link each ──► recorder ──► dataflow
                     ── one link ─────► recorder ──► weights
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow.cli.ports import free_ports
from astraflow.recipe.config import Recipe
from astraflow.wire.channel import ClientTls
from soak.ledger import Ledger
from soak.processes import FaultCounts, Process, program
from soak.proxy import Link
from soak.recording_proxy import CallRecorder, recording

DATAFLOW, WEIGHTS = "dataflow", "weights"

FAULT_WEIGHTS = {"dataflow": 1.0, "weights": 0.8, "trainer": 0.8, "node": 0.9}
"""Relative fault frequency of each role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A run's processes and links by name."""

    processes: dict[str, Process]
    links: dict[str, Link]
    dataflow: str
    """Address for the harness itself, without links and recorder."""
    weights: str
    tls: ClientTls | None = None
    """Credentials of the harness in a run with mutual TLS."""

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes."""
        return [name for name in self.processes if role_of(name) == "node"]

    @property
    def trainers(self) -> list[str]:
        """Names of the trainers."""
        return [name for name in self.processes if role_of(name) == "trainer"]

    def likelihoods(self) -> dict[str, float]:
        """Relative fault frequency of each process."""
        return {name: FAULT_WEIGHTS[role_of(name)] for name in self.processes}


def role_of(name: str) -> str:
    """Returns `node` for `node-3`."""
    return name.partition("-")[0]


def clients_of(recipe: Recipe) -> list[str]:
    """Returns the names of the processes that dial dataflow."""
    nodes = [f"node-{number}" for number in range(1, recipe.nodes.count + 1)]
    return nodes + [f"trainer-{policy}" for policy in recipe.policies]


@asynccontextmanager
async def running(
    recipe: Recipe, recipe_file: Path, directory: Path, ledger: Ledger, fault_counts: FaultCounts
) -> AsyncIterator[Topology]:
    """Runs all processes until the block ends; then ends all of them."""
    dataflow_port, weights_port = free_ports(2)
    dataflow, weights = f"127.0.0.1:{dataflow_port}", f"127.0.0.1:{weights_port}"
    async with AsyncExitStack() as stack:
        witness = CallRecorder(ledger)
        to_dataflow = await stack.enter_async_context(recording(dataflow, witness))
        to_weights = await stack.enter_async_context(recording(weights, witness))
        links = {client: Link(client, to_dataflow) for client in clients_of(recipe)}
        links[WEIGHTS] = Link(WEIGHTS, to_weights)
        doors = {name: await stack.enter_async_context(link.serving()) for name, link in links.items()}

        def set_dataflow_up(is_up: bool) -> None:
            for name in clients_of(recipe):
                links[name].set_down(not is_up)

        def state(name: str) -> tuple[str, str]:
            return ("--directory", str(directory / name))

        def serve(role: str, name: str, *options: str) -> Process:
            on_up = {DATAFLOW: set_dataflow_up, WEIGHTS: lambda is_up: links[WEIGHTS].set_down(not is_up)}.get(role)
            return Process(program(role, name, recipe_file, directory, *options), fault_counts, on_up=on_up)

        all_processes = [
            serve(WEIGHTS, WEIGHTS, *state(WEIGHTS), "--port", str(weights_port)),
            serve(DATAFLOW, DATAFLOW, *state(DATAFLOW), "--port", str(dataflow_port), "--weights", doors[WEIGHTS]),
        ]
        for client in clients_of(recipe):
            role, _, rest = client.partition("-")
            options = ["--policy", rest, *state(client)] if role == "trainer" else ["--name", client]
            all_processes.append(serve(role, client, "--dataflow", doors[client], *options))
        async with asyncio.TaskGroup() as tasks:
            keeping = [tasks.create_task(process.run()) for process in all_processes]
            try:
                yield Topology(
                    processes={process.name: process for process in all_processes},
                    links=links,
                    dataflow=dataflow,
                    weights=weights,
                )
            finally:
                for task in keeping:
                    task.cancel()
