"""The two ends of a measured fetch, each a process of its own, over mutual TLS as everywhere beyond loopback.

    python -m benchmarks.wide_area.endpoints store DIRECTORY HOST PORT MEGABYTES...     with one version of each
    python -m benchmarks.wide_area.endpoints node DIRECTORY HOST:PORT CONNECTIONS ROUNDS MEGABYTES...
    python -m benchmarks.wide_area.endpoints stream DIRECTORY HOST:PORT 1 ROUNDS MEGABYTES...  one gRPC stream

`node` and `stream` print a line of JSON for each round: its size, and seconds by phase.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path

import grpc
import numpy as np

from astraflow.access.authority import Authority
from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Dtype
from astraflow.weights.config import PullConfig, WeightsConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.service import running
from astraflow.weights.tensors import SnapshotTensors
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import connect_sources
from astraflow.wire.channel import PROTOCOL, PROTOCOL_KEY, ClientTls, authority_client_tls, dial
from astraflow.wire.codecs.weights import encode_transfer
from astraflow.wire.pb import weight_plane_pb2 as pb
from astraflow.wire.pb.weight_plane_pb2_grpc import WeightPlaneStub
from astraflow.wire.server import ListenOptions, authority_tls

TOKEN = "benchmark"
TENSOR_BYTES = 2**24


async def store(directory: Path, host: str, port: int, sizes_mb: Sequence[int]) -> None:
    """Serves until killed."""
    authority = Authority.create(directory / "authority", run="benchmark")
    listen = ListenOptions(host=host, port=port, token=TOKEN, tls=authority_tls(authority, host), authority=authority)
    async with running(WeightsConfig(), listen=listen, directory=directory / "weights") as address:
        async with dial(address, token=TOKEN, tls=authority_client_tls(authority)) as link:
            for size_mb in sizes_mb:
                async with Publisher(WeightPlaneClient(link), policy_of(size_mb)) as publisher:
                    await publisher.publish(Version(0), _tensors(size_mb))
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def node(address: str, connections: int, rounds: int, sizes_mb: Sequence[int], *, tls: ClientTls) -> None:
    """Fetches and verifies every version in full this often, over the same connections."""
    config = PullConfig(connections=connections, use_shared_memory=False)
    async with connect_sources(address, config, dial=partial(dial, token=TOKEN, tls=tls)) as origins:
        for size_mb in sizes_mb:
            for _ in range(rounds):
                began = time.perf_counter()
                stats = (await Puller(origins, policy_of(size_mb), config=config).pull_exact(Version(0))).stats
                all_s = time.perf_counter() - began
                _tell(
                    size_bytes=stats.version_bytes,
                    all_s=all_s,
                    fetch_s=stats.fetch_s,
                    verify_s=stats.verify_s,
                    resumes=stats.resumes,
                )


async def stream(address: str, rounds: int, sizes_mb: Sequence[int], *, tls: ClientTls) -> None:
    """Control: one stream of the same RPC over a channel with gRPC's defaults, except for the message size."""
    metadata = (("authorization", f"Bearer {TOKEN}"), (PROTOCOL_KEY, PROTOCOL))
    options = (("grpc.max_receive_message_length", 64 * 2**20),)
    shown = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    async with (
        dial(address, token=TOKEN, tls=tls) as link,
        grpc.aio.secure_channel(address, shown, options=options) as channel,
    ):
        stub = WeightPlaneStub(channel)
        for size_mb in sizes_mb:
            plan = await WeightPlaneClient(link).plan(policy_of(size_mb), have=None)
            request = pb.FetchRequest(transfer=encode_transfer(plan.transfers[0]))
            for _ in range(rounds):
                began = time.perf_counter()
                async for _ in stub.Fetch(request, metadata=metadata):
                    pass
                fetch_s = time.perf_counter() - began
                _tell(size_bytes=plan.size_bytes, all_s=fetch_s, fetch_s=fetch_s)


def policy_of(size_mb: int) -> PolicyId:
    """Returns the policy whose only version has this size."""
    return PolicyId(f"model-{size_mb}")


def _tell(**round_: float) -> None:
    sys.stdout.write(json.dumps(round_) + "\n")
    sys.stdout.flush()


def _tensors(size_mb: int) -> SnapshotTensors:
    rng = np.random.default_rng(size_mb)
    elements = TENSOR_BYTES // 2
    return {
        f"layer.{number}": (
            Dtype.BFLOAT16,
            (elements,),
            np.frombuffer(rng.bytes(TENSOR_BYTES), dtype="<u2"),
        )
        for number in range(ceil(size_mb * 10**6 / TENSOR_BYTES))
    }


def main(arguments: Sequence[str]) -> None:
    """Runs one end."""
    role, *rest = arguments
    if role == "store":
        asyncio.run(store(Path(rest[0]), rest[1], int(rest[2]), [int(size) for size in rest[3:]]))
    tls = authority_client_tls(Authority.load(Path(rest[0]) / "authority"))
    address, connections, rounds, *sizes_mb = rest[1], *(int(value) for value in rest[2:])
    if role == "node":
        asyncio.run(node(address, connections, rounds, sizes_mb, tls=tls))
    else:
        asyncio.run(stream(address, rounds, sizes_mb, tls=tls))


if __name__ == "__main__":
    main(sys.argv[1:])
