"""Simulated browsers of the web process: WebSockets that listen, and one client that requests pages and acts."""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.typing import Origin

from benchmarks.web_load.processes import Web
from tests.fakes.web import form_token

AT = re.compile(r'"seq":(\d+).*?"points":\[\[\d+,([\d.]+)', re.DOTALL)
VIEWS = ("", "sort=rate&order=down", "sort=lag&order=down", "text=node-000", "region=eu-west", "page=3", "sort=name",
         "state=ready", "sort=share", "sort=busy&page=2")  # fmt: skip


@dataclass
class BrowserMeasurements:
    """Measurements of all listeners together."""

    end_to_end_s: list[float] = field(default_factory=list)
    """Seconds since the report left dataflow."""
    first_at: dict[int, float] = field(default_factory=dict)
    """Time when the first listener had a frame, by its sequence."""
    push_s: list[float] = field(default_factory=list)
    """Seconds from then until each of the other listeners had it."""
    size: int = 0
    rows: int = 0
    """Messages with rows of a table of nodes."""
    sequences: set[int] = field(default_factory=set)

    def clear(self) -> None:
        """Clears the measurements."""
        self.__init__()  # type: ignore[misc] # resets all fields


@asynccontextmanager
async def logged_in(web: Web) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client with all permissions."""
    async with httpx.AsyncClient(base_url=web.address, timeout=30.0) as client:
        await client.get(web.login_url)
        client.headers["origin"] = web.address
        client.headers["x-form-token"] = form_token(await client.get("/settings"))
        yield client


async def listen(
    web: Web, client: httpx.AsyncClient, measurements: BrowserMeasurements, *, rows: str | None, begin_s: float
) -> None:
    """Listens until cancelled, starting after this many seconds. rows: query of the shown table of nodes."""
    await asyncio.sleep(begin_s)
    shown = re.search(r'data-sequence="(\d+)"', (await client.get("/settings")).text)
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    watched = "" if rows is None else f"&rows={quote(rows)}"
    address = f"{web.address.replace('http', 'ws')}/live?after={shown[1] if shown else 0}{watched}"
    async with connect(
        address,
        origin=Origin(web.address),
        additional_headers={"cookie": cookie},
        compression=None,
        max_size=None,
        open_timeout=60,
    ) as socket:
        async for message in socket:
            now = time.time()
            text = message if isinstance(message, str) else message.decode()
            measurements.size += len(text)
            if text.startswith('{"kind":"rows"'):
                measurements.rows += 1
                continue
            match = AT.search(text) if text.startswith('{"kind":"frame"') else None
            if match is None:
                continue
            sequence, at = int(match[1]), float(match[2])
            measurements.sequences.add(sequence)
            measurements.end_to_end_s.append(now - at)
            measurements.push_s.append(now - measurements.first_at.setdefault(sequence, now))


async def ask(client: httpx.AsyncClient, took: dict[str, list[float]], *, every_s: float) -> None:
    """Reads, plans, applies and filters tables, one after the other, until cancelled."""
    number = 0
    while True:
        number += 1
        await _timed(took, "read", client.get("/api/v1/pools"))
        await _timed(took, "table", client.get(f"/nodes?{VIEWS[number % len(VIEWS)]}"))
        body = {"target": 3 + number % 2, "reason": "a benchmark"}
        planned = await _timed(took, "plan", client.post("/api/v1/pools/eu/plans", json=body))
        if planned.is_success:
            await _timed(
                took,
                "apply",
                client.post(
                    f"/api/v1/plans/{planned.json()['id']}/apply",
                    json={"reason": "a benchmark"},
                    headers={"idempotency-key": str(uuid.uuid4())},
                ),
            )
        await asyncio.sleep(every_s)


def percentile_ms(times_s: list[float], percent: float) -> float:
    """Returns a percentile of seconds, as milliseconds."""
    return float(np.percentile(times_s, percent)) * 1000 if times_s else float("nan")


async def _timed(took: dict[str, list[float]], name: str, answer: object) -> httpx.Response:
    began = time.perf_counter()
    response: httpx.Response = await answer  # type: ignore[misc] # a coroutine of httpx
    took.setdefault(name, []).append(time.perf_counter() - began)
    if not response.is_success:
        took.setdefault(f"{name} {response.status_code}", []).append(0.0)
    return response
