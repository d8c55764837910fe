"""Parts of the process and of a request's run, each a dependency of the routes that need it.

The security middleware has checked the viewer's permission before any of them is resolved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from astraflow.client.control_plane import ControlPlaneClient
from astraflow.contract.errors import Conflict, Unavailable
from astraflow.contract.reports.report import Report
from astraflow.runtime.clock import Clock
from web.accounts.accounts import Accounts
from web.accounts.viewer import Viewer
from web.alerting.delivery import Deliverer
from web.alerting.store import AlertStore
from web.components.live_texts import LiveText
from web.components.rendering import PageRenderer
from web.database.db import Database
from web.history.recorder import Recorder
from web.launcher.catalogue import Catalogue
from web.launcher.launcher import Launcher
from web.live.followed_fleet import FollowedFleet, MaintainerCache
from web.live.followed_run import FollowedRun, FollowedRuns
from web.live.hub import Hub
from web.live.live_nodes import LiveNodes
from web.live.machine_runs import MachineRuns
from web.process_settings import Settings
from web.requests.commands import Commands, ProcessCache
from web.requests.range_points import HistorySource
from web.requests.run_lookup import Launches, RunId, RunIndex, ShownRun
from web.security.addresses import own_address
from web.security.audit_log import AuditLog
from web.security.request_bodies import READ_METHODS
from web.security.retention import Retention
from web.state.run_state import RunState

RUN_COOKIE = "astraflow_run"
RUN_HEADER = "x-run"
"""Header in which the requests of a page name their run, so that two tabs can show two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """Parts of the process that are shared by all runs, built once by the service."""

    settings: Settings
    clock: Clock
    database: Database
    audit_log: AuditLog
    accounts: Accounts
    retention: Retention
    catalogue: Catalogue
    launcher: Launcher
    cache: ProcessCache
    followed: FollowedRuns
    alerts: AlertStore
    deliverer: Deliverer
    machine: MachineRuns


def get_followed_run(parts: ProcessParts, connection: HTTPConnection) -> tuple[str, FollowedRun]:
    """Returns the name in the request and the followed run; both stay the same until the request is answered."""
    state = connection.scope.setdefault("state", {})
    requested = connection.query_params.get("run") or state.get("run") or connection.headers.get(RUN_HEADER, "")
    if "following" not in state:
        state["following"] = parts.followed.by_name(requested or connection.cookies.get(RUN_COOKIE, ""))
    return requested, cast("FollowedRun", state["following"])


# Dependencies are `async` although they do not wait: FastAPI calls a synchronous one in a thread.


async def get_parts(connection: HTTPConnection) -> ProcessParts:
    """Returns the parts of the process."""
    return cast("ProcessParts", connection.app.state.parts)


PartsDep = Annotated[ProcessParts, Depends(get_parts)]


async def get_run(connection: HTTPConnection, parts: PartsDep) -> FollowedRun:
    """Returns the run of a request, which the URL, the form, the page or the browser's cookie names.

    Raises: Conflict for an action on a run that is no longer followed, which must not affect another run.
    """
    requested, run = get_followed_run(parts, connection)
    if requested and run.name != requested and connection.scope.get("method", "GET") not in READ_METHODS:
        raise Conflict(
            f"cannot act on the run {requested!r}: it has ended or is no longer followed; reload the page",
            code="run.not_followed",
        )
    return run


_RunDep = Annotated[FollowedRun, Depends(get_run)]


def _of_process(name: str) -> Any:
    async def part(parts: PartsDep) -> Any:
        return getattr(parts, name)

    return Depends(part)


def _of_run(name: str) -> Any:
    """Dependency on an attribute of the run, or an attribute of that."""
    read = attrgetter(name)

    async def part(run: _RunDep) -> Any:
        return read(run)

    return Depends(part)


ClockDep = Annotated[Clock, _of_process("clock")]
DatabaseDep = Annotated[Database, _of_process("database")]
AuditLogDep = Annotated[AuditLog, _of_process("audit_log")]
AccountsDep = Annotated[Accounts, _of_process("accounts")]
RetentionDep = Annotated[Retention, _of_process("retention")]
LauncherDep = Annotated[Launcher, _of_process("launcher")]
AlertsDep = Annotated[AlertStore, _of_process("alerts")]
DelivererDep = Annotated[Deliverer, _of_process("deliverer")]
FollowedRunsDep = Annotated[FollowedRuns, _of_process("followed")]

RunNameDep = Annotated[str, _of_run("name")]
"""Name of the run, on which roles are granted; empty before it is known."""
SettingsDep = Annotated[Settings, _of_run("settings")]
"""Settings of the process, with the addresses and the recipe of the run."""
PagesDep = Annotated[PageRenderer, _of_run("pages")]
LiveTextsDep = Annotated[Mapping[str, LiveText], _of_run("frames.live_texts")]
StateDep = Annotated[RunState, _of_run("state")]
ControlDep = Annotated[ControlPlaneClient, _of_run("control")]
FleetDep = Annotated[FollowedFleet, _of_run("fleet")]
MaintainerDep = Annotated[MaintainerCache, _of_run("maintainer")]
RecorderDep = Annotated[Recorder, _of_run("recorder")]
NodesDep = Annotated[LiveNodes, _of_run("nodes")]
HubDep = Annotated[Hub, _of_run("hub")]


async def get_report(state: StateDep) -> Report:
    """Returns the newest report. Raises: Unavailable before the first."""
    if state.report is None:
        raise Unavailable(
            "cannot show the run: dataflow has not reported yet; try again in a few seconds", code="report.none_yet"
        )
    return state.report


async def get_admins(parts: PartsDep) -> Sequence[str]:
    """Returns the names of the admins, whom pages name to viewers without a role."""
    return await parts.accounts.users.admins()


async def get_own_address(connection: HTTPConnection, settings: SettingsDep) -> str:
    """Returns the address of this service, as the browser has it."""
    return own_address(connection.headers["host"], settings)


async def get_viewer(connection: HTTPConnection) -> Viewer:
    """Returns the viewer of the request; the security middleware requires one."""
    return cast("Viewer", connection.state.viewer)


AdminsDep = Annotated[Sequence[str], Depends(get_admins)]
OwnAddressDep = Annotated[str, Depends(get_own_address)]
ReportDep = Annotated[Report, Depends(get_report)]
ViewerDep = Annotated[Viewer, Depends(get_viewer)]


async def get_commands(viewer: ViewerDep, run: _RunDep, parts: PartsDep) -> Commands:
    """Returns the commands of the viewer on the run."""
    return Commands(viewer=viewer, run=run, audit_log=parts.audit_log, cache=parts.cache)


async def get_history(run: _RunDep, parts: PartsDep) -> HistorySource:
    """Returns the points of the run in memory and its recorded history."""
    return HistorySource(state=run.state, recorder=run.recorder, database=parts.database)


async def get_run_index(run: _RunDep, parts: PartsDep) -> RunIndex:
    """Returns the recorded, launched and followed runs."""
    return RunIndex(
        database=parts.database,
        followed=parts.followed,
        requested=run,
        launcher=parts.launcher,
        machine=parts.machine,
        summaries=parts.cache.summaries,
        settings=parts.cache.settings,
    )


RunIndexDep = Annotated[RunIndex, Depends(get_run_index)]


async def get_shown_run(run_id: RunId, index: RunIndexDep) -> ShownRun:
    """Returns the run in a page's address; its history is read from its folder if this page did not follow it."""
    return await index.shown(run_id).with_history()


async def get_launches(parts: PartsDep, settings: SettingsDep) -> Launches:
    """Returns the recipes and the launched runs."""
    return Launches(launcher=parts.launcher, catalogue=parts.catalogue, settings=settings)


CommandsDep = Annotated[Commands, Depends(get_commands)]
HistoryDep = Annotated[HistorySource, Depends(get_history)]
ShownRunDep = Annotated[ShownRun, Depends(get_shown_run)]
LaunchesDep = Annotated[Launches, Depends(get_launches)]
