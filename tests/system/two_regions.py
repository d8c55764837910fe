"""A run in two regions whose maintainer asks a model over HTTP; a test triggers the faults.

The nodes are processes of this machine that the fleet service starts. In a region that `fails`, no machine
boots; in one that `drags`, machines are stopped most of the time, as on a throttled or crowded host.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.fleet.instances import InstanceState
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.pools import FleetStatus
from tests.fakes.messages_api import KEY, FakeMessagesApi, serving_messages
from tests.system.processes import PATIENCE_S, ROOT, RunningRun, running
from tests.system.test_fleet import ALICE, until

T = TypeVar("T")

EU, US = "eu", "us"

RECIPE = """
extends = "{smoke}"
name = "smoke"
evaluations = {{}}

[stop]
reward = 2.0
steps = 1000000

[policies.solver.backend]
step_s = 0.5

[nodes]
capacity = 2

[nodes.engine]
tokens = {{ mean = 60.0 }}

[flows.train.workflow]
max_new_tokens = 500

[dataflow.pools.eu]
mode = "on"
min_nodes = 2
max_nodes = 3

[dataflow.pools.us]
mode = "on"
min_nodes = 1
max_nodes = 6

[fleet]
cluster = "regions"
retire_on_stop = true
times = {{ sweep_s = 1.0, quarantine_s = 10.0, dataflow_timeout_s = 30.0, retry_s = 1.0 }}
limits = {{ cool_down_s = 1.0 }}

[fleet.providers.here-eu]
kind = "local_process"
types = {{ process = 1.0 }}
program = {eu_program}

[fleet.providers.here-us]
kind = "local_process"
types = {{ process = 2.0 }}
program = {us_program}

[fleet.pools.eu]
provider = "here-eu"
mode = "on"
min_nodes = 2
max_nodes = 3
region = "eu"
capacity = 2
drain_s = 5.0

[fleet.pools.us]
provider = "here-us"
mode = "on"
min_nodes = 1
max_nodes = 6
region = "us"
capacity = 2
drain_s = 5.0

[maintainer]
mode = "off"

[maintainer.model]
kind = "messages_api"
model = "simulated"
base_url = "{url}"
prices = {{ input = 1.0, output = 5.0 }}

[maintainer.watch]
observe_interval_s = 0.5
wake_pause_s = 1.0
straggler_s = 3.0
smoothing_s = 3.0
"""

ENGINE = """{{ kind = "scripted", accuracy_start = 0.3, accuracy_gain = 0.02, first_token_s = {{ mean = 0.01 }}, \
tokens = {{ mean = 60.0 }}, tokens_per_s = 80.0, speed_factor_file = "{pace}" }}"""
"""Engine of nodes that take most of a second for an episode."""

BOOT = """
import os, sys
from pathlib import Path
from typing import TypeVar
if Path({flag!r}).exists():
    sys.exit("the image cannot be pulled")
machine = str(os.getpgrp())
arguments = [one.replace("MACHINE", machine) for one in sys.argv[1:]]
os.execv(sys.executable, [sys.executable, "-m", "astraflow.cli", *arguments])
"""
"""Boot script: the node's program, unless the region fails. `MACHINE` in its arguments is the machine's group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """The run, its fleet, and the server of the model."""

    run: RunningRun
    fleet: FleetPlaneClient
    model: FakeMessagesApi
    directory: Path

    def fail(self, region: str) -> None:
        """Ends the machines of the region and lets no more boot."""
        self._flag(region).touch()
        for group in self.machines(region):
            os.killpg(group, signal.SIGKILL)

    def slow_down(self, region: str, *, pace: float) -> None:
        """Slows the running machines to this share of their speed; later machines run at full speed."""
        for group in self.machines(region):
            draft = self.directory / f"{region}.{group}.draft"
            draft.write_text(str(pace))
            draft.rename(self.directory / f"{region}.{group}.pace")

    def block_launches(self, region: str) -> None:
        """Lets no more machines boot; running ones continue."""
        self._flag(region).touch()

    @asynccontextmanager
    async def throttled_instances(
        self, region: str, *, share: float = 0.05, period_s: float = 1.0
    ) -> AsyncIterator[None]:
        """Runs machines there for this share of the time, until the block ends."""

        async def slow_down_region() -> None:
            while True:
                for name, duration_s in (("SIGSTOP", period_s * (1 - share)), ("SIGCONT", period_s * share)):
                    for group in self.machines(region):
                        os.killpg(group, getattr(signal, name))
                    await asyncio.sleep(duration_s)

        throttled_instances = asyncio.create_task(slow_down_region())
        try:
            yield
        finally:
            throttled_instances.cancel()
            await asyncio.gather(throttled_instances, return_exceptions=True)
            for group in self.machines(region):
                os.killpg(group, signal.SIGCONT)

    async def let(self, mode: MaintainerMode) -> None:
        """Sets the limits of the maintainer, and waits until the maintainer has it."""
        await self.fleet.set_maintainer_mode(mode, actor=ALICE, key=f"let-{mode.value}", reason="a test")

        async def has_status() -> bool:
            status = (await self.fleet.maintainer()).status
            return status is not None and status.mode is mode

        await eventually(has_status)

    def machines(self, region: str) -> list[int]:
        """Returns the process groups of the machines that run there."""
        notes = (self.run.directory / "fleet" / "providers" / f"here-{region}").glob("*/machine.json")
        process_ids = [int(json.loads(note.read_text())["pid"]) for note in notes]
        return [group for group in process_ids if _is_alive(group)]

    async def at_work(self) -> dict[str, int]:
        """Returns the ready nodes, by pool."""
        return _at_work(await self.fleet.status())

    def _flag(self, region: str) -> Path:
        return self.directory / f"{region}.fails"


@asynccontextmanager
async def running_regions(
    directory: Path,
    *,
    has_maintainer: bool = True,
    recipe: str = RECIPE,
    begins_with: Mapping[str, int] = MappingProxyType({EU: 2, US: 1}),
) -> AsyncIterator[Regions]:
    """Runs until the block ends. begins_with: nodes of each region to wait for."""
    async with serving_messages() as model:
        programs = {}
        for region in (EU, US):
            boot = directory / f"boot_{region}.py"
            boot.write_text(BOOT.format(flag=str(directory / f"{region}.fails")))
            programs[f"{region}_program"] = json.dumps([sys.executable, str(boot)])
            programs[f"{region}_engine"] = json.dumps(ENGINE.format(pace=directory / f"{region}.MACHINE.pace"))
        file = directory / "recipe.toml"
        smoke = ROOT / "recipes/smoke/recipe.toml"
        file.write_text(recipe.format(smoke=smoke, url=model.url, **programs))
        options = ["--fleet", "--no-web"]
        options += ["--maintainer", "model"] if has_maintainer else []
        os.environ["ANTHROPIC_API_KEY"] = KEY
        async with running(str(file), directory / "run", *options, gone_within_s=30.0) as run:
            await run.report()
            async with connect_fleet(run.facts()["fleet"], run.token()) as fleet:
                await until(fleet, lambda status: _at_work(status) == begins_with)
                yield Regions(run=run, fleet=fleet, model=model, directory=directory)


async def eventually(probe: Callable[[], Awaitable[T]], *, every_s: float = 0.05) -> T:
    """Polls until the answer is not empty."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if answer := await probe():
                return answer
            await asyncio.sleep(every_s)


def _at_work(status: FleetStatus) -> dict[str, int]:
    return {str(pool.spec.id): pool.nodes.get(InstanceState.READY, 0) for pool in status.pools}


def _is_alive(group: int) -> bool:
    try:
        return Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
