"""`/live`: the WebSocket that every open page listens to."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect

from web.accounts.viewer import Viewer
from web.door.guard import CLOSED_FOR_LOGIN, cookie_of
from web.door.roles import Need, needs
from web.parts import Parts, PartsOf

router = APIRouter()

RECHECK_S = 60.0
"""A session that another process ended in a shared database ends here after this, at the latest."""

SEND_S = 10.0
"""A browser that takes nothing for so long is gone."""

GOING_AWAY = 1012

MOST_QUERY = 2000


@router.websocket("/live")
@needs(Need.READ)
async def live(
    socket: WebSocket, parts: PartsOf, after: int = 0, rows: Annotated[str | None, Query(max_length=MOST_QUERY)] = None
) -> None:
    """Send frames after a sequence until one side ends it. The browser says nothing.

    rows: query of the node table that the page shows; after each frame come the texts of its rows.
    """
    await socket.accept()
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (_send(socket, parts, after, rows), _wait_for_end(socket), _recheck(socket, parts)):
                tasks.create_task(work)
    except* (_Ended, WebSocketDisconnect, TimeoutError):
        pass  # how every live page ends


class _Ended(Exception):
    """One of the tasks is done with the socket; the others have nothing left to do."""


async def _send(socket: WebSocket, parts: Parts, after: int, rows: str | None) -> None:
    had = -1
    async with aclosing(parts.hub.frames(after)) as frames:
        async for text in frames:
            async with asyncio.timeout(SEND_S):
                await socket.send_text(text)
                if rows is not None:
                    had, more = await parts.nodes.told(rows, had)
                    if more:
                        await socket.send_text(more)
    await socket.close(GOING_AWAY)
    raise _Ended


async def _wait_for_end(socket: WebSocket) -> None:
    while True:
        await socket.receive_text()


async def _recheck(socket: WebSocket, parts: Parts) -> None:
    """Closes the socket when its session or token ends, and when its rights change: the page then connects anew."""
    first: Viewer = socket.state.viewer
    code = GOING_AWAY
    while True:
        change = parts.accounts.changes.next
        viewer = await _viewer_now(socket, parts)
        if viewer is None or not viewer.may(Need.READ):
            code = CLOSED_FOR_LOGIN
            break
        if not viewer.has_same_rights(first):
            break
        rest_s = min(RECHECK_S, viewer.ends_at - parts.clock.wall())
        await _either(change.wait(), parts.clock.sleep(max(0.0, rest_s)))
    await socket.close(code)
    raise _Ended


async def _viewer_now(socket: WebSocket, parts: Parts) -> Viewer | None:
    cookie = cookie_of(socket.headers, parts.accounts.sessions.cookie_name)
    return await parts.accounts.viewer(socket.headers, cookie=cookie, came_from=socket.state.came_from)


async def _either(*waits: Coroutine[Any, Any, Any]) -> None:
    """Waits for the first of several."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
