"""HTTP server inside a process that handles signals and shutdown itself."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from astraflow.contract.errors import InvalidInput


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yields a bound socket; port 0 selects a free port. Raises: InvalidInput with the remedy."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit TCP_NODELAY. Without it, the second packet of an answer waits 40 ms for the
        # acknowledgement of the first; asyncio sets it only on sockets that were created with a protocol number.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, port))
            listener.listen(256)
        except (OSError, OverflowError) as problem:
            number = problem.errno if isinstance(problem, OSError) else None
            cause = {
                errno.EADDRINUSE: "the port is in use; stop the process that uses it or choose another one",
                errno.EADDRNOTAVAIL: "this machine does not have that address; use an address of this machine",
                errno.EACCES: "ports below 1024 need privileges; choose another one",
            }.get(number or 0, str(getattr(problem, "strerror", None) or problem))
            raise InvalidInput(f"cannot listen on {host}:{port}: {cause}", code="listen.address_unavailable") from None
        yield listener


@asynccontextmanager
async def serving_http(app: Any, listener: socket.socket, *, drain_s: int = 1, **options: Any) -> AsyncIterator[None]:
    """Serves an ASGI application during the block; afterwards, running requests get `drain_s` seconds to end.

    options: further options of `uvicorn.Config`; without `ws`, no WebSockets are served.
    Raises: the error of a server that cannot start.
    """
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=drain_s,
            **{"ws": "none", "lifespan": "off"} | options,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    serving.add_done_callback(lambda _: server.is_up.set())  # a server that cannot start must not be waited for
    try:
        await server.is_up.wait()
        if serving.done():
            serving.result()
        yield
    finally:
        server.should_exit = True
        await serving


def url_of(listener: socket.socket, host: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """Leaves signals to `run_process`, and reports when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
