"""Dataflow service with mutual TLS in a separate process, whose memory a test can measure.

    python -m tests.dataflow.enrolling_process DIRECTORY ENROLL_PORT

Prints the address of the other planes when it is ready, and serves until its standard input ends.
"""

import asyncio
import sys
from pathlib import Path

from astraflow.access.authority import Authority
from astraflow.dataflow.service import serve
from astraflow.wire.server import ListenOptions, authority_tls
from tests.dataflow.running import TOKEN, config


async def main(directory: Path, enroll_port: int) -> None:
    """Serves until the standard input ends."""
    authority = Authority.create(directory / "authority", run="test")
    stop = asyncio.Event()
    listen = ListenOptions(
        token=TOKEN,
        tls=authority_tls(authority, "127.0.0.1"),
        authority=authority,
        enroll_port=enroll_port,
        drain_s=0.1,
    )
    serving = asyncio.create_task(
        serve(
            config(),
            listen=listen,
            directory=directory / "dataflow",
            weights_address="127.0.0.1:1",
            stop=stop,
            on_ready=lambda address: print(address, flush=True),  # noqa: T201 (the parent reads it)
        )
    )
    await asyncio.to_thread(sys.stdin.read)
    stop.set()
    await serving


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
