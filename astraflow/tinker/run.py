"""Process of the server: loads the base models and serves until a signal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.contract.errors import Conflict
from astraflow.runtime.config.toml import read_toml
from astraflow.runtime.http.guard import BrowserGuard
from astraflow.runtime.http.hosts import is_loopback
from astraflow.runtime.http.json_service import run_json_service
from astraflow.runtime.http.server import listening, serving_http, url_of
from astraflow.runtime.locks import exclusive_lock
from astraflow.tinker.base_models import SharedBase
from astraflow.tinker.config import TinkerOptions
from astraflow.tinker.routes import application
from astraflow.tinker.service import TinkerServer


@asynccontextmanager
async def serving_tinker(options: TinkerOptions, folder: Path, *, host: str, port: int) -> AsyncIterator[str]:
    """Serves for the block; yields the URL. Raises: InvalidInput."""
    bases = {name: await asyncio.to_thread(SharedBase, name, base) for name, base in options.models.items()}
    server = TinkerServer(options, folder, bases)
    server.start()
    try:
        app = application(server, max_request_bytes=options.max_request_bytes)
        with listening(host, port) as listener:
            guarded = BrowserGuard(app, checks_host=is_loopback(host), needs_json=False)
            async with serving_http(guarded, listener):
                yield url_of(listener, host)
    finally:
        await server.close()


def run_tinker(config: Path, directory: Path, *, host: str, port: int) -> int:
    """Runs the server until a signal; returns the exit code. Raises: InvalidInput."""
    options = TinkerOptions.parse(read_toml(config), where="tinker")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = Conflict(
        f"cannot serve from {str(directory)!r}: another server uses it; stop it, or give another directory",
        code="tinker.directory_in_use",
    )
    with exclusive_lock(directory / "lock", refusal=in_use):
        return run_json_service(lambda: serving_tinker(options, directory, host=host, port=port))
