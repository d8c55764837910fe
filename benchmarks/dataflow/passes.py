"""Processor time of each pass over the bytes of a push: what ingest cannot do without.

    python -m benchmarks.dataflow.passes [--pushes 150] [--rounds 2]

Nanoseconds of processor time for a byte, the least of the rounds, with dataflow's options of gRPC and of the allocator:

- send, receive: a push of 4 MiB as one message over loopback, whose bytes are freed
- keep: what receiving takes more when the bytes stay in memory, as results do until they are trained
- join: a copy within the cache, as a node makes of the arrays of a push
- check: of the most likely tokens and their logprobs (bytes of these columns)
- hash, copy, write: of a record of the journal, with direct I/O

The sum, times the bytes of a sequence, bounds the sequences a second of a machine with so many cores.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvloop
import xxhash

from astraflow.contract.rollouts.token_columns import check_columns
from astraflow.dataflow.storage.segments import RecordLocation, SegmentFiles
from astraflow.runtime.service import prepare_for_large_messages
from astraflow.wire.channel import OPTIONS
from astraflow.wire.listener_limits import DATA_LIMITS
from benchmarks.dataflow.__main__ import Case
from benchmarks.dataflow.load import top_columns

METHOD = "/bare.Bare/Push"
PUSH_BYTES = DATA_LIMITS.message_bytes - 4096
SENDERS = 3


def cpu_s() -> float:
    """Returns the processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def serve(*, keeps: bool) -> None:
    """Answers each push with the processor time so far."""
    kept: list[bytes] = []

    async def push(_: Any, context: Any) -> bytes:
        kept[:] = [*kept, await context.read()] if keeps else []
        while await context.read() is not grpc.aio.EOF:
            pass
        return str(cpu_s()).encode()

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_unary_rpc_method_handler(push) if details.method == METHOD else None

    server = grpc.aio.server(options=DATA_LIMITS.options())
    server.add_generic_rpc_handlers((Handler(),))
    sys.stdout.write(f"{server.add_insecure_port('127.0.0.1:0')}\n")
    sys.stdout.flush()
    await server.start()
    await server.wait_for_termination()


async def send(port: int, pushes: int) -> tuple[float, float]:
    """Returns the processor seconds of this process and of the server for `pushes` pushes."""
    message = bytes(PUSH_BYTES)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        call: Any = channel.unary_unary(METHOD)
        before = [float(await call(message)) for _ in range(SENDERS)][-1]
        began = cpu_s()

        async def sender() -> float:
            return max([float(await call(message)) for _ in range(pushes // SENDERS)])

        ended = max(await asyncio.gather(*(sender() for _ in range(SENDERS))))
        return cpu_s() - began, ended - before


def transfer(pushes: int, *, keeps: bool) -> tuple[float, float]:
    """Returns ns of sending and of receiving a byte."""
    command = [sys.executable, "-m", "benchmarks.dataflow.passes", "--serve", "keep" if keeps else "free"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        sent_s, received_s = uvloop.run(send(int(server.stdout.readline()), pushes))
    finally:
        server.terminate()
        server.wait(30)
    size = pushes // SENDERS * SENDERS * PUSH_BYTES
    return 1e9 * sent_s / size, 1e9 * received_s / size


def local(pushes: int) -> Mapping[str, float]:
    """Returns ns for a byte of the passes within a process."""
    body = np.random.default_rng(0).integers(0, 255, PUSH_BYTES, np.uint8).tobytes()
    columns, sampled = top_columns(4096 * 18, 8), np.zeros(4096 * 18, np.int32)
    columns_bytes = sum(array.nbytes for array in columns.values())
    target = bytearray(PUSH_BYTES)

    def timed(work: Callable[[], object], size: int = PUSH_BYTES) -> float:
        work()
        began = time.thread_time()
        for _ in range(pushes):
            work()
        return 1e9 * (time.thread_time() - began) / pushes / size

    def copy() -> None:
        target[:] = body

    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as directory:
        files = SegmentFiles(Path(directory))
        location = RecordLocation(segment=1, offset=0, length=len(body))
        stored = timed(lambda: files.write([(location, body)]))
        files.close()
    return {
        "join": timed(copy),
        "check": timed(lambda: check_columns(columns, sampled=sampled), columns_bytes),
        "hash": timed(lambda: xxhash.xxh3_64_intdigest(body)),
        "hash, copy, write": stored,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--serve", choices=["keep", "free"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_for_large_messages()
    if options.serve:
        uvloop.run(serve(keeps=options.serve == "keep"))
        return
    rounds = []
    for _ in range(options.rounds):
        (sent, freed), (_, kept) = (transfer(options.pushes, keeps=keeps) for keeps in (False, True))
        rounds.append({"send": sent, "receive": freed, "keep": kept - freed, **local(options.pushes // 3)})
    least = {name: min(reading[name] for reading in rounds) for name in rounds[0]}
    cores = os.cpu_count() or 1
    sys.stdout.write(f"{cores} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    for name, ns in least.items():
        sys.stdout.write(f"{name:20} {ns:.3f} ns/byte\n")
    for top in (0, 8):
        size = Case(tokens=4096, nodes=2, is_durable=True, top_tokens=top).sequence_bytes
        columns = 6 * top * 4032
        moved = sum(least[name] for name in ("send", "receive"))
        every = moved + least["keep"] + least["join"] + least["hash, copy, write"]
        for text, ns in (
            ("sent and received", moved * size),
            ("and kept", (moved + least["keep"]) * size),
            ("and joined, checked, stored", every * size + least["check"] * columns),
        ):
            sys.stdout.write(f"{top} most likely tokens, {text}: at most {cores * 1e9 / ns:,.0f} sequences/s\n")


if __name__ == "__main__":
    main()
