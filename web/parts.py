"""What routes work with, built once by the service: the house, and the run that a request is about."""

from dataclasses import dataclass, fields
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import Conflict
from astraflow.runtime.clock import Clock
from web.accounts.accounts import Accounts
from web.accounts.viewer import Viewer
from web.acts.shelf import Shelf
from web.audit.entries import Trail
from web.audit.retention import Retention
from web.db import Database
from web.door.guard import READING
from web.feed.fleet_poller import FleetPoller
from web.feed.fleet_state import FleetState
from web.feed.following import FollowedRuns, Following
from web.feed.frames import FrameMaker
from web.feed.hub import Hub
from web.feed.maintainer_watch import MaintainerWatch
from web.feed.nodes_now import NodesNow
from web.feed.state import RunState
from web.history.recorder import Recorder
from web.launching.catalogue import Catalogue
from web.launching.launcher import Launcher
from web.reading.views import SavedViews
from web.rendering import Pages
from web.settings import Settings

RUN_COOKIE = "astraflow_run"
RUN_HEADER = "x-run"
"""What a page's own requests carry, so that two tabs may show two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The process's parts that are the same for every run."""

    settings: Settings
    clock: Clock
    database: Database
    trail: Trail
    accounts: Accounts
    retention: Retention
    pages: Pages
    catalogue: Catalogue
    launcher: Launcher
    shelf: Shelf
    views: SavedViews
    followed: FollowedRuns

    def showing(self, one: Following) -> "Parts":
        """These, and those of a run."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return Parts(
            **own
            | {
                "settings": one.settings,
                "pages": one.pages,
                "run": one.name,
                "control": one.control,
                "state": one.state,
                "fleet": one.fleet,
                "fleet_state": one.fleet_state,
                "fleet_poller": one.fleet_poller,
                "maintainer": one.maintainer,
                "frames": one.frames,
                "hub": one.hub,
                "recorder": one.recorder,
                "nodes": one.nodes,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(House):
    """All parts, with those of one run. `settings` and `pages` are that run's too."""

    run: str
    """Its name, which roles are granted on; empty before anything is known of it."""
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


async def parts_of(connection: HTTPConnection) -> Parts:
    """The parts, for a route; the run is the one that the address, the form, the page or the browser's cookie names.

    It waits for nothing, and yet is `async`: any other dependency is called in a thread, for each request.
    Raises: Conflict for an action on a run that is not followed any more: it must not hit another one.
    """
    house, named, one = _asked(connection)
    if named and one.name != named and connection.scope.get("method", "GET") not in READING:
        raise Conflict(f"the run {named} has ended, or is not followed here any more: load the page again")
    return house.showing(one)


def parts_for_problems(connection: HTTPConnection) -> Parts:
    """The same for a page that says what went wrong: of some run in any case."""
    house, _, one = _asked(connection)
    return house.showing(one)


def following_of(house: House, connection: HTTPConnection) -> tuple[str, Following]:
    """The run that the request itself names, and the one that it is about: the same for as long as it is answered."""
    state = connection.scope.setdefault("state", {})
    named = connection.query_params.get("run") or state.get("run") or connection.headers.get(RUN_HEADER, "")
    if "following" not in state:
        state["following"] = house.followed.named(named or connection.cookies.get(RUN_COOKIE, ""))
    return named, cast("Following", state["following"])


def _asked(connection: HTTPConnection) -> tuple[House, str, Following]:
    house = cast("House", connection.app.state.house)
    return house, *following_of(house, connection)


async def viewer_of(connection: HTTPConnection) -> Viewer:
    """Who asks; the guard lets nobody else through."""
    return cast("Viewer", connection.state.viewer)


PartsOf = Annotated[Parts, Depends(parts_of)]
ViewerOf = Annotated[Viewer, Depends(viewer_of)]
