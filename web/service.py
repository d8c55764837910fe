"""The composition root: builds every part, runs them together, and stops them together."""

import asyncio
import socket
from collections.abc import Callable

from astraflow.client.connect import connect_control
from astraflow.contract.reports import Report
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.http import listening, serving_http, url_of
from astraflow.runtime.logs import get_logger
from web.app import create_app
from web.auth import Accounts
from web.collector import Collector
from web.db import open_database
from web.frames import FrameMaker
from web.hub import Hub
from web.parts import Parts
from web.points import Point
from web.present.overview import latest_events
from web.recorder import Recorder
from web.rendering import Pages
from web.settings import Settings
from web.state import FeedState, RunState

log = get_logger()

BEAT_S = 1.0
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
        database = await asyncio.to_thread(open_database, settings.directory)
        try:
            async with connect_control(settings.dataflow, settings.token, authority=settings.authority) as control:
                pages = Pages(dataflow=settings.dataflow)
                state = RunState(clock)
                frames = FrameMaker(state, render_regions=_regions(pages), build=pages.build)
                parts = Parts(
                    settings=settings,
                    clock=clock,
                    database=database,
                    accounts=Accounts(database, clock=clock),
                    control=control,
                    state=state,
                    frames=frames,
                    hub=Hub(frames.snapshot),
                    recorder=Recorder(database, dataflow=settings.dataflow, recipe=settings.recipe, clock=clock),
                    pages=pages,
                )
                await _run(parts, listener, stop, on_ready)
        finally:
            database.close()


async def _run(parts: Parts, listener: socket.socket, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(_collector(parts).run()),
            tasks.create_task(parts.recorder.run()),
            tasks.create_task(_beat(parts, parts.clock)),
        ]
        async with serving_http(
            create_app(parts),
            listener,
            drain_s=DRAIN_S,
            ws_max_size=1024,  # browsers have nothing to say
            ws="websockets-sansio",
            ws_per_message_deflate=False,
        ):
            on_ready(f"{_address(parts.settings, listener)}/login?token={await parts.accounts.login_token()}")
            await asyncio.to_thread(parts.pages.warm)
            await stop.wait()
            log.info("web_stopping")
            parts.hub.close()
        for task in beside:
            task.cancel()


def _collector(parts: Parts) -> Collector:
    def on_points(report: Report, points: list[Point]) -> None:
        parts.hub.publish(report.sequence, parts.frames.frame(report, points))
        parts.recorder.add(report, points)

    def on_feed() -> None:
        parts.hub.tell(parts.frames.beat())

    return Collector(parts.control, parts.state, clock=parts.clock, on_points=on_points, on_feed=on_feed)


async def _beat(parts: Parts, clock: Clock) -> None:
    """While no report comes, tell pages every second that this process is there and how old the data is."""

    async def tell() -> None:
        age_s = parts.state.age_s
        if parts.state.feed.state is not FeedState.LIVE or age_s is None or age_s > BEAT_S * 1.5:
            parts.hub.tell(parts.frames.beat())

    await periodic(tell, every_s=BEAT_S, clock=clock)


def _regions(pages: Pages) -> Callable[[Report], dict[str, str]]:
    return lambda report: {
        "events": pages.fragment("overview/_events.html", events=latest_events(report)),
        "troubles": pages.fragment("_troubles.html", troubles=report.troubles),
    }


def _address(settings: Settings, listener: socket.socket) -> str:
    return settings.behind_proxy.rstrip("/") if settings.behind_proxy else url_of(listener, settings.host)
