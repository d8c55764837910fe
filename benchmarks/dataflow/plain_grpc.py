"""Lower bound: a plain gRPC stream of bytes from one process to another.

    python -m benchmarks.dataflow.plain_grpc serve
    python -m benchmarks.dataflow.plain_grpc send ADDRESS BYTES

Same library, same channel options, messages of a MiB, client to server, as from nodes to dataflow.
"""

import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from astraflow.wire.channel import OPTIONS

METHOD = "/bare.Bare/Send"
MESSAGE_BYTES = 2**20


async def _count(requests: AsyncIterator[bytes], _context: Any) -> bytes:
    total = 0
    async for message in requests:
        total += len(message)
    return json.dumps({"bytes": total}).encode()


class _Handler(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        return grpc.stream_unary_rpc_method_handler(_count) if details.method == METHOD else None


async def serve() -> None:
    """Serves until standard input ends."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


async def send(address: str, total: int) -> None:
    """Sends this many bytes."""
    message = bytes(MESSAGE_BYTES)

    async def messages() -> AsyncIterator[bytes]:
        for _ in range(total // MESSAGE_BYTES):
            yield message

    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await channel.channel_ready()
        began = time.time()
        call: Any = channel.stream_unary(METHOD)
        reply: bytes = await call(messages())
        sys.stdout.write(json.dumps({"began_at": began, "ended_at": time.time(), **json.loads(reply)}) + "\n")


if __name__ == "__main__":
    uvloop.run(serve() if sys.argv[1] == "serve" else send(sys.argv[2], int(sys.argv[3])))
