"""Routes without a page: `/live` (WebSocket that sends updates to every open page), `/static`, and `/healthz`."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from astraflow.runtime.clock import Clock
from web.accounts.accounts import Accounts
from web.accounts.viewer import Viewer
from web.components.rendering import STATIC, build_stamp
from web.live.hub import Hub
from web.live.live_nodes import LiveNodes
from web.middleware.middleware import CLOSED_FOR_LOGIN, cookie_of
from web.requests.dependencies import AccountsDep, ClockDep, HubDep, NodesDep, StateDep
from web.security.roles import Permission, needs
from web.static_files import FILES, files

router = APIRouter()

RECHECK_S = 60.0
"""Seconds between checks of the session: the longest delay until a session ended by another process ends here."""

SEND_S = 10.0
"""Seconds that one send may take before the connection is closed."""

GOING_AWAY = 1012

MAX_QUERY_LENGTH = 2000


@router.websocket("/live")
@needs(Permission.READ)
async def live(
    socket: WebSocket,
    nodes: NodesDep,
    hub: HubDep,
    accounts: AccountsDep,
    clock: ClockDep,
    after: int = 0,
    rows: Annotated[str | None, Query(max_length=MAX_QUERY_LENGTH)] = None,
) -> None:
    """Sends the frames after sequence number `after` until either side closes. Messages from the browser are ignored.

    rows: query of the node table that the page shows; each frame is followed by the texts of its rows.
    """
    await socket.accept()
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (
                _send(socket, nodes, hub, after, rows),
                _wait_for_end(socket),
                _recheck(socket, accounts, clock),
            ):
                tasks.create_task(work)
    except* (_Ended, WebSocketDisconnect, TimeoutError):
        pass  # the normal ways in which a connection ends


class _Ended(Exception):
    """One of the socket's tasks has finished; the task group cancels the others."""


async def _send(socket: WebSocket, nodes: LiveNodes, hub: Hub, after: int, rows: str | None) -> None:
    sent_version = -1
    async with aclosing(hub.frames(after)) as frames:
        async for text in frames:
            async with asyncio.timeout(SEND_S):
                await socket.send_text(text)
                if rows is not None:
                    sent_version, row_texts = await nodes.update_for(rows, sent_version)
                    if row_texts:
                        await socket.send_text(row_texts)
    await socket.close(GOING_AWAY)
    raise _Ended


async def _wait_for_end(socket: WebSocket) -> None:
    while True:
        await socket.receive_text()


async def _recheck(socket: WebSocket, accounts: Accounts, clock: Clock) -> None:
    """Closes the socket when its session or token ends or its rights change; the page then reconnects."""
    first: Viewer = socket.state.viewer
    code = GOING_AWAY
    while True:
        change = accounts.changes.next
        viewer = await _viewer_now(socket, accounts)
        if viewer is None or not viewer.may(Permission.READ):
            code = CLOSED_FOR_LOGIN
            break
        if not viewer.has_same_rights(first):
            break
        rest_s = min(RECHECK_S, viewer.ends_at - clock.wall())
        await _first_of(change.wait(), clock.sleep(max(0.0, rest_s)))
    await socket.close(code)
    raise _Ended


async def _viewer_now(socket: WebSocket, accounts: Accounts) -> Viewer | None:
    cookie = cookie_of(socket.headers, accounts.sessions.cookie_name)
    return await accounts.viewer(socket.headers, cookie=cookie, came_from=socket.state.came_from)


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Waits until the first of the coroutines finishes, then cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@needs(Permission.NOTHING)
async def static_file(request: Request) -> Response:
    """Returns a static file of this release; answers 404 for any other release."""
    if request.path_params["build"] != build_stamp():
        raise HTTPException(404)
    return files(STATIC).response(request, request.path_params["path"])


# Static files contain no secrets, so compressing them is safe; pages contain secrets and are sent uncompressed.
router.add_route(f"{FILES}{{build}}/{{path:path}}", static_file)


@router.get("/healthz")
@needs(Permission.NOTHING)
async def health(state: StateDep) -> Response:
    """Returns liveness and the state of the connection to dataflow. No facts of the run: it requires no login."""
    age_s = state.age_s
    return JSONResponse(
        {
            "status": "ok",
            "feed": state.connection.state.value,
            "data_age_s": None if age_s is None else round(age_s, 2),
        }
    )
