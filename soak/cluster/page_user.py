"""A user of the page, who changes a pool again and again, and the agreement of page and fleet ledger in PostgreSQL."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from soak.cluster.topology import FLEET, NEAR_POOL, PAGE
from soak.rules import Invariant, Violation
from tests.fakes.postgres import server_url
from tests.fakes.web import form_token

POOL_PATH = f"/api/v1/pools/{NEAR_POOL}"
CHANGE_EVERY_S = 3.0
RETRY_S = 0.5
REPEATED = (httpx.codes.CONFLICT, httpx.codes.TOO_MANY_REQUESTS)
"""Refusals after which the user tries again."""
LOGIN_S = 600.0
"""Seconds for the page to start."""
AGREEMENT_S = 60.0
"""Seconds for the page to show the ledger's state without faults."""


@dataclass(slots=True)
class PageUser:
    """An admin of the page. Repeats each change under its key until the page has acknowledged it."""

    client: httpx.AsyncClient
    acknowledged: list[str] = field(default_factory=list)
    """Reasons of the changes that the page acknowledged."""
    retries: int = 0
    defects: list[str] = field(default_factory=list)
    """Answers that blame the request or name no cause: an outage must be reported as one."""
    _is_done: bool = False

    async def run(self) -> None:
        """Makes changes until `finish`, and completes the last one."""
        number = 0
        while not self._is_done:
            number += 1
            await self._change(f"change-{number}", max_nodes=3 + number % 2)
            await asyncio.sleep(CHANGE_EVERY_S)

    def finish(self) -> None:
        """Makes the current change the last one."""
        self._is_done = True

    async def pool(self) -> dict[str, Any] | None:
        """Returns the pool as the page shows it; None while it cannot."""
        answer = await self._answer("GET")
        return answer.json() if answer is not None and answer.is_success else None

    async def _change(self, reason: str, *, max_nodes: int) -> None:
        attempt = 0
        body: dict[str, Any] | None = None
        while True:
            if body is None:
                attempt, body = attempt + 1, await self._body(reason, max_nodes=max_nodes)
            answer = await self._answer("PUT", json=body, headers={"Idempotency-Key": f"{reason}.{attempt}"})
            if answer is not None and answer.is_success:
                self.acknowledged.append(reason)
                return
            if answer is not None and answer.status_code == httpx.codes.CONFLICT:
                body = None  # the pool has changed since it was read, so this request was not applied
            self.retries += 1
            await asyncio.sleep(RETRY_S)

    async def _body(self, reason: str, *, max_nodes: int) -> dict[str, Any]:
        pool = await self.pool()
        while pool is None:
            await asyncio.sleep(RETRY_S)
            pool = await self.pool()
        spec = {key: value for key, value in pool["spec"].items() if key != "id"}
        return {**spec, "max_nodes": max_nodes, "observed_version": pool["version"], "reason": reason}

    async def _answer(self, method: str, **options: Any) -> httpx.Response | None:
        try:
            answer = await self.client.request(method, POOL_PATH, **options)
        except httpx.TransportError:
            return None
        if (answer.is_client_error and answer.status_code not in REPEATED) or answer.status_code == 500:
            self.defects.append(answer.text[:300])
        return answer


async def logged_in(client: httpx.AsyncClient, directory: Path) -> PageUser:
    """Logs in with the link that the page wrote when it started."""
    link, deadline = directory / PAGE / "login-link", time.monotonic() + LOGIN_S
    while True:
        try:
            await client.get(link.read_text())
            settings = await client.get("/settings")
            settings.raise_for_status()
        except (FileNotFoundError, httpx.TransportError, httpx.HTTPStatusError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            client.headers.update({"origin": str(client.base_url).rstrip("/"), "x-form-token": form_token(settings)})
            return PageUser(client)


async def disagreements(user: PageUser, port: int) -> list[Violation]:
    """Compares the ledger's tables with the page's tables and with the page itself. port: of PostgreSQL."""
    decided = _counts(port, FLEET, "SELECT reason, count(*) FROM fleet_decisions WHERE kind = 'spec' GROUP BY reason")
    audited = _counts(
        port,
        PAGE,
        "SELECT reason, count(*) FROM audit_entries WHERE action = 'pool.change' AND result = 'done' GROUP BY 1",
    )
    violations = list(_lost_changes(user.acknowledged, decided, audited))
    deadline = time.monotonic() + AGREEMENT_S
    while (shown := _shown(await user.pool())) != (stored := _stored_pool(port)):
        if time.monotonic() > deadline:
            message = f"the page shows the pool {shown}, the ledger has {stored}"
            return [*violations, Violation(promise=Invariant.BALANCE, message=message)]
        await asyncio.sleep(RETRY_S)
    return violations


def _lost_changes(acknowledged: list[str], decided: dict[str, int], audited: dict[str, int]) -> Iterator[Violation]:
    for reason in acknowledged:
        if decided.get(reason) != 1:
            promise = Invariant.TWICE if decided.get(reason) else Invariant.LOST
            message = f"the page acknowledged {reason}, the ledger has it {decided.get(reason, 0)} times"
            yield Violation(promise=promise, message=message)
        if not audited.get(reason):
            message = f"the page acknowledged {reason}, its audit log does not have it"
            yield Violation(promise=Invariant.LOST, message=message)
    for reason in audited.keys() - decided.keys():
        yield Violation(promise=Invariant.LOST, message=f"the page's audit log has {reason}, the ledger does not")


def _counts(port: int, database: str, query: str) -> dict[str, int]:
    with psycopg.connect(server_url(port, database)) as connection:
        return {str(reason): int(count) for reason, count in connection.execute(query.encode())}


def _stored_pool(port: int) -> tuple[int, int, int] | None:
    query = b"SELECT version, target, spec_json FROM fleet_pools WHERE id = %s"
    with psycopg.connect(server_url(port, FLEET)) as connection:
        row = connection.execute(query, (NEAR_POOL,)).fetchone()
    return (row[0], row[1], json.loads(row[2])["max_nodes"]) if row else None


def _shown(pool: dict[str, Any] | None) -> tuple[int, int, int] | None:
    return (pool["version"], pool["target"], pool["spec"]["max_nodes"]) if pool else None
