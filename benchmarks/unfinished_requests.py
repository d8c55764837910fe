"""Memory of a service, and the rate of an honest peer, while other peers begin requests and do not finish them.

    python -m benchmarks.unfinished_requests [--seconds 5]

Each case starts a server process with the data plane's limits, whose handler of pushes sleeps 2 ms, and measures an
honest peer that pushes 256 KiB at a time, alone and beside connections that send all but the last byte of their
requests. `slow` connections send one byte of each request a second.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import psutil

from astraflow.contract.errors import AstraFlowError
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY, dial
from astraflow.wire.listener_limits import DATA_LIMITS
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.server import ListenOptions, serving
from tests.fakes.http2_flood import Http2Flood
from tests.wire.plane import TOKEN, register_push

PUSH = "/astraflow.v1.NodeData/Push"
HONEST_BYTES = 2**18
HANDLER_S = 0.002
ALONE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Unfinished requests."""

    connections: int
    calls: int
    """Of each connection."""
    message_mib: int
    is_slow: bool = False


CASES = (
    Case(connections=1, calls=24, message_mib=60),
    Case(connections=1, calls=24, message_mib=8),
    Case(connections=1, calls=256, message_mib=8),
    Case(connections=8, calls=24, message_mib=8),
    Case(connections=8, calls=256, message_mib=8),
    Case(connections=8, calls=24, message_mib=8, is_slow=True),
)


async def _push(request: bytes, context: Any) -> pb.PushReply:
    await asyncio.sleep(HANDLER_S)
    return pb.PushReply()


async def serve() -> None:
    """Serves until the process is killed; prints the address."""

    def register(server: grpc.aio.Server) -> None:
        register_push(server, _push)

    async with serving(ListenOptions(token=TOKEN), register, limits=DATA_LIMITS) as address:
        print(address, flush=True)  # noqa: T201 (the process that measures reads it)
        await asyncio.Event().wait()


def flood(address: str, case: Case, seconds: float) -> None:
    """Holds one connection with unfinished requests."""
    host, port = address.split(":")
    metadata = (("authorization", f"Bearer {TOKEN}"), (PROTOCOL_KEY, PROTOCOL))
    with socket.create_connection((host, int(port))) as connection:
        peer = Http2Flood(connection)
        peer.listen(lambda: peer.is_settled)
        for _ in range(case.calls):
            peer.request(PUSH, metadata, message_bytes=case.message_mib * 2**20)
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and not peer.is_closed:
            if case.is_slow:
                peer.drip()
                began_at = time.monotonic()
                peer.listen(partial(_is_over, peer, began_at + 1.0))
            else:
                peer.send(for_s=0.5, at_most_bytes=2**50)


def _is_over(peer: Http2Flood, until: float) -> bool:
    return peer.is_closed or time.monotonic() > until


async def pushes_per_s(address: str, seconds: float) -> tuple[float, float]:
    """Returns the rate of an honest peer and its longest push. Pushes a second, seconds."""
    pushes, longest_s = 0, 0.0
    async with dial(address, token=TOKEN) as link:
        push: Any = link.channel.unary_unary(PUSH)
        ends_at = time.monotonic() + seconds
        while (began_at := time.monotonic()) < ends_at:
            try:
                await link.call(push, bytes(HONEST_BYTES), timeout_s=20.0)
                pushes += 1
            except AstraFlowError as problem:
                print(f"refused: {problem}")  # noqa: T201 (a command)
            longest_s = max(longest_s, time.monotonic() - began_at)
    return pushes / seconds, longest_s


def measure(case: Case, seconds: float) -> str:
    """Returns a row of the table."""
    with subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--serve"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address, memory = process.stdout.readline().strip(), psutil.Process(process.pid).memory_info
        try:
            alone, _ = asyncio.run(pushes_per_s(address, ALONE_S))
            before, peak = memory().rss, [0]
            floods = [
                threading.Thread(target=flood, args=(address, case, seconds + 2)) for _ in range(case.connections)
            ]
            for thread in floods:
                thread.start()

            def watch() -> None:
                while any(thread.is_alive() for thread in floods):
                    peak[0] = max(peak[0], memory().rss)
                    time.sleep(0.05)

            watching = threading.Thread(target=watch)
            watching.start()
            time.sleep(1.0)
            beside, longest_s = asyncio.run(pushes_per_s(address, seconds))
            watching.join()
            kind = "slow" if case.is_slow else f"{case.message_mib} MiB"
            return (
                f"| {case.connections} | {case.calls} | {kind} | {(peak[0] - before) / 2**20:.0f} MiB | {alone:.0f} | "
                f"{beside:.0f} | {longest_s:.2f} s |"
            )
        finally:
            process.kill()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return
    for line in (
        "| connections | calls of each | request | more memory | pushes/s alone | beside | longest |",
        "|---" * 7 + "|",
    ):
        print(line)  # noqa: T201 (a command)
    for case in CASES:
        print(measure(case, arguments.seconds), flush=True)  # noqa: T201 (a command)


if __name__ == "__main__":
    main()
