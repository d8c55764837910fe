"""Inputs that no database stores: each page and each endpoint answers them alike on SQLite and PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from maintainer.fleet.ledger.ledger import open_ledger
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.launching import FakeCatalogue, FakeLauncher
from tests.fakes.postgres import separate_schema
from tests.fakes.web import running_web
from tests.maintainer.fleet import parts

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

TEXTS = ("%00", "%ED%A0%80", "%F0%90%80", "x" * 5000, "9" * 30, "-9223372036854775809", "2147483648", "4294967296")
"""NUL, halves of characters, and numbers beyond 32 and 64 bits, as in addresses and forms."""

JSON_TEXTS = ("a\\u0000b", "a\\ud800", "a" * 100_000)

ADDRESSES = (
    *("/runs/{}", "/runs/{}/trajectories", "/nodes/{}", "/nodes/{}/drain", "/pools/{}", "/launches/{}", "/events/{}"),
    *("/pools/eu/plans/{}", "/maintainer/proposals/{}", "/runs/1/trajectories/{}", "/runs/1/groups/{}"),
    *("/settings/users/{}/disable", "/settings/tokens/{}/revoke", "/runs/compare?run=1&run={}", "/?event={}"),
    *("/decisions?before={}&pool={}&actor={}&text={}", "/audit?before={}&actor={}&text={}&since={}", "/search?q={}"),
    *("/runs?owner={}&q={}&page={}", "/events?before={}&about={}&kind={}", "/maintainer/transcript?wake={}&before={}"),
    *("/login?next={}&token={}", "/api/v1/runs/{}", "/api/v1/runs/{}/trajectories", "/api/v1/runs/1/groups/{}"),
    *("/api/v1/nodes/{}", "/api/v1/launches/{}", "/api/v1/launches/{}/log", "/api/v1/decisions?pool={}&actor={}"),
    *("/api/v1/instances?pool={}&before={}", "/api/v1/audit?actor={}&before={}", "/api/v1/audit.csv?text={}"),
    *("/api/v1/series.csv?policy={}&run_id={}", "/api/v1/maintainer/transcript?wake={}&before={}"),
)

FORMS = (
    *("/login", "/pools/eu/hold", "/pools/eu/plans", "/pools/eu/spec", "/kill", "/nodes/drain"),
    *("/settings/users", "/settings/tokens", "/settings/grants", "/settings/audit", "/maintainer/mode", "/runs/new"),
)
FIELDS = (
    *("name", "reason", "minutes", "days", "target", "key", "password", "run", "user", "holder", "pool", "node"),
    *("address", "engine", "recipe", "back", "observed_version", "max_nodes"),
)

BODIES = (
    ("POST", "/api/v1/pools/eu/hold", '{"minutes": 10, "reason": "%s"}'),
    ("POST", "/api/v1/pools/eu/plans", '{"target": 3, "reason": "%s"}'),
    ("PUT", "/api/v1/kill-switch", '{"scope": "agents", "reason": "%s"}'),
    ("POST", "/api/v1/users", '{"name": "bob", "role": "viewer", "reason": "%s"}'),
    ("POST", "/api/v1/grants", '{"user": "%s", "role": "operator", "run": "r", "reason": "x"}'),
    ("POST", "/api/v1/nodes/n0/drain", '{"reason": "%s"}'),
    ("POST", "/api/v1/launch-preview", '{"recipe": "smoke", "set": {"seed": "%s"}}'),
    ("PUT", "/api/v1/maintainer/mode", '{"mode": "shadow", "reason": "%s"}'),
)


@pytest.fixture(params=["sqlite", "postgresql"])
async def admin(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """Browser on a page with a fleet, whose databases are both SQLite or both PostgreSQL."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)
    monkeypatch.setattr("web.service.Catalogue", FakeCatalogue)
    url = request.getfixturevalue("empty_postgres") if request.param == "postgresql" else ""
    ledger = open_ledger(tmp_path / "ledger", separate_schema(url, "fleet") if url else "")
    monkeypatch.setattr(parts, "memory_database", lambda: ledger)
    limits = {"reads_a_minute": 10**6, "changes_a_minute": 10**6, "exports_a_minute": 10**6}
    async with (
        FakeControlPlane(sequence=12).serving() as dataflow,
        running_fleet(tmp_path / "fleet", nodes=2) as fleet,
        running_web(tmp_path, dataflow, fleet=fleet.address, database=url, **limits) as web,
        web.logged_in() as client,
    ):
        await web.until_live(client)
        yield client
    ledger.close()


async def test_no_odd_input_is_an_internal_error(admin: httpx.AsyncClient) -> None:
    failures = []
    for text in TEXTS:
        for address in ADDRESSES:
            answer = await admin.get(address.replace("{}", text))
            failures += [(answer.status_code, address, text[:30])] if answer.status_code in (500, 502) else []
        for path in FORMS:
            content = "&".join(f"{name}={text}" for name in FIELDS) + "&role=viewer&scope=all"
            headers = {"content-type": "application/x-www-form-urlencoded"}
            answer = await admin.post(path, content=content, headers=headers)
            failures += [(answer.status_code, path, text[:30])] if answer.status_code in (500, 502) else []
    assert failures == []


async def test_texts_that_no_database_stores_are_refused_where_they_enter(admin: httpx.AsyncClient) -> None:
    for text in JSON_TEXTS:
        for method, path, body in BODIES:
            headers = {"content-type": "application/json", "idempotency-key": f"{path}-{hash(text)}"}
            answer = await admin.request(method, path, content=body % text, headers=headers)
            assert answer.status_code == 422, (path, text[:30], answer.text)
            assert answer.json()["fields"], "the field is named"


async def test_numbers_and_names_that_do_not_exist_are_answered_alike(admin: httpx.AsyncClient) -> None:
    expected = {"/runs/2147483647": 404, "/runs/2147483648": 422, "/pools/%00": 404, "/nodes/%00": 404}
    expected |= {"/launches/x%00y": 404, "/decisions?pool=%00": 200, "/api/v1/instances?pool=%00": 422}
    assert {address: (await admin.get(address)).status_code for address in expected} == expected
    reply = await admin.post("/pools/eu/hold", data={"minutes": "10", "reason": "a\0b", "key": "k"})
    assert reply.status_code == 303
    journal = (await admin.get("/api/v1/decisions")).json()["items"]
    assert journal[0]["reason"] == "a\N{REPLACEMENT CHARACTER}b"
