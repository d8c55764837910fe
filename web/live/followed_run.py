"""Followed runs: the configured one, and those that are discovered on this machine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from astraflow.client.connect import PageAccess, connect_page
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.client.local_runs import LocalRuns, LocalRunState
from astraflow.contract.errors import AstraFlowError, Unavailable
from astraflow.contract.records import Record
from astraflow.contract.reports.report import Event, Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from web.alerting.engine import AlertEngine
from web.components.events import latest_events
from web.components.layout import header_texts, header_view
from web.components.live_texts import LiveText
from web.components.pool_cards import SHOWN_POOLS, pool_cards
from web.components.rendering import PageRenderer
from web.database.db import Database
from web.history.points import Point
from web.history.recorder import Recorder
from web.history.step_recorder import StepRecorder
from web.live.collector import Collector
from web.live.followed_fleet import FleetPoller, FollowedFleet, MaintainerCache
from web.live.frames import FrameBuilder
from web.live.hub import Hub
from web.live.live_nodes import LiveNodes
from web.process_settings import Settings
from web.state.fleet_state import FleetState
from web.state.run_state import ConnectionState, RunState

log = get_logger()

HEARTBEAT_INTERVAL_S = 1.0
POOL_CARDS_EVERY_REPORTS = 5
"""Reports between two renderings of the cards of pools."""

DISCOVERY_INTERVAL_S = 2.0
"""Interval between two scans of run folders, in seconds."""

UNREACHABLE_ADDRESS = "127.0.0.1:1"
"""Address used while no run is known; every call to it fails as unreachable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRun:
    """One followed run: its clients, its state, and the live updates of its pages."""

    settings: Settings
    """Settings of this process, with the addresses and the recipe of the run."""
    control: ControlPlaneClient
    state: RunState
    fleet: FollowedFleet
    maintainer: MaintainerCache
    frames: FrameBuilder
    hub: Hub
    recorder: Recorder
    steps: StepRecorder
    nodes: LiveNodes
    pages: PageRenderer
    alerts: AlertEngine
    folder: RunFolder | None
    """Run folder; None when it is not on this machine."""

    @property
    def name(self) -> str:
        """Name of the run; empty before it is known."""
        return _name(self.state, self.folder)

    async def run(self) -> None:
        """Follows the run until cancelled; does nothing without an address."""
        if not self.settings.dataflow:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collector().run())
            tasks.create_task(self.recorder.run())
            tasks.create_task(self.steps.run())
            tasks.create_task(self._send_heartbeats())
            if self.fleet.poller is not None:
                tasks.create_task(self.fleet.poller.run())

    def _collector(self) -> Collector:
        def on_points(report: Report, points: list[Point]) -> None:
            self.state.annotation_log.add_alerts(self.alerts.firing_in(report.run))
            self.hub.publish(report.sequence, self.frames.frame(report, points))

        def on_feed() -> None:
            self.hub.broadcast(self.frames.heartbeat())

        return Collector(
            self.control,
            self.state,
            recorder=self.recorder,
            observer=self.alerts,
            clock=self.state.clock,
            on_points=on_points,
            on_feed=on_feed,
            fleet_status=lambda: self.fleet.state.current_status,
        )

    async def _send_heartbeats(self) -> None:
        """Sends a heartbeat with the age of the data every second while no report arrives."""

        async def send_if_silent() -> None:
            age_s = self.state.age_s
            if (
                self.state.connection.state is not ConnectionState.LIVE
                or age_s is None
                or age_s > HEARTBEAT_INTERVAL_S * 1.5
            ):
                self.hub.broadcast(self.frames.heartbeat())

        await periodic(send_if_silent, every_s=HEARTBEAT_INTERVAL_S, clock=self.state.clock)


class FollowedRuns:
    """All followed runs.

    local: runs of this machine, whose active ones are followed besides the primary one.
    """

    def __init__(self, primary: FollowedRun, *, database: Database, clock: Clock, local: LocalRuns) -> None:
        self._primary = primary
        self._database = database
        self._clock = clock
        self._local = local
        self._discovered: dict[str, FollowedRun] = {}

    @property
    def all(self) -> tuple[FollowedRun, ...]:
        """All followed runs, the latest discovered first; a primary without an address only when it is the only one."""
        discovered = tuple(reversed(self._discovered.values()))
        return (self._primary, *discovered) if self._primary.settings.dataflow or not discovered else discovered

    def by_name(self, run: str) -> FollowedRun:
        """Returns the followed run of that name; the first of all for an unknown name."""
        return next((followed for followed in self.all if run and followed.name == run), self.all[0])

    def by_record(self, run_id: int) -> FollowedRun | None:
        """Returns the run that is recorded under that id; None when it is not followed or its data is stale."""
        matching = (run for run in self.all if run.recorder.run_id == run_id and not run.state.is_stale)
        return next(matching, None)

    def is_followed(self, run: str) -> bool:
        """Returns whether reports of the run of this name arrive."""
        return any(followed.name == run and not followed.state.is_stale for followed in self.all)

    def close(self) -> None:
        """Ends all streams of frames."""
        for followed in self.all:
            followed.hub.close()

    async def run(self) -> None:
        """Follows the primary run and discovered runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._primary.run())
            tasks_by_path: dict[str, asyncio.Task[None]] = {}
            while True:
                active = await self._active_folders(tasks_by_path)
                for path in tasks_by_path.keys() - active.keys():
                    tasks_by_path.pop(path).cancel()
                for path, folder in active.items():
                    if path not in tasks_by_path or tasks_by_path[path].done():
                        tasks_by_path[path] = tasks.create_task(self._follow(path, folder))
                await self._clock.sleep(DISCOVERY_INTERVAL_S)

    async def _active_folders(self, working: Mapping[str, object]) -> dict[str, RunFolder]:
        """Returns the folders of active runs; the known ones when they cannot be read."""
        try:
            return await asyncio.to_thread(self._scan_folders)
        except (DBAPIError, Unavailable, OSError) as error:
            log.warning("run folders not read", problem=str(error))
            return {path: RunFolder(Path(path)) for path in working}

    def _scan_folders(self) -> dict[str, RunFolder]:
        """Returns the folders of active runs that name an address, by path."""
        if self._primary.settings.is_read_only:
            return {}
        return {
            str(run.folder.path): run.folder
            for run in self._local.all()
            if run.state is LocalRunState.RUNNING and run.facts and run.facts.dataflow
            if run.facts.dataflow != self._primary.settings.dataflow
        }

    async def _follow(self, path: str, folder: RunFolder) -> None:
        """Follows one run while it is active. An unreadable folder does not affect other runs."""
        try:
            await self._follow_folder(path, folder)
        except (AstraFlowError, OSError) as error:
            log.warning("run not followed", folder=path, problem=str(error))

    async def _follow_folder(self, path: str, folder: RunFolder) -> None:
        facts = folder.facts
        settings = self._primary.settings.model_copy(
            update={
                "dataflow": facts.dataflow,
                "token": folder.token,
                "authority": folder.authority if facts.is_tls else None,
                "fleet": facts.fleet,
                "fleet_token": "",
                "ca_hash": "",
                "credential_folder": None,
                "recipe": facts.recipe,
                "run_dir": folder.path,
            }
        )
        log.info("run discovered", run=facts.run)
        alerts = self._primary.alerts
        async with followed_run(
            settings, database=self._database, clock=self._clock, alerts=alerts, folder=folder
        ) as followed:
            self._discovered[path] = followed
            try:
                await followed.run()
            finally:
                log.info("run no longer followed", run=facts.run)
                alerts.forget(facts.run)
                followed.hub.close()
                del self._discovered[path]


@asynccontextmanager
async def followed_run(
    settings: Settings, *, database: Database, clock: Clock, alerts: AlertEngine, folder: RunFolder | None = None
) -> AsyncIterator[FollowedRun]:
    """Yields the parts that follow the run in the settings; clients are connected, tasks are not started."""
    async with connected_planes(settings) as (control, fleet):
        state, fleet_state = RunState(clock), FleetState(clock, is_absent=fleet is None)
        pages = PageRenderer(
            settings, state, fleet_state, name=lambda: _name(state, folder), alerts=lambda: len(alerts.firing)
        )
        frames = FrameBuilder(
            state,
            render_regions=_region_renderer(pages, fleet_state, lambda: state.problems),
            build=pages.build,
            extra_texts=lambda: header_texts(header_view(state.report, fleet_state, alerts=len(alerts.firing))),
            fleet_status=lambda: fleet_state.current_status,
        )
        recorder = Recorder(
            database,
            dataflow=settings.dataflow,
            recipe=settings.recipe,
            folder=str(settings.run_dir.absolute()) if settings.run_dir else "",
            clock=clock,
        )
        yield FollowedRun(
            settings=settings,
            control=control,
            state=state,
            fleet=FollowedFleet(
                settings=settings,
                client=fleet,
                state=fleet_state,
                poller=FleetPoller(
                    fleet,
                    fleet_state,
                    clock=clock,
                    on_decisions=lambda decisions: state.annotation_log.add_decisions(decisions),
                )
                if fleet is not None
                else None,
            ),
            maintainer=MaintainerCache(fleet, clock=clock),
            frames=frames,
            hub=Hub(frames.snapshot),
            recorder=recorder,
            steps=StepRecorder(control, recorder, database, clock=clock, on_steps=alerts.observe_steps),
            nodes=LiveNodes(state, recorder, instance_source=fleet, clock=clock),
            pages=pages,
            alerts=alerts,
            folder=folder,
        )


def _name(state: RunState, folder: RunFolder | None) -> str:
    if state.report is not None:
        return state.report.run
    return folder.facts.run if folder is not None else ""


def connected_planes(
    settings: Settings,
) -> AbstractAsyncContextManager[tuple[ControlPlaneClient, FleetPlaneClient | None]]:
    """Returns clients of the addresses in the settings; None as fleet client for a run without one."""
    access = PageAccess(
        token=settings.token or "none",
        fleet_token=settings.fleet_token,
        authority=settings.authority,
        ca_hash=settings.ca_hash,
        credential_folder=settings.credential_folder,
    )
    return connect_page(settings.dataflow or UNREACHABLE_ADDRESS, settings.fleet, access)


def _region_renderer(
    pages: PageRenderer, fleet_state: FleetState, problems: Callable[[], tuple[Record, ...]]
) -> Callable[[Report, Mapping[str, LiveText]], dict[str, str]]:
    """Returns a renderer of page regions that are replaced whole; pool cards only every few reports, and events only
    when there are others: browsers count their ages."""
    pools, events = "", ""
    shown_events: tuple[Event, ...] | None = None

    def render(report: Report, live_texts: Mapping[str, LiveText]) -> dict[str, str]:
        nonlocal pools, events, shown_events
        if not pools or report.sequence % POOL_CARDS_EVERY_REPORTS == 0:
            cards = pool_cards(report)[:SHOWN_POOLS]
            pools = pages.fragment("_pool_cards.html", pools=cards, live_texts=live_texts)
        if report.events != shown_events:
            events = pages.fragment("_events.html", events=latest_events(report))
            shown_events = report.events
        return {
            "pools": pools,
            "kill": pages.fragment("_kill.html", top=header_view(report, fleet_state, alerts=0)),
            "events": events,
            "problems": pages.fragment("_problems.html", problems=problems()),
        }

    return render
