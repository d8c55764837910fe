"""Contexts of routes, built once by the service: the process, and the run of a request."""

from dataclasses import dataclass, fields
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import Conflict
from astraflow.runtime.clock import Clock
from web.accounts.accounts import Accounts
from web.accounts.saved_views import SavedViews
from web.accounts.viewer import Viewer
from web.components.rendering import PageRenderer
from web.database.db import Database
from web.history.recorder import Recorder
from web.launcher.catalogue import Catalogue
from web.launcher.launcher import Launcher
from web.live.fleet_poller import FleetPoller
from web.live.followed_run import FollowedRun, FollowedRuns
from web.live.frames import FrameBuilder
from web.live.hub import Hub
from web.live.live_nodes import LiveNodes
from web.live.maintainer_cache import MaintainerCache
from web.process_settings import Settings
from web.requests.cache import ProcessCache
from web.security.audit_log import AuditLog
from web.security.request_bodies import READ_METHODS
from web.security.retention import Retention
from web.state.fleet_state import FleetState
from web.state.run_state import RunState

RUN_COOKIE = "astraflow_run"
RUN_HEADER = "x-run"
"""Header in which the requests of a page name their run, so that two tabs can show two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """Parts of the process that are shared by all runs."""

    settings: Settings
    clock: Clock
    database: Database
    audit_log: AuditLog
    accounts: Accounts
    retention: Retention
    pages: PageRenderer
    catalogue: Catalogue
    launcher: Launcher
    cache: ProcessCache
    views: SavedViews
    followed: FollowedRuns

    def context_of_run(self, followed_run: FollowedRun) -> "RequestContext":
        """Returns the request context of a run."""
        shared = {field.name: getattr(self, field.name) for field in fields(self)}
        return RequestContext(
            **shared
            | {
                "settings": followed_run.settings,
                "pages": followed_run.pages,
                "run": followed_run.name,
                "control": followed_run.control,
                "state": followed_run.state,
                "fleet": followed_run.fleet,
                "fleet_state": followed_run.fleet_state,
                "fleet_poller": followed_run.fleet_poller,
                "maintainer": followed_run.maintainer,
                "frames": followed_run.frames,
                "hub": followed_run.hub,
                "recorder": followed_run.recorder,
                "nodes": followed_run.nodes,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext(AppContext):
    """Shared parts of the process and the parts of one run. `settings` and `pages` also belong to the run."""

    run: str
    """Name of the run, on which roles are granted; empty before it is known."""
    control: ControlPlaneClient
    state: RunState
    fleet: FleetPlaneClient | None
    """None for a run without a fleet service."""
    fleet_state: FleetState
    fleet_poller: FleetPoller | None
    maintainer: MaintainerCache
    frames: FrameBuilder
    hub: Hub
    recorder: Recorder
    nodes: LiveNodes


async def get_request_context(connection: HTTPConnection) -> RequestContext:
    """Returns the context of a route. The URL, the form, the page or the browser's cookie names the run.

    The function is `async` although it does not wait: FastAPI calls a synchronous dependency in a thread.
    Raises: Conflict for an action on a run that is no longer followed, which must not affect another run.
    """
    app_context, requested, followed_run = _requested_run(connection)
    if requested and followed_run.name != requested and connection.scope.get("method", "GET") not in READ_METHODS:
        raise Conflict(
            f"cannot act on the run {requested!r}: it has ended or is no longer followed; reload the page",
            code="run.not_followed",
        )
    return app_context.context_of_run(followed_run)


def error_page_context(connection: HTTPConnection) -> RequestContext:
    """Returns the context of an error page, which may show another run than the requested one."""
    app_context, _, followed_run = _requested_run(connection)
    return app_context.context_of_run(followed_run)


def get_followed_run(app_context: AppContext, connection: HTTPConnection) -> tuple[str, FollowedRun]:
    """Returns the name in the request and the followed run; both stay the same until the request is answered."""
    state = connection.scope.setdefault("state", {})
    requested = connection.query_params.get("run") or state.get("run") or connection.headers.get(RUN_HEADER, "")
    if "following" not in state:
        state["following"] = app_context.followed.by_name(requested or connection.cookies.get(RUN_COOKIE, ""))
    return requested, cast("FollowedRun", state["following"])


def _requested_run(connection: HTTPConnection) -> tuple[AppContext, str, FollowedRun]:
    app_context = cast("AppContext", connection.app.state.app_context)
    return app_context, *get_followed_run(app_context, connection)


async def get_viewer(connection: HTTPConnection) -> Viewer:
    """Returns the viewer of the request; the security middleware requires one."""
    return cast("Viewer", connection.state.viewer)


RequestContextDep = Annotated[RequestContext, Depends(get_request_context)]
ViewerDep = Annotated[Viewer, Depends(get_viewer)]
