"""What routes work with, built once by the service."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.runtime.clock import Clock
from web.accounts.accounts import Accounts
from web.accounts.viewer import Viewer
from web.audit import Trail
from web.db import Database
from web.fleet_poller import FleetPoller
from web.fleet_state import FleetState
from web.frames import FrameMaker
from web.hub import Hub
from web.recorder import Recorder
from web.rendering import Pages
from web.retention import Retention
from web.settings import Settings
from web.state import RunState
from web.views import SavedViews


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The process's parts."""

    settings: Settings
    clock: Clock
    database: Database
    trail: Trail
    accounts: Accounts
    retention: Retention
    control: ControlPlaneClient
    state: RunState
    fleet: FleetPlaneClient | None
    """None for a run without a fleet service."""
    fleet_state: FleetState
    fleet_poller: FleetPoller | None
    frames: FrameMaker
    hub: Hub
    recorder: Recorder
    pages: Pages
    views: SavedViews


def parts_of(connection: HTTPConnection) -> Parts:
    """The parts, for a route."""
    return cast("Parts", connection.app.state.parts)


def viewer_of(connection: HTTPConnection) -> Viewer:
    """Who asks; the guard lets nobody else through."""
    return cast("Viewer", connection.state.viewer)


PartsOf = Annotated[Parts, Depends(parts_of)]
ViewerOf = Annotated[Viewer, Depends(viewer_of)]
