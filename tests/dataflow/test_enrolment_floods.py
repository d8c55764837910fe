"""Resources that a peer without a certificate can use at the enrolment port: bounded memory and connection time."""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY, dial, folder_client_tls
from tests.dataflow.running import TOKEN
from tests.fakes.http2_flood import Http2Flood

pytestmark = [pytest.mark.anyio, pytest.mark.long]

ENROLL = "/astraflow.v1.Enrollment/Enroll"
METADATA = (("authorization", "Bearer wrong"), (PROTOCOL_KEY, PROTOCOL))
MIB = 2**20
MOST_BYTES = 64 * MIB
"""Memory that a flood may add. Bytes."""
FLOOD_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Service process, as an attacker and as its operator see it."""

    main: str
    enrolment: str
    ca: bytes
    folder: Path
    process: psutil.Process

    @property
    def memory_bytes(self) -> int:
        return int(self.process.memory_info().rss)

    @property
    def connections(self) -> int:
        """Connections to the enrolment port that the service process has established. Count."""
        port = int(self.enrolment.rpartition(":")[2])
        tcp_connections = self.process.net_connections(kind="tcp")
        return sum(
            net_connection.laddr.port == port and net_connection.status == psutil.CONN_ESTABLISHED
            for net_connection in tcp_connections
        )

    async def answers(self) -> bool:
        """Returns whether the service answers a peer that has the certificate and the run token."""
        async with dial(self.main, token=TOKEN, tls=folder_client_tls(self.folder / "authority")) as link:
            return (await ControlPlaneClient(link).report()).run == "test"


@asynccontextmanager
async def serving_process(folder: Path) -> AsyncIterator[Target]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (sys.executable, "-m", "tests.dataflow.enrolling_process", str(folder), str(port))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        main = await _address(process.stdout)
        yield Target(
            main=main,
            enrolment=f"127.0.0.1:{port}",
            ca=(folder / "authority" / "ca.pem").read_bytes(),
            folder=folder,
            process=psutil.Process(process.pid),
        )
    finally:
        process.stdin.close()
        await process.wait()


async def _address(output: asyncio.StreamReader) -> str:
    """Finds the address in the output of the process, which also contains its log."""
    while line := (await output.readline()).decode():
        if line.startswith("127.0.0.1:"):
            return line.strip()
    raise AssertionError("the service ended before it was ready")


class Peak:
    """Peak memory of a process since the block began."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = self.highest = target.memory_bytes

    @property
    def added_bytes(self) -> int:
        return self.highest - self._before

    async def watch(self) -> None:
        while True:
            self.highest = max(self.highest, self._target.memory_bytes)
            await asyncio.sleep(0.02)


def connected(target: Target) -> ssl.SSLSocket:
    """Opens a connection to the enrolment port that trusts the authority and presents no certificate."""
    context = ssl.create_default_context(cadata=target.ca.decode())
    context.set_alpn_protocols(["h2"])
    host, port = target.enrolment.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=10), server_hostname=host)


def flood(target: Target, *, streams: int, message_bytes: int) -> int:
    """Begins `streams` messages on one connection with an invalid token; returns the accepted bytes."""
    with connected(target) as connection:
        peer = Http2Flood(connection)
        peer.listen(lambda: peer.is_settled)
        for _ in range(streams):
            peer.request(ENROLL, METADATA, message_bytes=message_bytes)
        peer.send(for_s=FLOOD_S, at_most_bytes=streams * message_bytes)
        return peer.sent_bytes


async def test_a_flood_without_a_certificate_adds_little_memory(tmp_path: Path) -> None:
    async with serving_process(tmp_path) as target:
        assert await target.answers()
        peak = Peak(target)
        watching = asyncio.create_task(peak.watch())
        await asyncio.to_thread(flood, target, streams=100, message_bytes=60 * MIB)
        watching.cancel()
        assert peak.added_bytes < MOST_BYTES
        assert await target.answers()
