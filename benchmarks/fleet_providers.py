"""Duration of a provider's calls: sequential launches, concurrent launches, a list of all instances, their termination.

    python -m benchmarks.fleet_providers [--instances 20]

Processes of this machine; the same through Debian's SSH server on loopback; and EC2's API over HTTP, where moto answers
(and takes most of the time). Nodes only sleep.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncssh
from rich.console import Console
from rich.table import Table

from astraflow.runtime.logs import configure
from maintainer.testing.provider_harness import ProviderHarness, launch_id, retire
from tests.fakes.ec2_instances import running_instances
from tests.fakes.ec2_server import CREDENTIALS, serving_ec2
from tests.fakes.ssh_server import serving_ssh
from tests.maintainer.fleet.providers.test_ec2 import REGION, Ec2Harness
from tests.maintainer.fleet.providers.test_local_process import LocalHarness
from tests.maintainer.fleet.providers.test_static_ssh import Lab, SshHarness


@asynccontextmanager
async def local(directory: Path) -> AsyncIterator[ProviderHarness]:
    """Provider of processes on this machine."""
    harness = LocalHarness(directory)
    try:
        yield harness
    finally:
        await harness.end()


@asynccontextmanager
async def over_ssh(directory: Path) -> AsyncIterator[ProviderHarness]:
    """Provider of two hosts over SSH."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    directory.mkdir()
    key.write_private_key(str(directory / "key"))
    with serving_ssh(directory / "one", key=key) as host, serving_ssh(directory / "other", key=key) as other_host:
        (directory / "known_hosts").write_text(host.known_host() + other_host.known_host())
        lab = Lab(one=host, other=other_host, key_file=directory / "key", known_hosts=directory / "known_hosts")
        harness = SshHarness(lab, directory / "machines", capacity=1000)
        try:
            yield harness
        finally:
            await harness.end()


@asynccontextmanager
async def ec2(directory: Path) -> AsyncIterator[ProviderHarness]:
    """Provider of one EC2 region."""
    os.environ.update(CREDENTIALS)
    with serving_ec2() as server, running_instances(server.client(REGION), directory) as runner:
        harness = Ec2Harness(server, runner, directory)
        try:
            yield harness
        finally:
            await harness.end()


async def measured(harness: ProviderHarness, instances: int) -> list[str]:
    """Returns medians in milliseconds, and launches a minute."""
    provider = await harness.provider()
    one_by_one: list[float] = []
    for _ in range(instances):
        with _timed(one_by_one):
            await provider.launch(harness.spec(), launch_id())
    began = time.monotonic()
    await asyncio.gather(*(provider.launch(harness.spec(), launch_id()) for _ in range(instances)))
    at_once_s = time.monotonic() - began
    lists: list[float] = []
    for _ in range(10):
        with _timed(lists):
            listed = await provider.list(harness.cluster)
    assert len(listed) == 2 * instances
    began = time.monotonic()
    await asyncio.gather(*(retire(harness, provider, instance.handle.launch_id) for instance in listed))
    ended_s = time.monotonic() - began
    return [
        f"{statistics.median(one_by_one):.0f} ms",
        f"{60 * instances / at_once_s:,.0f} / min",
        f"{statistics.median(lists):.0f} ms of {len(listed)}",
        f"{ended_s:.1f} s for {len(listed)}",
    ]


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    into.append(1000 * (time.monotonic() - began))


async def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=20)
    chosen = parser.parse_args()
    configure(as_json=True)
    table = Table("provider", "a launch", "launches at once", "a list", "until all are gone")
    with tempfile.TemporaryDirectory() as directory:
        for name, world_of in (("local_process", local), ("static_ssh", over_ssh), ("ec2, moto", ec2)):
            async with world_of(Path(directory) / name) as harness:
                table.add_row(name, *await measured(harness, chosen.instances))
    Console().print(table)


if __name__ == "__main__":
    asyncio.run(main())
