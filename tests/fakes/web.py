"""The complete web service in the test's process, on a free port, with a clock that a test can advance."""

import asyncio
import html
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from astraflow.runtime.clock import SystemClock
from tests.fakes.control_plane import TOKEN
from web.process_settings import Settings
from web.service import serve


class AdvancedClock(SystemClock):
    """Real time plus an offset: `push` makes everything older at once."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def wall(self) -> float:
        return super().wall() + self.ahead_s

    def push(self, duration_s: float) -> None:
        self.ahead_s += duration_s


def form_token(page: httpx.Response) -> str:
    """Returns the form token of a page."""
    return page.text.partition('name="form_token" value="')[2].partition('"')[0]


def shown_secret(page: httpx.Response) -> str:
    """Returns the token or link that a page shows once."""
    assert page.status_code == 200, page.text
    return page.text.partition('aria-label="The secret">')[2].partition("<")[0]


async def flash_of(client: httpx.AsyncClient, answer: httpx.Response) -> str:
    """Returns the flash message on the page after an action."""
    assert answer.status_code == 303, answer.text
    page = (await client.get(answer.headers["location"])).text
    return html.unescape(page.partition('class="flash"')[2].partition("<p>")[2].partition("</p>")[0])


def free_port() -> int:
    """Returns a port of loopback that nothing uses."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        return int(used.getsockname()[1])


class RunningWeb:
    """A web service that listens."""

    def __init__(self, login_url: str, clock: AdvancedClock, directory: Path) -> None:
        self.directory = directory
        self.login_url = login_url
        self.address = login_url.partition("/login")[0]
        self.clock = clock

    def client(self) -> httpx.AsyncClient:
        """Returns a browser without a login."""
        return httpx.AsyncClient(base_url=self.address, follow_redirects=False, timeout=60)

    @asynccontextmanager
    async def logged_in(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yields a browser with a login; uses up the login link."""
        async with self.client() as client:
            answer = await client.get(self.login_url)
            assert answer.status_code == 303, answer.text
            client.headers["origin"] = self.address
            client.headers["x-form-token"] = form_token(await client.get("/settings"))
            yield client

    @asynccontextmanager
    async def in_role(self, admin: httpx.AsyncClient, role: str, *, name: str = "") -> AsyncIterator[httpx.AsyncClient]:
        """Yields a browser of a new user, whom `admin` adds and gives a link."""
        added = await admin.post("/settings/users", data={"name": name or f"some-{role}", "role": role})
        async with self.client() as client:
            assert (await client.get(shown_secret(added))).status_code == 303
            client.headers["origin"] = self.address
            client.headers["x-form-token"] = form_token(await client.get("/settings"))
            yield client

    async def until_connected(self) -> None:
        """Waits until a report has arrived."""
        async with self.client() as client:
            deadline = time.monotonic() + 30  # a busy machine must not fail the test
            while (await client.get("/healthz")).json()["feed"] != "live":
                assert time.monotonic() < deadline, "no report reached the web process"
                await asyncio.sleep(0.02)

    async def until_live(self, client: httpx.AsyncClient, *, sequence: int = 1) -> None:
        """Waits until the pages show that report."""
        deadline = time.monotonic() + 30  # a busy machine must not fail the test
        while time.monotonic() < deadline:
            try:
                answer = await client.get("/api/v1/report")
            except httpx.ReadError:  # the server closed the idle connection just then
                continue
            if answer.status_code == 200 and answer.json()["sequence"] >= sequence:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"report {sequence} did not reach the web process")


@asynccontextmanager
async def running_web(directory: Path, dataflow: str, *, port: int = 0, **more: Any) -> AsyncIterator[RunningWeb]:
    """Serves until the block ends. more: settings."""
    usual: dict[str, Any] = {"token": TOKEN, "recipe": "reverse"}
    settings = Settings(dataflow=dataflow, directory=directory, port=port, **usual | more)
    stop, clock = asyncio.Event(), AdvancedClock()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(settings, stop=stop, on_ready=ready.set_result, clock=clock))
        serving.add_done_callback(lambda _: ready.cancel())
        try:
            yield RunningWeb(await ready, clock, directory)
        finally:
            stop.set()
