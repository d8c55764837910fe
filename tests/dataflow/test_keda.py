"""KEDA's external scaler, called by a separate client generated from KEDA's published proto."""

import asyncio
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import pytest

from astraflow.access.authority import Authority, KeyPair
from astraflow.cli.ports import free_ports
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import InvalidInput
from astraflow.dataflow.endpoint_config import KedaConfig
from tests.dataflow.running import config, facts, running
from tests.errors import raises_code

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent / "keda"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("keda")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    command += [f"--python_out={out}", f"--grpc_python_out={out}", str(HERE / "externalscaler.proto")]
    subprocess.run(command, check=True, timeout=60)
    return out


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


async def ask(generated: Path, port: int, pool: str, *pem: Path) -> dict[str, Any]:
    address = f"127.0.0.1:{port}"
    command = [sys.executable, str(HERE / "client.py"), str(generated), address, pool, *map(str, pem)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def with_keda(port: int, mode: str) -> Any:
    return config(keda={"port": port}, pools={"local": {"max_nodes": 8, "mode": mode}})


async def has_advice(nodes: NodeDataClient, control: ControlPlaneClient) -> None:
    await nodes.join(facts())
    with anyio.fail_after(20):
        async for report in control.watch_report():
            if report.recommendations:
                return


async def test_keda_reads_the_target_as_the_metric(tmp_path: Path, generated: Path, free_port: int) -> None:
    async with running(tmp_path, with_keda(free_port, "on")) as service:
        await has_advice(service.nodes, service.control)
        answers = await ask(generated, free_port, "local")
        (advice,) = (await service.control.report()).recommendations
    assert answers == {
        "spec": [["astraflow_target_nodes", 1, 1.0]],
        "is_active": True,
        "metrics": [["astraflow_target_nodes", advice.target, float(advice.target)]],
        "streamed": True,
    }


async def test_a_pool_in_mode_advise_is_not_scaled(tmp_path: Path, generated: Path, free_port: int) -> None:
    async with running(tmp_path, with_keda(free_port, "advise")) as service:
        await has_advice(service.nodes, service.control)
        answers = await ask(generated, free_port, "local")
    assert answers["code"] == "ABORTED"
    assert "'advise'" in answers["details"]
    assert "metrics" not in answers


async def test_invalid_queries_are_refused_with_the_known_pools(
    tmp_path: Path, generated: Path, free_port: int
) -> None:
    async with running(tmp_path, with_keda(free_port, "on")) as service:
        await has_advice(service.nodes, service.control)
        unnamed, unknown = await ask(generated, free_port, ""), await ask(generated, free_port, "loca")
    assert (unnamed["code"], unknown["code"]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert "pool: gpu" in unnamed["details"]
    assert "local" in unknown["details"]


async def test_only_clients_with_a_certificate_of_the_authority_are_answered(
    tmp_path: Path, generated: Path, free_port: int
) -> None:
    ours, theirs = (Authority.create(tmp_path / name, run=name) for name in ("ours", "theirs"))
    own = written(tmp_path / "own", ours.for_service("127.0.0.1"))
    client = written(tmp_path / "client", ours.for_run_token())
    stranger = written(tmp_path / "stranger", theirs.for_run_token())
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ours.pem)
    keda = {"port": free_port, "certificate": own[0], "key": own[1], "client_ca": ca}
    with_tls = config(keda=keda, pools={"local": {"max_nodes": 8, "mode": "on"}})
    async with running(tmp_path / "run", with_tls) as service:
        await has_advice(service.nodes, service.control)
        assert (await ask(generated, free_port, "local", ca, *client))["metrics"] == [
            ["astraflow_target_nodes", 1, 1.0]
        ]
        for refused in ((), (ca,), (ca, *stranger)):
            assert (await ask(generated, free_port, "local", *refused))["code"] == "UNAVAILABLE"


def written(folder: Path, pair: KeyPair) -> tuple[Path, Path]:
    """Writes certificate and key to files."""
    folder.mkdir()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return certificate, key


def test_listening_beyond_loopback_needs_certificates_or_is_open() -> None:
    with raises_code(InvalidInput, "config.invalid", "is_open"):
        KedaConfig.parse({"host": "0.0.0.0"}, where="keda")  # noqa: S104 (refused)
    assert KedaConfig.parse({"host": "0.0.0.0", "is_open": True}, where="keda").is_open  # noqa: S104
