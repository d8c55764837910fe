"""A run that the page launches on remote machines: hosts over SSH join it at this machine's address, over TLS."""

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import httpx
import psutil
import pytest

from astraflow.access.authority import Authority
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports.report import NodeState
from astraflow.runtime.folders.run_folders import RunFolder, active_runs
from astraflow.wire.channel import authority_client_tls, dial
from tests.fakes.addresses import beyond_loopback
from tests.fakes.ssh_server import SshServer, serving_ssh
from tests.fakes.web import RunningWeb, running_web
from tests.web.launches.test_launching import state_is, until

ADDRESS = beyond_loopback()

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.needs("sshd", "address"),
    pytest.mark.long,
]

RECIPE = """
extends = "smoke"
name = "lab"
summary = "Hosts of a lab that join over SSH"

[stop]
reward = 2.0
steps = 6

[nodes]
count = 0

[fleet]
times = {{ sweep_s = 1.0, quarantine_s = 10.0, dataflow_timeout_s = 30.0 }}

[fleet.providers.lab]
kind = "static_ssh"
known_hosts = "{directory}/known_hosts"
key_files = ["{directory}/key"]
python = "{python}"
program = ["/usr/bin/env", "PYTHONPATH={root}", "{python}", "-m", "astraflow.cli"]

[fleet.providers.lab.hosts.one]
address = "{address}"
port = {port}
capacity = 2
usd_per_hour = 1.5

[fleet.pools.lab]
provider = "lab"
mode = "up-only"
min_nodes = 1
max_nodes = 2
drain_s = 5.0
capacity = 32
"""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class RemoteHosts:
    """A host of the lab, and the folder of the recipe that uses it."""

    host: SshServer
    recipes: Path


@pytest.fixture
def remote_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteHosts]:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(tmp_path / "key"))
    recipes = tmp_path / "recipes"
    recipes.mkdir(mode=0o755)
    with serving_ssh(tmp_path / "host", key=key, address=ADDRESS) as host:
        (tmp_path / "known_hosts").write_text(host.known_host())
        text = RECIPE.format(directory=tmp_path, python=sys.executable, root=ROOT, address=ADDRESS, port=host.port)
        (recipes / "lab.toml").write_text(text)
        try:
            yield RemoteHosts(host=host, recipes=recipes)
        finally:
            _end_runs()


def _end_runs() -> None:
    """Ends the runs that a failed test left."""
    for folder in active_runs():
        process = psutil.Process(folder.facts.pid)
        process.terminate()
        process.wait(60)


@pytest.fixture
async def page(remote_hosts: RemoteHosts, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    async with running_web(tmp_path / "web", "", recipes=(remote_hosts.recipes,), join_host=ADDRESS) as running:
        yield running


async def joined(folder: RunFolder) -> Any:
    """Returns the facts of the ready nodes, once there are any."""
    try:
        tls = authority_client_tls(Authority.load(folder.authority))
        async with dial(folder.facts.dataflow, token=folder.token, tls=tls) as link:
            report = await ControlPlaneClient(link).report()
    except AstraFlowError:
        return None
    return [node.facts for node in report.nodes if node.state is NodeState.READY]


async def followed(client: httpx.AsyncClient, remote_hosts: RemoteHosts, name: str, home: Path) -> None:
    """Asserts that a node of the host joins at this machine's address, and that the run ends by itself."""
    folder = RunFolder(home / "runs" / name)
    nodes = await until(lambda: joined(folder), what="the joining of a node", within_s=120)
    assert {node.pool for node in nodes} == {"lab"}
    facts = folder.facts
    assert facts.is_tls
    assert facts.dataflow.startswith(f"{ADDRESS}:")
    orders = [file.read_text() for file in remote_hosts.host.home.rglob("*.json")]
    assert [order for order in orders if facts.enroll in order], "the host was told to join at this machine's address"
    await until(lambda: state_is(client, name, "ended"), what="the run's end", within_s=180)
    launch = (await client.get(f"/api/v1/launches/{name}")).json()
    assert "6 steps" in launch["final_message"]


async def test_a_remote_host_joins_a_run_launched_by_the_form_over_tls(
    page: RunningWeb, remote_hosts: RemoteHosts, tmp_path: Path
) -> None:
    async with page.logged_in() as client:
        form = (await client.get("/runs/new", params={"recipe": "lab"}, timeout=60)).text
        assert f"--host {ADDRESS}" in form, "the preview shows the command"
        answer = await client.post("/runs/new", data={"recipe": "lab", "reason": "a look"}, timeout=60)
        assert answer.status_code == 303, answer.text[-3000:]
        name = answer.headers["location"].removeprefix("/launches/")
        assert name.startswith("lab-")
        await followed(client, remote_hosts, name, tmp_path / "home")


async def test_the_api_launches_and_clones_a_run_with_remote_hosts(
    page: RunningWeb, remote_hosts: RemoteHosts, tmp_path: Path
) -> None:
    async with page.logged_in() as client:
        key = {"Idempotency-Key": "once"}
        body = {"recipe": "lab", "limit_s": 300, "reason": "a look"}
        answer = await client.post("/api/v1/launches", json=body, headers=key, timeout=60)
        assert answer.status_code == 201, answer.text
        first = answer.json()
        assert first["fleet"] is True, "the recipe contains the provider"
        await followed(client, remote_hosts, first["name"], tmp_path / "home")

        clone = {"of": first["name"], "set": {"stop.steps": 5}, "reason": "another"}
        again = await client.post("/api/v1/launches", json=clone, headers={"Idempotency-Key": "two"}, timeout=60)
        assert again.status_code == 201, again.text
        second = again.json()
        assert (second["fleet"], second["limit_s"]) == (True, 300)
        folder = RunFolder(tmp_path / "home" / "runs" / second["name"])
        await until(lambda: joined(folder), what="the joining of a node", within_s=120)
        await client.post(f"/launches/{second['name']}/stop", data={"reason": "enough"})
        await until(lambda: state_is(client, second["name"], "ended"), what="its end", within_s=120)
