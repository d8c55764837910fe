"""Serves an environment over HTTP, for the adapter `http` of nodes elsewhere.

    python -m astraflow.environments.serve '{"kind": "textcraft"}' --port 9100

Listens on loopback by default. On another address a token is required, in a file or in ASTRAFLOW_ENVIRONMENT_TOKEN.
An environment whose code blocks or may crash is served through its worker processes:
`{"kind": "process", "of": {"kind": ...}}`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from astraflow.contract.errors import InvalidInput
from astraflow.environments import environments
from astraflow.environments.adapters.host import EnvironmentHost
from astraflow.environments.adapters.http import TOKEN_VARIABLE
from astraflow.environments.adapters.messages import ActRequest, BeginRequest, CloseRequest
from astraflow.environments.base import EnvironmentFactory
from astraflow.runtime.http.json_service import (
    Handler,
    ServiceAddress,
    read_service_token,
    run_json_service,
    serving_json,
)
from astraflow.runtime.plugins import start_managed

IDLE_S = 900.0
_CLEAN_S = 10.0
"""Seconds between searches for unused episodes."""


@asynccontextmanager
async def serving_environment(
    spec: Mapping[str, Any], address: ServiceAddress, *, max_episodes: int = 256, idle_s: float = IDLE_S
) -> AsyncIterator[str]:
    """Serves an environment for the block; yields the URL.

    max_episodes: open episodes. idle_s: seconds after which an unused episode is closed. Raises: InvalidInput or
    Unavailable when the environment does not work here, or the port is in use.
    """
    factory = environments.build(spec)
    host = EnvironmentHost(factory, max_episodes=max_episodes, idle_s=idle_s)
    async with AsyncExitStack() as resources:
        await start_managed([factory], resources)
        await factory.check()
        resources.push_async_callback(host.close_all)
        cleaning = asyncio.create_task(_close_unused(host))
        resources.callback(cleaning.cancel)
        yield await resources.enter_async_context(serving_json(address, _handlers(factory, host)))


def _handlers(factory: EnvironmentFactory, host: EnvironmentHost) -> dict[str, Handler]:
    async def begin(request: dict[str, Any]) -> Mapping[str, Any]:
        return await host.begin(BeginRequest.parse(request, where="begin"))

    async def act(request: dict[str, Any]) -> Mapping[str, Any]:
        return await host.act(ActRequest.parse(request, where="act"))

    async def close(request: dict[str, Any]) -> Mapping[str, Any]:
        return await host.close(CloseRequest.parse(request, where="close"))

    async def check(_: dict[str, Any]) -> Mapping[str, Any]:
        await factory.check()
        return {"episodes": host.episodes}

    return {"/begin": begin, "/act": act, "/close": close, "/check": check}


async def _close_unused(host: EnvironmentHost) -> None:
    while True:
        await asyncio.sleep(_CLEAN_S)
        await host.close_idle()


def main(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help='Environment as JSON, such as {"kind": "textcraft"}.')],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")] = 9100,
    token_file: Annotated[Path | None, typer.Option(help=f"File with the token; default: {TOKEN_VARIABLE}.")] = None,
    max_episodes: Annotated[int, typer.Option(min=1, help="Episodes that may be open at once.")] = 256,
    idle_s: Annotated[float, typer.Option(min=1, help="Seconds after which an unused episode is closed.")] = IDLE_S,
) -> None:
    """Serve an environment over HTTP."""

    def serving() -> AbstractAsyncContextManager[str]:
        token = read_service_token(token_file, variable=TOKEN_VARIABLE)
        address = ServiceAddress(host=host, port=port, token=token)
        return serving_environment(_parsed(spec), address, max_episodes=max_episodes, idle_s=idle_s)

    raise typer.Exit(run_json_service(serving))


def _parsed(spec: str) -> dict[str, Any]:
    try:
        parsed = json.loads(spec)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidInput(
            f"cannot read the environment {spec!r}: it is not a JSON object; give one with a `kind`",
            code="environment.invalid_spec",
        )
    return parsed


if __name__ == "__main__":
    typer.run(main)
