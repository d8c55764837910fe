"""Serving HTTP inside a process that has its own signals and its own idea of when to stop."""

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
    """A bound socket; port 0 takes a free one. Raises: InvalidInput with what would help."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. Without, an answer's second packet waits 40 ms for the first one's receipt;
        # asyncio sets it by itself only on sockets that were made with a protocol number.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((host, port))
            listener.listen(256)
        except (OSError, OverflowError) as problem:
            number = problem.errno if isinstance(problem, OSError) else None
            cause = {
                errno.EADDRINUSE: "the port is in use; stop what holds it or choose another one",
                errno.EADDRNOTAVAIL: "this machine does not have that address",
                errno.EACCES: "ports below 1024 need special rights; choose another one",
            }.get(number or 0, str(getattr(problem, "strerror", None) or problem))
            raise InvalidInput(f"cannot listen on {host}:{port}: {cause}") from None
        yield listener


@asynccontextmanager
async def serving_http(app: Any, listener: socket.socket, *, drain_s: int = 1, **options: Any) -> AsyncIterator[None]:
    """Serve an ASGI application for the block; requests in flight then get `drain_s` seconds to end.

    options: of `uvicorn.Config`, besides those that no service here wants otherwise.
    """
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=drain_s,
            **options,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.is_up.wait()
        yield
    finally:
        server.should_exit = True
        await serving


def url_of(listener: socket.socket, host: str) -> str:
    """Where it listens, as a browser takes it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """Leaves signals to `run_process`, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
