"""The runs that this process follows: the one it was told of, and those of this machine that it finds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from astraflow.client.connect import PageAccess, connect_page
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.reports import Report
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.runs import RunFolder
from web.db import Database
from web.feed.collector import Collector
from web.feed.fleet_poller import FleetPoller
from web.feed.fleet_state import FleetState
from web.feed.frames import FrameMaker
from web.feed.hub import Hub
from web.feed.maintainer_watch import MaintainerWatch
from web.feed.nodes_now import NodesNow
from web.feed.state import FeedState, RunState
from web.history.points import Point
from web.history.recorder import Recorder
from web.present.cells import Cell
from web.present.overview import latest_events
from web.present.pool_cards import SHOWN_POOLS, pool_cards
from web.present.top import top_bar, top_cells
from web.rendering import Pages
from web.settings import Settings

log = get_logger()

BEAT_S = 1.0
POOLS_EVERY = 5
"""Reports between two renderings of the cards of pools."""

LOOK_EVERY_S = 2.0
"""How often folders of runs are looked at."""

NOWHERE = "127.0.0.1:1"
"""Dialled while no run is known: every call says that nobody is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """One run that is followed: its planes, what is known of it, and what its pages are told."""

    settings: Settings
    """This process's, with the addresses and the recipe of that run."""
    control: ControlPlaneClient
    state: RunState
    fleet: FleetPlaneClient | None
    """None for a run without a fleet service."""
    fleet_state: FleetState
    fleet_poller: FleetPoller | None
    maintainer: MaintainerWatch
    frames: FrameMaker
    hub: Hub
    recorder: Recorder
    nodes: NodesNow
    pages: Pages
    folder: RunFolder | None
    """Where the run keeps its things, when that is on this machine."""

    @property
    def name(self) -> str:
        """The run's name; empty before anything is known."""
        return _name(self.state, self.folder)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collector().run())
            tasks.create_task(self.recorder.run())
            tasks.create_task(self._beat())
            if self.fleet_poller is not None:
                tasks.create_task(self.fleet_poller.run())

    def _collector(self) -> Collector:
        def on_points(report: Report, points: list[Point]) -> None:
            self.hub.publish(report.sequence, self.frames.frame(report, points))

        def on_feed() -> None:
            self.hub.tell(self.frames.beat())

        return Collector(
            self.control,
            self.state,
            keeper=self.recorder,
            clock=self.state.clock,
            on_points=on_points,
            on_feed=on_feed,
        )

    async def _beat(self) -> None:
        """While no report comes, tell pages every second that this process is there and how old the data is."""

        async def tell() -> None:
            age_s = self.state.age_s
            if self.state.feed.state is not FeedState.LIVE or age_s is None or age_s > BEAT_S * 1.5:
                self.hub.tell(self.frames.beat())

        await periodic(tell, every_s=BEAT_S, clock=self.state.clock)


class FollowedRuns:
    """All of them.

    find: the folders of the runs to follow besides the first, asked every two seconds.
    """

    def __init__(
        self, first: Following, *, database: Database, clock: Clock, find: Callable[[], Iterable[RunFolder]]
    ) -> None:
        self._first = first
        self._database = database
        self._clock = clock
        self._find = find
        self._found: dict[str, Following] = {}

    @property
    def all(self) -> tuple[Following, ...]:
        """Everyone, the latest found first; the one of no run only when there is no other."""
        found = tuple(reversed(self._found.values()))
        return (self._first, *found) if self._first.settings.dataflow or not found else found

    def named(self, run: str) -> Following:
        """The one of that name; the first of all when there is none."""
        return next((one for one in self.all if run and one.name == run), self.all[0])

    def recording(self, run_id: int) -> Following | None:
        """The one whose reports go to that record; None when the run is not followed, or not heard from."""
        found = (one for one in self.all if one.recorder.run_id == run_id and not one.state.is_stale)
        return next(found, None)

    def close(self) -> None:
        """End every stream of frames."""
        for one in self.all:
            one.hub.close()

    async def run(self) -> None:
        """Follow the first, and whatever is found while it goes on, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._first.run())
            working: dict[str, asyncio.Task[None]] = {}
            while True:
                active = await self._looked(working)
                for place in working.keys() - active.keys():
                    working.pop(place).cancel()
                for place, folder in active.items():
                    if place not in working or working[place].done():
                        working[place] = tasks.create_task(self._follow(place, folder))
                await self._clock.sleep(LOOK_EVERY_S)

    async def _looked(self, working: Mapping[str, object]) -> dict[str, RunFolder]:
        """What goes on now; what did before, while nobody can say."""
        try:
            return await asyncio.to_thread(self._look)
        except (DBAPIError, OSError) as problem:
            log.warning("runs_not_found", problem=str(problem))
            return {place: RunFolder(Path(place)) for place in working}

    def _look(self) -> dict[str, RunFolder]:
        """Folders whose run goes on and says where it is."""
        found = {}
        for folder in self._find():
            try:
                facts = folder.facts
            except AstraFlowError:
                continue  # it is being made
            if facts.dataflow and facts.dataflow != self._first.settings.dataflow and folder.is_active:
                found[str(folder.path)] = folder
        return found

    async def _follow(self, place: str, folder: RunFolder) -> None:
        """Follow one run while it goes on. One whose folder cannot be read keeps nobody from the others."""
        try:
            await self._follow_in(place, folder)
        except (AstraFlowError, OSError) as problem:
            log.warning("run_not_followed", folder=place, problem=str(problem))

    async def _follow_in(self, place: str, folder: RunFolder) -> None:
        facts = folder.facts
        settings = self._first.settings.model_copy(
            update={
                "dataflow": facts.dataflow,
                "token": folder.token,
                "authority": folder.authority if facts.is_tls else None,
                "fleet": facts.fleet,
                "fleet_token": "",
                "ca_hash": "",
                "keep": None,
                "recipe": facts.recipe,
                "run_dir": folder.path,
            }
        )
        log.info("run_found", run=facts.run)
        async with following(settings, database=self._database, clock=self._clock, folder=folder) as one:
            self._found[place] = one
            try:
                await one.run()
            finally:
                log.info("run_lost", run=facts.run)
                one.hub.close()
                del self._found[place]


@asynccontextmanager
async def following(
    settings: Settings, *, database: Database, clock: Clock, folder: RunFolder | None = None
) -> AsyncIterator[Following]:
    """The parts that follow the run whose dataflow the settings name, connected but not at work yet."""
    async with connected_planes(settings) as (control, fleet):
        state, fleet_state = RunState(clock), FleetState(clock, is_absent=fleet is None)
        pages = Pages(
            dataflow=settings.dataflow,
            top=lambda: top_bar(state.report, fleet_state),
            run=lambda: _name(state, folder),
        )
        frames = FrameMaker(
            state,
            render_regions=_regions(pages, fleet_state, lambda: state.troubles),
            build=pages.build,
            more_cells=lambda: top_cells(top_bar(state.report, fleet_state)),
        )
        recorder = Recorder(
            database,
            dataflow=settings.dataflow,
            recipe=settings.recipe,
            folder=str(settings.run_dir.absolute()) if settings.run_dir else "",
            clock=clock,
        )
        yield Following(
            settings=settings,
            control=control,
            state=state,
            fleet=fleet,
            fleet_state=fleet_state,
            fleet_poller=FleetPoller(fleet, fleet_state, clock=clock) if fleet is not None else None,
            maintainer=MaintainerWatch(fleet, clock=clock),
            frames=frames,
            hub=Hub(frames.snapshot),
            recorder=recorder,
            nodes=NodesNow(state, recorder, ledger=fleet, clock=clock),
            pages=pages,
            folder=folder,
        )


def _name(state: RunState, folder: RunFolder | None) -> str:
    if state.report is not None:
        return state.report.run
    return folder.facts.run if folder is not None else ""


def connected_planes(
    settings: Settings,
) -> AbstractAsyncContextManager[tuple[ControlPlaneClient, FleetPlaneClient | None]]:
    """Clients of the planes that the settings name; None for the fleet service of a run without one."""
    access = PageAccess(
        token=settings.token or "none",
        fleet_token=settings.fleet_token,
        authority=settings.authority,
        ca_hash=settings.ca_hash,
        keep=settings.keep,
    )
    return connect_page(settings.dataflow or NOWHERE, settings.fleet, access)


def _regions(
    pages: Pages, fleet_state: FleetState, troubles: Callable[[], tuple[str, ...]]
) -> Callable[[Report, Mapping[str, Cell]], dict[str, str]]:
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
            "troubles": pages.fragment("_troubles.html", troubles=troubles()),
        }

    return render
