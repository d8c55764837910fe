"""The composition root: builds every part, runs them together, and stops them together."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from astraflow.client.connect import connect_control
from astraflow.client.fleet_plane import FleetPlaneClient, connect_fleet
from astraflow.contract.reports import Report
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.http import listening, serving_http, url_of
from astraflow.runtime.logs import get_logger
from astraflow.runtime.toml import read_toml
from web.accounts.accounts import open_accounts
from web.accounts.provider import PROVIDER_PATH, Provider, ProviderConfig
from web.app import create_app
from web.audit import Trail
from web.collector import Collector
from web.db import open_database
from web.fleet_poller import FleetPoller
from web.fleet_state import FleetState
from web.frames import FrameMaker
from web.hub import Hub
from web.parts import Parts
from web.points import Point
from web.present.cells import Cell
from web.present.overview import latest_events
from web.present.pool_cards import SHOWN_POOLS, pool_cards
from web.present.top import top_bar, top_cells
from web.recorder import Recorder
from web.rendering import Pages
from web.retention import Retention
from web.settings import Settings
from web.state import FeedState, RunState
from web.views import SavedViews

log = get_logger()

BEAT_S = 1.0
POOLS_EVERY = 5
"""Reports between two renderings of the cards of pools."""
DRAIN_S = 1
"""Requests in flight get this long when the process stops; sockets are told at once."""


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
            async with (
                connect_control(settings.dataflow, settings.token, authority=settings.authority) as control,
                connected_fleet(settings) as fleet,
            ):
                state = RunState(clock)
                fleet_state = FleetState(clock, is_absent=fleet is None)
                pages = Pages(dataflow=settings.dataflow, top=lambda: top_bar(state.report, fleet_state))
                frames = FrameMaker(
                    state,
                    render_regions=_regions(pages, fleet_state),
                    build=pages.build,
                    more_cells=lambda: top_cells(top_bar(state.report, fleet_state)),
                )
                trail = Trail(database, clock=clock)
                parts = Parts(
                    settings=settings,
                    clock=clock,
                    database=database,
                    trail=trail,
                    accounts=open_accounts(database, clock=clock, trail=trail, provider=provider),
                    retention=Retention(database, clock=clock, trail=trail),
                    control=control,
                    state=state,
                    fleet=fleet,
                    fleet_state=fleet_state,
                    fleet_poller=FleetPoller(fleet, fleet_state, clock=clock) if fleet is not None else None,
                    frames=frames,
                    hub=Hub(frames.snapshot),
                    recorder=Recorder(database, dataflow=settings.dataflow, recipe=settings.recipe, clock=clock),
                    pages=pages,
                    views=SavedViews(database, clock=clock),
                )
                await _run(parts, listener, stop, on_ready)
        finally:
            database.close()


async def _run(parts: Parts, listener: socket.socket, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(_collector(parts).run()),
            tasks.create_task(parts.recorder.run()),
            tasks.create_task(parts.retention.run()),
            tasks.create_task(_beat(parts, parts.clock)),
        ]
        if parts.fleet_poller is not None:
            beside.append(tasks.create_task(parts.fleet_poller.run()))
        async with serving_http(
            create_app(parts),
            listener,
            drain_s=DRAIN_S,
            ws_max_size=1024,  # browsers have nothing to say
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ssl_certfile=parts.settings.tls_certificate,
            ssl_keyfile=parts.settings.tls_key,
        ):
            link = await parts.accounts.sessions.first_link()
            on_ready(f"{_address(parts.settings, listener)}/login?token={link}")
            await asyncio.to_thread(parts.pages.warm)
            await stop.wait()
            log.info("web_stopping")
            parts.hub.close()
        for task in beside:
            task.cancel()


@asynccontextmanager
async def connected_fleet(settings: Settings) -> AsyncIterator[FleetPlaneClient | None]:
    """The client of the fleet service that the settings name, or None."""
    if not settings.fleet:
        yield None
        return
    token = settings.fleet_token or settings.token
    async with connect_fleet(settings.fleet, token, authority=settings.authority) as fleet:
        yield fleet


def _collector(parts: Parts) -> Collector:
    def on_points(report: Report, points: list[Point]) -> None:
        parts.hub.publish(report.sequence, parts.frames.frame(report, points))

    def on_feed() -> None:
        parts.hub.tell(parts.frames.beat())

    return Collector(
        parts.control,
        parts.state,
        keeper=parts.recorder,
        clock=parts.clock,
        on_points=on_points,
        on_feed=on_feed,
    )


async def _beat(parts: Parts, clock: Clock) -> None:
    """While no report comes, tell pages every second that this process is there and how old the data is."""

    async def tell() -> None:
        age_s = parts.state.age_s
        if parts.state.feed.state is not FeedState.LIVE or age_s is None or age_s > BEAT_S * 1.5:
            parts.hub.tell(parts.frames.beat())

    await periodic(tell, every_s=BEAT_S, clock=clock)


def _regions(pages: Pages, fleet_state: FleetState) -> Callable[[Report, Mapping[str, Cell]], dict[str, str]]:
    """Parts of pages that are replaced whole; of pools, whose texts are cells, now and then only."""
    pools = ""

    def render(report: Report, cells: Mapping[str, Cell]) -> dict[str, str]:
        nonlocal pools
        if not pools or report.sequence % POOLS_EVERY == 0:
            cards = pool_cards(report)[:SHOWN_POOLS]
            pools = pages.fragment("overview/_pools.html", pools=cards, cells=cells)
        return {
            "pools": pools,
            "kill": pages.fragment("_kill.html", top=top_bar(report, fleet_state)),
            "events": pages.fragment("overview/_events.html", events=latest_events(report)),
            "troubles": pages.fragment("_troubles.html", troubles=report.troubles),
        }

    return render


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
