"""Processes of a run on two hosts, which are network namespaces with a link between them.

    near  PostgreSQL ◄─ fleet, page     trainers ─► recorder ─► dataflow     recorder ─► weights ─► link ─► bucket
            fleet ─► machines with nodes                 ▲                       ▲
    ───────────────────────────────────────────────────  │  ── mutual TLS ───────│─────────────────────────────
    far                                    nodes ────────┘            mirror ────┘     nodes ─► mirror

Both recorders hold the run's authority: they see every call of both hosts, as the services answered it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from astraflow.access.authority import Authority
from astraflow.cli.ports import free_ports
from astraflow.cli.running.supervisor import Program
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.recipe.config import Recipe
from astraflow.runtime.retries import retry
from astraflow.wire.channel import authority_client_tls, dial
from benchmarks.wide_area.link import FAR_ADDRESS, NEAR_ADDRESS
from maintainer.fleet.providers.local_process.machine import NOTE
from soak.cluster.strikes import BUCKET, DATABASE
from soak.ledger import Ledger
from soak.processes import TOKEN_OF_RUN, FaultCounts, Process, cli_program, program
from soak.proxy import Link
from soak.recording_proxy import CallRecorder, recording
from soak.topology import DATAFLOW, WEIGHTS, Topology
from tests.fakes.postgres import postgres_folder, server_command, server_url
from tests.system.processes import ROOT
from tests.weights.buckets import bucket_service, make_bucket

FLEET, PAGE, MIRROR = "fleet", "page", "mirror"
FAR_NODES = ("node-far-1", "node-far-2")
NEAR_POOL, FAR_POOL = "near", "far"
BUCKET_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
STARTING_S = 300.0
"""Seconds for PostgreSQL to accept connections, and for dataflow to answer."""

OUTAGE_CODES = {
    FLEET: ("database.unreachable", "channel.unreachable"),
    PAGE: ("database.unreachable",),
    WEIGHTS: ("storage.bucket_unreachable",),
}
"""Errors with which a process ends when a service that it needs is away at its start; it is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of the services, the same behind and before their recorders."""

    database: int
    dataflow: int
    enroll: int
    weights: int
    fleet: int
    page: int
    mirror: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster."""

    topology: Topology
    database: Process
    bucket: Link
    storage: Mapping[str, Any]
    """Storage of the weights in the bucket, without the link that is cut."""
    witness: CallRecorder
    ports: Ports
    directory: Path

    @property
    def machines(self) -> Path:
        """Folder of the machines of the fleet's nodes."""
        return self.directory / FLEET / "providers" / NEAR_POOL

    @property
    def mirror(self) -> str:
        """Address of the mirror."""
        return f"{FAR_ADDRESS}:{self.ports.mirror}"


@asynccontextmanager
async def running_cluster(
    recipe: Recipe, recipe_file: Path, directory: Path, ledger: Ledger, fault_counts: FaultCounts, *, far: str
) -> AsyncIterator[Cluster]:
    """Runs all processes until the block ends. far: namespace of the second host; this process is in the first."""
    ports = Ports(**dict(zip(Ports.__dataclass_fields__, free_ports(7), strict=True)))
    keys, witness = directory / "keys", CallRecorder(ledger)
    _run("keys", str(keys), "--run", "cluster", "--public", str(directory / "public"))
    authority = Authority.load(keys / "authority")
    async with AsyncExitStack() as stack:
        service = stack.enter_context(bucket_service())
        make_bucket(service, "weights")
        bucket = Link(BUCKET, service.removeprefix("http://"))
        storage = _storage(f"http://{await stack.enter_async_context(bucket.serving())}")
        folder = stack.enter_context(postgres_folder())
        stack.enter_context(_machines_ended(directory))
        for port in (ports.dataflow, ports.weights):
            at = f"{NEAR_ADDRESS}:{port}"
            recorder = recording(f"127.0.0.1:{port}", witness, at=at, authority=authority)
            await stack.enter_async_context(recorder)
        enrolling = Link("enroll", f"127.0.0.1:{ports.enroll}")
        await stack.enter_async_context(enrolling.serving(ports.enroll, host=NEAR_ADDRESS))
        programs = Programs(recipe_file, directory, ports, far=far, storage=storage)
        tasks = await stack.enter_async_context(_ended_with_block())
        server = Program(
            name=DATABASE, argv=tuple(server_command(folder, ports.database)), log=directory / "logs" / "database.log"
        )
        database = Process(server, fault_counts, expected_codes=(0, 1), end_signal=signal.SIGINT)
        tasks.append(asyncio.create_task(database.run()))
        stack.push_async_callback(database.finish)
        await asyncio.to_thread(_make_databases, ports.database)
        processes = {
            each.name: Process(each, fault_counts, outage_codes=OUTAGE_CODES.get(each.name, ()))
            for each in programs.all(tuple(recipe.policies))
        }
        tasks += [asyncio.create_task(process.run()) for name, process in processes.items() if name not in FAR_NODES]
        tls = authority_client_tls(authority)
        async with dial(f"127.0.0.1:{ports.dataflow}", token=TOKEN_OF_RUN, tls=tls) as link:
            await retry(ControlPlaneClient(link).report, what="waiting for dataflow", give_up_after_s=STARTING_S)
        await asyncio.to_thread(programs.make_join_token)
        tasks += [asyncio.create_task(processes[name].run()) for name in FAR_NODES]
        yield Cluster(
            topology=Topology(
                processes=processes,
                links={BUCKET: bucket},
                dataflow=f"127.0.0.1:{ports.dataflow}",
                weights=f"127.0.0.1:{ports.weights}",
                tls=tls,
            ),
            database=database,
            bucket=bucket,
            storage={**storage, "endpoint": service},
            witness=witness,
            ports=ports,
            directory=directory,
        )


class Programs:
    """Command lines of the processes, as an operator starts them on two hosts."""

    def __init__(self, recipe: Path, directory: Path, ports: Ports, *, far: str, storage: Mapping[str, Any]) -> None:
        self._recipe = recipe
        self._directory = directory
        self._ports = ports
        self._far = far
        self._storage = storage
        self._authority = ("--authority", str(directory / "keys" / "authority"))
        self._key = ("--weights-key", str(directory / "public" / "weights.pub"))
        self._dataflow = f"{NEAR_ADDRESS}:{ports.dataflow}"
        self._enroll = f"{NEAR_ADDRESS}:{ports.enroll}"
        self._token = directory / "join-token"

    def all(self, policies: tuple[str, ...]) -> list[Program]:
        """Returns every program of the run."""
        trainers = [self._trainer(policy) for policy in policies]
        far_nodes = [self._on_far_host(self._node(name)) for name in FAR_NODES]
        services = [self._weights(), self._run_dataflow(), self._fleet(), self._page()]
        return [*services, *trainers, self._on_far_host(self._mirror()), *far_nodes]

    def make_join_token(self) -> None:
        """Creates the token with which nodes of the far host join, once dataflow runs."""
        options = ["--pool", FAR_POOL, "--reusable", "--hours", "2", "--out", str(self._token)]
        _run("token", self._dataflow, *options, *self._authority, "--reason", "nodes of the far host")

    def _weights(self) -> Program:
        storage = f"weights.storage={_toml(self._storage)}"
        listen = self._listen(self._ports.weights)
        weights = program(WEIGHTS, WEIGHTS, self._recipe, self._directory, *self._state(WEIGHTS), *listen, *self._key)
        return replace(
            weights, argv=(*weights.argv, "--set", storage), environment={**weights.environment, **BUCKET_KEYS}
        )

    def _run_dataflow(self) -> Program:
        options = ["--weights", f"{NEAR_ADDRESS}:{self._ports.weights}", "--enroll-port", str(self._ports.enroll)]
        options += [*self._listen(self._ports.dataflow), *self._key, "--run", "cluster"]
        return program(DATAFLOW, DATAFLOW, self._recipe, self._directory, *self._state(DATAFLOW), *options)

    def _trainer(self, policy: str) -> Program:
        name = f"trainer-{policy}"
        options = ["--policy", policy, "--dataflow", self._dataflow, *self._authority]
        options += ["--signing-key", str(self._directory / "keys" / "weights.key")]
        return program("trainer", name, self._recipe, self._directory, *self._state(name), *options)

    def _fleet(self) -> Program:
        file = self._directory / "fleet.toml"
        file.write_text(FLEET_CONFIG.format(database=server_url(self._ports.database, FLEET)))
        options = [*self._state(FLEET), *self._listen(self._ports.fleet), "--join-address", self._enroll]
        arguments = ["serve", "fleet", str(file), "--dataflow", self._dataflow, *options]
        return cli_program(FLEET, self._directory, *arguments)

    def _page(self) -> Program:
        options = [*self._state(PAGE), "--port", str(self._ports.page), *self._authority]
        planes = ["--dataflow", self._dataflow, "--fleet", f"127.0.0.1:{self._ports.fleet}"]
        environment = {
            "ASTRAFLOW_WEB_DATABASE": server_url(self._ports.database, PAGE),
            "ASTRAFLOW_HOME": str(self._directory / "home"),
        }
        return cli_program(PAGE, self._directory, "serve", "web", *planes, *options, environment=environment)

    def _mirror(self) -> Program:
        options = ["--follow", f"{NEAR_ADDRESS}:{self._ports.weights}", "--host", FAR_ADDRESS, *self._authority]
        options += ["--port", str(self._ports.mirror), *self._key]
        return program(WEIGHTS, MIRROR, self._recipe, self._directory, *self._state(MIRROR), *options)

    def _node(self, name: str) -> Program:
        pull = _toml({"sources": [f"{FAR_ADDRESS}:{self._ports.mirror}"], "use_shared_memory": False})
        options = ["--token-file", str(self._token), "--name", name, "--pull", pull, "--region", "far"]
        options += ["--credential-folder", str(self._directory / name)]
        node = cli_program(name, self._directory, "join", self._enroll, *options)
        environment = {key: value for key, value in node.environment.items() if key != "ASTRAFLOW_TOKEN"}
        return replace(node, environment={**environment, "ASTRAFLOW_HOME": str(self._directory / "home")})

    def _on_far_host(self, near: Program) -> Program:
        return replace(near, argv=("ip", "netns", "exec", self._far, *near.argv))

    def _listen(self, port: int) -> list[str]:
        return ["--port", str(port), "--tls", *self._authority, "--advertise", NEAR_ADDRESS]

    def _state(self, name: str) -> list[str]:
        return ["--directory", str(self._directory / name)]


FLEET_CONFIG = """\
cluster = "soak"
database = "{database}"

[providers.near]
kind = "local_process"

[pools.near]
provider = "near"
mode = "on"
min_nodes = 2
max_nodes = 3
drain_s = 5.0

[times]
sweep_s = 5.0
retry_s = 1.0
lost_after_s = 15.0
dataflow_timeout_s = 60.0

[limits]
changes_per_hour = 1000
"""


@asynccontextmanager
async def _ended_with_block() -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Yields a list of tasks, which are cancelled and awaited after the block."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _machines_ended(directory: Path) -> Iterator[None]:
    """Ends the machines of the fleet's nodes after the block; they outlive a fleet service that was killed."""
    try:
        yield
    finally:
        for pid in living_machines(directory / FLEET / "providers" / NEAR_POOL).values():
            os.killpg(pid, signal.SIGKILL)


def living_machines(machines: Path) -> dict[str, int]:
    """Returns the process group of each living machine, by launch."""
    pids = {note.parent.name: int(json.loads(note.read_text())["pid"]) for note in machines.glob(f"*/{NOTE}")}
    return {launch: pid for launch, pid in pids.items() if _is_machine(pid, launch)}


def kill_machine(machines: Path) -> bool:
    """Kills the oldest living machine with its node; returns whether there was one."""
    alive = living_machines(machines)
    if alive:
        os.killpg(alive[min(alive)], signal.SIGKILL)
    return bool(alive)


def _is_machine(pid: int, launch: str) -> bool:
    """Returns whether a process is the machine of a launch, and not a later process with its id."""
    try:
        return launch.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def _make_databases(port: int) -> None:
    deadline = time.monotonic() + STARTING_S
    while True:
        try:
            with psycopg.connect(server_url(port), autocommit=True) as connection:
                for name in (FLEET, PAGE):
                    connection.execute(f"CREATE DATABASE {name}".encode())
                return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _storage(endpoint: str) -> dict[str, Any]:
    return {"kind": "s3", "bucket": "weights", "prefix": "run", "endpoint": endpoint, "region": "us-east-1"}


def _run(*arguments: str) -> None:
    environment = {**os.environ, **cli_program("", Path()).environment}
    command = [sys.executable, "-m", "astraflow.cli", *arguments]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, timeout=300)


def _toml(value: Any) -> str:
    """Formats an inline table."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
