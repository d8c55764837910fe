"""Throughput and CPU of one stream of a full snapshot over loopback, by the way replies are assembled."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from astraflow.runtime.logs import configure
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.weights.codec.chunks import CHUNK_BYTES, chunk_at
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.servicer import WeightsServicer
from astraflow.weights.store.store import open_store
from astraflow.wire import incoming_calls
from astraflow.wire import server as wire_server
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY, dial
from astraflow.wire.codecs.weights import decode_plan, decode_transfer, encode_chunk, encode_transfer
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub, add_WeightPlaneServicer_to_server
from benchmarks.weight_store.training_versions import versions
from tests.weights.stored_versions import put
from tests.weights.versions import full_file

TOKEN = "token-of-the-benchmark"
METADATA = (("authorization", f"Bearer {TOKEN}"), (PROTOCOL_KEY, PROTOCOL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Figures of one way."""

    replies: str
    streams: int
    gb_per_s: float
    server_s_per_gb: float
    """CPU seconds of the store."""


class MessageServicer(WeightsServicer):
    """Control: replies as protobuf makes them."""

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> AsyncIterator[pb.Chunk]:  # type: ignore[override]
        """Fetches a whole file."""
        transfer = decode_transfer(request.transfer)
        source = await asyncio.to_thread(self._store.open, transfer)
        end = request.offset + request.size_bytes

        def message(offset: int) -> pb.Chunk:
            return encode_chunk(chunk_at(offset, source.read(offset, min(CHUNK_BYTES, end - offset))))

        for offset in range(request.offset, end, CHUNK_BYTES):
            yield await asyncio.to_thread(message, offset)
        source.close()


async def serve(replies: str, elements: int) -> None:
    """Serves one version in memory, until standard input ends."""
    configure(level="ERROR")
    prepare_for_large_messages()
    kind = WeightsServicer if replies == "raw" else MessageServicer
    if replies != "raw":
        vars(incoming_calls)["RAW_REPLIES"] = frozenset()
    with tempfile.TemporaryDirectory() as directory, open_store(Path(directory), WeightsConfig()) as store:
        (now,) = versions(1, elements=elements, learning_rate=0.0)
        put(store, now[0], *full_file(*now), chunk_bytes=2**20)
        listen = wire_server.ListenOptions(token=TOKEN)
        add = lambda server: add_WeightPlaneServicer_to_server(kind(store), server)  # noqa: E731
        async with wire_server.serving(listen, add) as address:
            print(address, flush=True)  # noqa: T201
            await asyncio.to_thread(sys.stdin.read)


async def measure(replies: str, *, elements: int, streams: int, seconds: float) -> Serving:
    """Fetches the snapshot repeatedly, each time in this many concurrent ranges."""
    command = [sys.executable, "-m", "benchmarks.weight_store.serving", replies, str(elements)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin and process.stdout
    address = process.stdout.readline().decode().strip()
    try:
        async with dial(address, token=TOKEN) as link:
            stub = WeightPlaneStub(link.channel)
            (transfer,) = decode_plan(await stub.Plan(pb.PlanRequest(policy="policy"), metadata=METADATA)).transfers
            share = -(-transfer.size_bytes // streams)

            async def fetched(offset: int) -> None:
                size_bytes = min(share, transfer.size_bytes - offset)
                request = pb.FetchRequest(transfer=encode_transfer(transfer), offset=offset, size_bytes=size_bytes)
                async for _ in stub.Fetch(request, metadata=METADATA):
                    pass

            await fetched(0)
            server = psutil.Process(process.pid)
            before, began, size_bytes = sum(server.cpu_times()[:2]), time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                await asyncio.gather(*(fetched(offset) for offset in range(0, transfer.size_bytes, share)))
                size_bytes += transfer.size_bytes
            took_s, cpu_s = time.perf_counter() - began, sum(server.cpu_times()[:2]) - before
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()
    gigabytes = size_bytes / 1e9
    return Serving(replies=replies, streams=streams, gb_per_s=gigabytes / took_s, server_s_per_gb=cpu_s / gigabytes)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
