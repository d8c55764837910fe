"""Settings that a launch may not override: recipes and admins set paths, addresses, variables and bounds."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.recipe.loading import load_recipe, snapshot
from tests.fakes.launching import FakeLauncher
from tests.fakes.web import shown_secret
from tests.web.launches.test_launching_fleets import EVERYWHERE, HERE, page_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.timeout(600)]

CANARY = "canary-of-the-page"
PREVIEW = "/api/v1/launch-preview"

SKY = """
extends = "smoke"
name = "sky"
fleet.providers.sky = { kind = "skypilot", endpoint = "http://127.0.0.1:9", token_variable = "NO_SUCH_TOKEN" }
fleet.pools.gpu = { provider = "sky", min_nodes = 1, max_nodes = 4 }
"""

ROLES = ("agent", "operator", "admin")


class Endpoint:
    """Server on loopback that no recipe names. Records the headers of every request."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.headers: list[dict[str, str]] = []


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Serves until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake_endpoint.headers.append(dict(self.headers))
            self.send_response(401)
            self.end_headers()

        do_POST = do_GET  # noqa: N815 (name that the server calls)

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake_endpoint = Endpoint(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield fake_endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with recipes that have providers. Runs end at once, and the page's environment has a secret."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MOON_API_KEY", CANARY)
    monkeypatch.setattr("web.service.Launcher", FakeLauncher)
    folder = tmp_path / "recipes"
    folder.mkdir(mode=0o755)
    for name, text in {"here": HERE, "sky": SKY}.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


@asynccontextmanager
async def page(tmp_path: Path, **settings: Any) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Serves a page; yields a client for each role that may launch."""
    known = {"recipes": (tmp_path / "recipes",), "join_host": EVERYWHERE, "join_name": "runs.example.org"}
    async with (
        page_of(tmp_path, **(known | settings)) as (web, admin),
        web.in_role(admin, "operator") as operator,
        web.in_role(admin, "agent") as agent,
    ):
        operator.timeout = agent.timeout = httpx.Timeout(200)
        yield {"admin": admin, "operator": operator, "agent": agent}


async def entries(admin: httpx.AsyncClient, **wanted: str) -> list[dict[str, Any]]:
    """Returns the audit entries with these values, newest first."""
    lines = (await admin.get("/audit.ndjson")).text.splitlines()
    audit_entries = [json.loads(line) for line in lines]
    return [entry for entry in audit_entries if all(entry[name] == value for name, value in wanted.items())]


async def launch(client: httpx.AsyncClient, key: str, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": f"key-{key}"}
    return await client.post("/api/v1/launches", json={"reason": "a look", **body}, headers=headers)


@pytest.mark.long
async def test_overrides_cannot_send_a_secret_of_the_page_to_another_endpoint(tmp_path: Path) -> None:
    with endpoint() as stranger:
        settings = {
            "fleet.providers.sky.endpoint": stranger.address,
            "fleet.providers.sky.token_variable": "MOON_API_KEY",
        }
        form = {"recipe": "sky", "fleet": "on", **{f"set.{key}": value for key, value in settings.items()}}
        async with page(tmp_path) as clients:
            for role in ROLES:
                client = clients[role]
                answer = await client.post(PREVIEW, json={"recipe": "sky", "set": settings, "fleet": True})
                assert answer.status_code == 403, (role, answer.text)
                assert "fleet.providers.sky.endpoint" in answer.json()["detail"]
                for path in ("/runs/new", "/runs/new/preview", "/runs/new/preflight"):
                    checked = await client.post(path, data={**form, "check": "1"})
                    assert checked.status_code == 403, (role, path)
                assert (await launch(client, role, recipe="sky", set=settings)).status_code == 403, role
                refused = await entries(clients["admin"], actor=refused_name(role), result="refused")
                assert {entry["action"] for entry in refused} == {"run.preview", "run.preflight", "run.launch"}, role
                assert all(stranger.address in entry["after"] for entry in refused if "sky" in entry["target"])
            assert (await clients["admin"].get("/api/v1/launches")).json()["total"] == 0
    assert stranger.headers == []


def refused_name(role: str) -> str:
    """Returns the name of a role's user in the audit log."""
    return "admin" if role == "admin" else f"some-{role}"


async def test_a_link_runs_no_preflight_check_and_sets_no_field(tmp_path: Path) -> None:
    with endpoint() as stranger:
        query = {
            "recipe": "sky",
            "fleet": "on",
            "set.fleet.providers.sky.endpoint": stranger.address,
            "set.fleet.providers.sky.token_variable": "MOON_API_KEY",
        }
        async with page(tmp_path) as clients:
            for role in ROLES:
                for path in ("/runs/new/preflight", "/runs/new/preview"):
                    assert (await clients[role].get(path, params=query)).status_code == 405, (role, path)
                shown = await clients[role].get("/runs/new", params=query)
                assert shown.status_code == 200
                assert stranger.address not in shown.text, "a link sets no field"
    assert stranger.headers == []


async def test_a_preview_from_another_site_or_without_the_form_token_is_refused(tmp_path: Path) -> None:
    async with page(tmp_path) as clients:
        client = clients["operator"]
        form = {"recipe": "smoke"}
        for path in ("/runs/new/preview", "/runs/new/preflight"):
            elsewhere = {"origin": "https://evil.example.org"}
            assert (await client.post(path, data=form, headers=elsewhere)).status_code == 403, path
            assert (await client.post(path, data=form, headers={"x-form-token": "guessed"})).status_code == 403, path
            assert (await client.post(path, data=form)).status_code == 200, path


@pytest.mark.long
async def test_only_admins_raise_limits_and_no_role_sets_paths(tmp_path: Path) -> None:
    raised = {"fleet.pools.eu.max_nodes": 9, "fleet.limits.nodes": 50, "fleet.budget.usd_per_day_max": 1000}
    paths = {
        "tracing.to": "http://203.0.113.9:4318",
        "nodes.credential_folder": "/kept",
        "nodes.engine.speed_factor_file": "/etc/hostname",
    }
    async with page(tmp_path) as clients:
        for role in ("agent", "operator"):
            refused = await launch(clients[role], f"bounds-{role}", recipe="here", set=raised)
            assert (refused.status_code, [key in refused.text for key in raised]) == (403, [True] * 3), role
        assert (await launch(clients["admin"], "bounds", recipe="here", set=raised)).status_code == 201
        refused = await launch(clients["admin"], "paths", recipe="smoke", set=paths)
        assert (refused.status_code, [key in refused.text for key in paths]) == (403, [True] * 3)
        steps = {"recipe": "smoke", "set": {"stop.steps": 7}, "limit_s": 60}
        planned = (await clients["agent"].post("/api/v1/launch-preview", json=steps)).json()["plan"]
        assert (await launch(clients["agent"], "steps", **steps, plan=planned)).status_code == 201


@pytest.mark.long
async def test_files_outside_the_data_folders_are_refused_also_in_clones(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret.jsonl"
    data.mkdir()
    for file in (data / "own.jsonl", secret):
        file.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    (data / "link.jsonl").symlink_to(secret)
    jsonl = {"flows.train.dataset.kind": "jsonl"}
    async with page(tmp_path, data=(str(data),)) as clients:
        operator = clients["operator"]
        settings = {**jsonl, "flows.train.dataset.path": str(data / "own.jsonl")}
        started = await launch(operator, "own", recipe="smoke", set=settings)
        assert started.status_code == 201, started.text
        snapshot_of(tmp_path, started.json()["name"])
        for number, path in enumerate((secret, data / "link.jsonl")):
            settings = {**jsonl, "flows.train.dataset.path": str(path)}
            refused = await launch(operator, f"bad-{number}", recipe="smoke", set=settings)
            assert refused.status_code == 403, path
            assert "--data" in refused.json()["detail"], "the error has advice"
            clone = await launch(operator, f"clone-{number}", of=started.json()["name"], set=settings)
            assert clone.status_code == 403, path
        assert (await launch(operator, "clone", of=started.json()["name"], set={"seed": 3})).status_code == 201
        assert len(await entries(clients["admin"], action="run.launch", result="refused")) == 4


def snapshot_of(tmp_path: Path, name: str, *overrides: str, recipe: str = "smoke") -> None:
    """Writes the snapshot that a real process of the run would write."""
    recipe_location = recipe if recipe == "smoke" else str(tmp_path / "recipes" / f"{recipe}.toml")
    (tmp_path / "home" / "runs" / name / "recipe.json").write_text(snapshot(load_recipe(recipe_location, overrides)))


async def test_only_admins_clone_a_run_with_raised_limits(tmp_path: Path) -> None:
    async with page(tmp_path) as clients:
        admin, operator = clients["admin"], clients["operator"]
        raised = {"fleet.pools.eu.max_nodes": 9}
        first = (await launch(admin, "raised", recipe="here", set=raised)).json()["name"]
        snapshot_of(tmp_path, first, "fleet.pools.eu.max_nodes=9", recipe="here")
        for role in ("operator", "agent"):
            assert (await launch(clients[role], f"no-{role}", of=first)).status_code == 403
            assert (await clients[role].post("/runs/new", data={"of": first})).status_code == 403
        second = (await launch(admin, "again", of=first)).json()["name"]
        snapshot_of(tmp_path, second, "fleet.pools.eu.max_nodes=9", recipe="here")
        assert (await launch(operator, "second", of=second)).status_code == 403, "cloning a clone does not raise limits"


@pytest.mark.long
async def test_an_admins_token_with_a_lower_scope_cannot_raise_limits(tmp_path: Path) -> None:
    async with page_of(tmp_path, recipes=(tmp_path / "recipes",)) as (web, admin):
        token_response = await admin.post("/settings/tokens", data={"name": "small", "scope": "operator", "days": "1"})
        async with web.client() as program:
            program.timeout = httpx.Timeout(200)
            program.headers["authorization"] = f"Bearer {shown_secret(token_response)}"
            raised = await launch(program, "raised", recipe="here", set={"fleet.pools.eu.max_nodes": 9})
            assert raised.status_code == 403
            assert (await launch(program, "steps", recipe="here", set={"stop.steps": 7})).status_code == 201


@pytest.mark.long
async def test_the_form_disables_fields_that_the_user_may_not_set(tmp_path: Path) -> None:
    async with page(tmp_path) as clients:
        for role, is_shut in (("operator", True), ("admin", False)):
            form = (await clients[role].get("/runs/new", params={"recipe": "here"})).text
            assert (" disabled" in field_of(form, "fleet.pools.eu.max_nodes")) is is_shut, role
            assert " disabled" in field_of(form, "fleet.pools.eu.provider")
            assert " disabled" not in field_of(form, "stop.steps")


def field_of(form: str, key: str) -> str:
    """Returns the tag of a setting's control after its name."""
    return form.partition(f'name="set.{key}"')[2].partition(">")[0]
