"""The composition root: builds every part, runs them together, and stops them together."""

import asyncio
import socket
from collections.abc import Callable

from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.http import listening, serving_http, url_of
from astraflow.runtime.logs import get_logger
from astraflow.runtime.memory import give_back
from astraflow.runtime.runs import RunFolder, active_runs
from astraflow.runtime.toml import read_toml
from web.accounts.accounts import open_accounts
from web.accounts.provider import PROVIDER_PATH, Provider, ProviderConfig
from web.acts.shelf import Shelf
from web.app import create_app
from web.audit.entries import Trail
from web.audit.retention import Retention
from web.db import open_database
from web.feed.following import FollowedRuns, following
from web.launching.catalogue import Catalogue
from web.launching.launcher import Launcher
from web.parts import House
from web.reading.views import SavedViews
from web.settings import Settings

log = get_logger()

DRAIN_S = 1
"""Requests in flight get this long when the process stops; sockets are told at once."""

GIVE_BACK_EVERY_S = 30.0
"""History that was fetched, templates that were read and tables of many nodes leave free memory between what stays."""


async def serve(
    settings: Settings, *, stop: asyncio.Event, on_ready: Callable[[str], None], clock: Clock | None = None
) -> None:
    """Run the web process until `stop` is set. on_ready: called with the address to log in at, once it listens.

    Raises: InvalidInput for an address or directory that cannot be used.
    """
    settings.check()
    clock = clock or SystemClock()
    with listening(settings.host, settings.port) as listener:
        provider = _provider(settings, listener, clock)
        database = await asyncio.to_thread(open_database, settings.directory, settings.database)
        try:
            trail = Trail(database, clock=clock)
            launcher = Launcher(database, clock=clock)
            async with following(settings, database=database, clock=clock) as first:
                find = _nothing if settings.is_read_only else active_runs if settings.follows_all else launcher.folders
                house = House(
                    settings=settings,
                    clock=clock,
                    database=database,
                    trail=trail,
                    accounts=open_accounts(database, clock=clock, trail=trail, provider=provider),
                    retention=Retention(database, clock=clock, trail=trail),
                    pages=first.pages,
                    catalogue=Catalogue(
                        clock=clock, folders=settings.recipes, join_host=settings.join_host, data=settings.data
                    ),
                    launcher=launcher,
                    shelf=Shelf(),
                    views=SavedViews(database, clock=clock, trail=trail),
                    followed=FollowedRuns(first, database=database, clock=clock, find=find),
                )
                await _run(house, listener, stop, on_ready)
        finally:
            database.close()


async def _run(house: House, listener: socket.socket, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        giving = periodic(_give_back, every_s=GIVE_BACK_EVERY_S, clock=house.clock)
        beside = [tasks.create_task(work) for work in (house.followed.run(), house.retention.run(), giving)]
        async with serving_http(
            create_app(house),
            listener,
            drain_s=DRAIN_S,
            ws_max_size=1024,  # browsers have nothing to say
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ssl_certfile=house.settings.tls_certificate,
            ssl_keyfile=house.settings.tls_key,
        ):
            link = await house.accounts.sessions.first_link()
            on_ready(f"{_address(house.settings, listener)}/login?token={link}")
            await asyncio.to_thread(house.pages.warm)
            await stop.wait()
            log.info("web_stopping")
            house.followed.close()
        for task in beside:
            task.cancel()


async def _give_back() -> None:
    await asyncio.to_thread(give_back)


def _nothing() -> list[RunFolder]:
    """What a page follows that only shows what was recorded."""
    return []


def _address(settings: Settings, listener: socket.socket) -> str:
    if settings.behind_proxy:
        return settings.behind_proxy.rstrip("/")
    address = url_of(listener, next(iter(settings.names), settings.host))
    return address.replace("http://", "https://", 1) if settings.has_tls else address


def _provider(settings: Settings, listener: socket.socket, clock: Clock) -> Provider | None:
    """The OpenID provider that the settings name. Raises: InvalidInput for a file that cannot be used."""
    if settings.provider is None:
        return None
    config = ProviderConfig.parse(read_toml(settings.provider), where=str(settings.provider))
    back = f"{_address(settings, listener)}{PROVIDER_PATH}"
    return Provider(config, secret=settings.provider_secret, redirect_uri=back, clock=clock)
