"""Access to the page. Several tests have the names of vulnerabilities in other dashboards."""

import asyncio
import html
import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from markupsafe import escape
from starlette.routing import Route
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from astraflow.contract.errors import Unavailable
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.web import RunningWeb, shown_secret
from tests.web.page_elements import notice_after, parsed
from web.accounts.accounts import Accounts
from web.app import ROUTES
from web.security.problems import CODE_HEADER
from web.security.request_bodies import READ_METHODS

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli")]

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}"


@pytest.mark.long
async def test_strict_headers_are_on_every_answer(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for path in ("/", "/login", "/nope", "/api/v1/report", "/healthz", "/runs/word"):
            headers = (await client.get(path)).headers
            policy = dict(part.split(maxsplit=1) for part in headers["content-security-policy"].split(";"))
            assert policy["default-src"] == "'self'"
            assert "unsafe" not in headers["content-security-policy"]
            assert policy["frame-ancestors"] == "'none'"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in headers


@pytest.mark.long
async def test_pages_have_no_inline_script_style_or_handler(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        for path in ("/", "/nodes", "/runs", "/login", "/charts/reward"):
            page = (await client.get(path)).text
            scripts = [part.split(">", 1)[0] for part in page.split("<script")[1:]]
            assert all("src=" in script or "application/json" in script for script in scripts)
            assert "style=" not in page
            assert "<style" not in page
            assert " on" not in " ".join(
                tag.split(">", 1)[0] for tag in page.split("<")[1:] if tag.startswith("button")
            )


async def test_unknown_host_names_are_refused_whatever_the_port(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "evil.example:80", ""):
            answer = await client.get("/", headers={"host": host})
            assert answer.status_code in (400, 421)
            assert "reverse-0001" not in answer.text
        for host in ("localhost", "localhost:9999", "127.0.0.1", "[::1]:80"):
            assert (await client.get("/healthz", headers={"host": host})).status_code == 200


async def test_writes_from_pages_of_other_sites_are_refused(web: RunningWeb, fake: FakeControlPlane) -> None:
    forged: list[dict[str, str]] = [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {},
    ]
    async with web.logged_in() as client:
        del client.headers["origin"]
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for headers in forged:
                assert (await client.request(method, "/nodes/n0/drain", headers=headers)).status_code == 403

    assert fake.actions == []


@pytest.mark.long
async def test_a_form_needs_the_form_token_of_its_session(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "operator") as other:
        good = admin.headers.pop("x-form-token")
        for wrong in ("", "made up", other.headers["x-form-token"], good[:-1], "é"):
            answer = await admin.post("/nodes/n0/drain", data={"form_token": wrong})
            assert answer.status_code == 403
            assert answer.headers[CODE_HEADER] == "request.wrong_form_token"
        assert (await admin.post("/nodes/n0/drain", json={"form_token": good})).status_code == 403
        assert (await admin.post("/nodes/n0/drain", files={"form_token": (None, good)})).status_code == 403
        assert fake.actions == []
        assert (await admin.post("/nodes/n0/drain", data={"form_token": good})).status_code == 303
    assert fake.actions == [("drain", "n0", "admin")]


async def test_pages_change_nothing_show_no_secrets_escape_texts_and_protect_their_forms(
    web: RunningWeb, fake: FakeControlPlane, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One test, because reading all pages takes most of its time."""
    caplog.set_level("DEBUG")
    for other in ("httpx", "httpcore", "uvicorn.access"):  # the test's own requests; a log that only pytest captures
        caplog.set_level("CRITICAL", other)
    async with web.logged_in() as admin:
        await web.until_live(admin, sequence=150)
        await admin.post("/flows/train/pause")
        await fake.advance()
        await web.until_live(admin, sequence=151)
        secrets = await used_secrets(web, admin)
        refused = await sent_hostile_texts(web, admin)
        fake.actions.clear()
        await asyncio.sleep(2.5)  # the recorder writes every two seconds
        before = contents(web.directory)
        pages = await crawl(admin)
        after = contents(web.directory)
        audit = (await admin.get("/audit.ndjson")).text + (await admin.get("/audit.csv")).text
        response = await admin.get("/audit", params={"text": HOSTILE, "actor": HOSTILE})
        form_token = admin.headers["x-form-token"]

    assert before == after
    assert fake.actions == []
    assert {"/settings", "/audit", "/runs", "/nodes", "/settings/users/2/disable"} <= set(pages)

    forms = [form.partition("</form>")[0] for page in pages.values() for form in page.split("<form")[1:]]
    posting = [form for form in forms if 'method="post"' in form]
    assert len(posting) > 20
    assert all(form_token in form for form in posting)

    out, err = capfd.readouterr()
    texts_by_source = {"pages": " ".join(pages.values()), "log": out + err + caplog.text, "audit": audit}
    assert "[secret]" in audit
    for resource, text in texts_by_source.items():
        assert not [secret for secret in secrets if secret in text], resource

    shown = [page for page in (*pages.values(), refused, response.text) if page.startswith("<!doctype html>")]
    assert len(shown) > 10
    for page in shown:
        assert "<img" not in page
        assert "49" not in page.partition("onerror")[2][:20]
    assert escape(HOSTILE) in pages["/audit"]
    assert "&lt;img" in pages["/settings"]


async def used_secrets(web: RunningWeb, admin: httpx.AsyncClient) -> list[str]:
    """Uses a password, a token, a login link and sessions, also wrongly; returns all of them."""
    password = "canary of a password"
    link = shown_secret(await admin.post("/settings/users", data={"name": "bob", "role": "admin"}))
    token = shown_secret(await admin.post("/settings/tokens", data={"name": "t", "scope": "admin", "days": "1"}))
    await admin.post("/settings/password", data={"new": password})
    await admin.post("/nodes/n0/drain", data={"reason": f"see {token} and {link}"})
    async with web.client() as client:
        client.headers["origin"] = web.address
        assert (await client.get(link)).status_code == 303
        by_name = await client.post("/login", data={"name": "admin", "password": password})
        assert by_name.status_code == 303
        await client.post("/login", data={"name": password, "password": password})
        await client.get("/nowhere", headers={"authorization": f"Bearer {token}"})
        cookies = [*client.cookies.values(), *admin.cookies.values()]
    return [password, token, link.partition("token=")[2], TOKEN, web.login_url.partition("token=")[2], *cookies]


async def sent_hostile_texts(web: RunningWeb, admin: httpx.AsyncClient) -> str:
    """Sends HTML as names, reasons and user agent; returns the page of a refused login."""
    await admin.post("/nodes/n0/drain", data={"reason": HOSTILE})
    await admin.post("/settings/tokens", data={"name": HOSTILE, "scope": "viewer", "days": "1"})
    admin.headers["user-agent"] = HOSTILE
    refused_name = await admin.post("/settings/users", data={"name": HOSTILE, "role": "admin"})
    assert (await notice_after(admin, refused_name))["data-code"] == "account.invalid_name"
    async with web.client() as client:
        client.headers.update({"origin": web.address, "user-agent": HOSTILE})
        return (await client.post("/login", data={"name": HOSTILE, "password": "x", "next": HOSTILE})).text


async def test_large_bodies_and_headers_are_refused(web: RunningWeb, fake: FakeControlPlane) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    async with web.logged_in() as client:
        for body in (b"x" * (1024 * 1024 + 1), endless()):
            assert (await client.post("/nodes/n0/drain", content=body)).status_code == 413
        assert (await client.get("/", headers={"x-long": "x" * 20_000})).status_code == 431
        assert (await client.get("/", headers={f"x-{n}": "x" for n in range(120)})).status_code == 431
        assert (await client.get("/api/v1/session")).status_code == 200
    assert fake.actions == []


async def test_requests_during_an_outage_of_the_database_are_answered_with_its_cause(
    web: RunningWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object, **__: object) -> None:
        raise Unavailable("cannot reach the database 'db': refused", code="database.unreachable")

    async with web.logged_in() as client:
        monkeypatch.setattr(Accounts, "viewer", unreachable)
        for path in ("/", "/api/v1/session"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "cannot reach the database" in answer.text
        assert answer.json()["code"] == "database.unreachable"


async def test_a_websocket_from_another_site_is_refused_despite_a_valid_cookie(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        token = shown_secret(await client.post("/settings/tokens", data={"name": "x", "scope": "viewer", "days": "1"}))
    address = web.address.replace("http://", "ws://") + "/live"
    for origin in ("https://evil.example", "null", web.address.replace("127.0.0.1", "localhost"), None):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, origin=origin, additional_headers={"cookie": cookie}):  # type: ignore[arg-type] # a str
                pass
        assert refused.value.response.status_code == 403
    async with connect(address, additional_headers={"authorization": f"Bearer {token}"}) as program:
        assert await program.recv(), "programs send a header that browsers do not"
    headers = {"authorization": f"Bearer {token}"}
    with pytest.raises(InvalidStatus):
        async with connect(address, origin="https://evil.example", additional_headers=headers):  # type: ignore[arg-type] # a str
            pass


@pytest.mark.long
async def test_every_route_needs_a_login_by_default(web: RunningWeb) -> None:
    """All routes except declared ones require a login, unknown addresses too. Ray's job API and Flower were open."""
    async with web.client() as client:
        client.headers["origin"] = web.address
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            for path in (
                "/",
                "/settings",
                "/audit.csv",
                "/docs",
                "/openapi.json",
                "/metrics",
                "/api/jobs",
                "/x/../nodes",
            ):
                answer = await client.request(method, path)
                is_sent_to_log_in = answer.status_code == 303 and answer.headers["location"].startswith("/login")
                assert is_sent_to_log_in or answer.status_code == 401, (method, path, answer.status_code)


async def test_failed_logins_are_limited_for_their_address_only(web: RunningWeb) -> None:
    async with web.client() as client:
        client.headers["origin"] = web.address
        for _ in range(10):
            answer = await client.post("/login", data={"name": "admin", "password": "guess"})
            assert answer.status_code == 403
        assert (await client.post("/login", data={"name": "admin", "password": "guess"})).status_code == 429
        assert (await client.get(web.login_url)).status_code == 429, "links too"
        web.clock.push(61)
        assert (await client.get(web.login_url)).status_code == 303


@pytest.mark.long
async def test_every_action_is_audited_whatever_its_result(
    web: RunningWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit log has the completed, failed and refused requests of every route that changes state."""
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))  # the test launches a run there for a second
    acting = [
        (route.path, method)
        for route in ROUTES
        if isinstance(route, Route)
        for method in (route.methods or set()) - set(READ_METHODS)
        if route.path not in ("/theme", "/runs/watch", "/login", "/logout")  # cookies; other tests cover logins
        and not route.path.startswith(("/pools", "/kill", "/maintainer", "/api/v1/"))  # see test_fleet_audit
    ]
    good = {
        "/nodes/{node:path}/drain": ("/nodes/n0/drain", {}),
        "/nodes/drain": ("/nodes/drain", {"node": "n1"}),
        "/flows/{flow:path}/pause": ("/flows/train/pause", {}),
        "/flows/{flow:path}/resume": ("/flows/train/resume", {}),
        "/flows/{flow:path}/plugins": (
            "/flows/train/plugins",
            {"filters_on": "0", "filters_kind": "keep_all", "filters_options": ""},
        ),
        "/policies/{policy:path}/sampler": (
            "/policies/solver/sampler",
            {"sampler_kind": "replay", "sampler_options": '{"ratio": 0.2}'},
        ),
        "/runs/new": ("/runs/new", {"recipe": "smoke", "limit_s": "1"}),
        "/runs/new/preview": ("/runs/new/preview", {"recipe": "smoke"}),
        "/runs/new/preflight": ("/runs/new/preflight", {"recipe": "smoke"}),
        "/launches/{name}/stop": ("/launches/none/stop", {}),
        "/launches/{name}/resume": ("/launches/none/resume", {}),
        "/settings/password": ("/settings/password", {"new": "a long password"}),
        "/settings/tokens": ("/settings/tokens", {"name": "x", "scope": "viewer", "days": "1"}),
        "/settings/tokens/{token_id}/revoke": ("/settings/tokens/1/revoke", {}),
        "/settings/sessions/{session}/revoke": ("", {}),
        "/settings/users": ("/settings/users", {"name": "bob", "role": "viewer"}),
        "/settings/users/{user_id}/link": ("/settings/users/2/link", {}),
        "/settings/users/{user_id}/role": ("/settings/users/2/role", {"role": "operator"}),
        "/settings/users/{user_id}/disable": ("/settings/users/2/disable", {}),
        "/settings/users/{user_id}/enable": ("/settings/users/2/enable", {}),
        "/settings/grants": ("/settings/grants", {"holder": "3", "role": "operator", "resource": "a-run"}),
        "/settings/grants/{grant_id}/revoke": ("/settings/grants/1/revoke", {}),
        "/settings/retention": ("/settings/retention", {"days": "90"}),
        "/settings/providers/{provider:path}/preflight": ("/settings/providers/none/preflight", {}),
    }
    assert set(good) == {path for path, _ in acting}
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="eve") as eve:
        for declared, (path, data) in good.items():
            if declared == "/settings/sessions/{session}/revoke":
                page = (await admin.get("/settings")).text
                path = "/settings/sessions/" + page.partition("/settings/sessions/")[2].partition('"')[0]
            before = len((await admin.get("/audit.ndjson")).text.splitlines())
            answer = await admin.post(
                path.replace("/2/", "/3/"), data={**data, "reason": "because", "actor": "mallory"}
            )
            assert answer.status_code in (200, 303), declared
            entry = json.loads((await admin.get("/audit.ndjson")).text.splitlines()[0])
            result = "failed" if declared.startswith(("/launches/", "/settings/providers/")) else "done"
            assert (entry["sequence"], entry["actor"], entry["result"]) == (before + 1, "admin", result), declared
        await eve.get("/settings")
        assert (await eve.get("/api/v1/session")).status_code == 401, "only her session was ended"
        refused = await web_viewer(web, admin)
        entry = json.loads((await admin.get("/audit.ndjson?result=refused")).text.splitlines()[0])
        assert refused == 403
        assert (entry["actor"], entry["target"].split()) == ("zoe", ["POST", "/nodes/n0/drain"])


async def web_viewer(web: RunningWeb, admin: httpx.AsyncClient) -> int:
    async with web.in_role(admin, "viewer", name="zoe") as zoe:
        return (await zoe.post("/nodes/n0/drain")).status_code


MOST_ALIKE = 2
"""Pages of one kind that `crawl` reads."""


async def crawl(client: httpx.AsyncClient) -> dict[str, str]:
    """Follows the links from the front page; returns the pages by path. Logging out is a form, not a link.

    Of pages that differ only in numbers and in the values of their query, it reads `MOST_ALIKE`.
    """
    pages: dict[str, str] = {}
    counts: Counter[str] = Counter()
    waiting = ["/"]
    while waiting:
        path = waiting.pop().partition("#")[0]
        kind = re.sub(r"\d+", "0", re.sub(r"=[^&]*", "", path))
        if path in pages or counts[kind] == MOST_ALIKE or path.startswith("/static/"):
            continue
        counts[kind] += 1
        answer = await client.get(path)
        if answer.status_code == 303:
            waiting.append(answer.headers["location"])  # such as the trajectories of the followed run
            continue
        assert answer.status_code in (200, 503), (path, answer.status_code)
        pages[path] = answer.text
        if answer.headers["content-type"].startswith("text/html"):
            links = re.findall(r'\s(?:href|hx-get)="(/[^"]*)"', answer.text)
            waiting += [html.unescape(link) for link in links]
    return pages


def contents(directory: Path) -> str:
    """Returns the database as SQL, without run records."""
    with closing(sqlite3.connect(directory / "web.sqlite")) as connection:
        return "\n".join(line for line in connection.iterdump() if "run_records" not in line)


@pytest.mark.long
async def test_get_requests_never_change_anything(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        for path in ("/nodes/n0/drain", "/flows/train/pause"):
            assert (await client.get(path)).status_code == 200
        for path in ("/flows/train/resume", "/logout", "/theme"):
            assert (await client.get(path)).status_code in (404, 405)
        assert (await client.get("/api/v1/session")).status_code == 200, "no session was ended"

    assert fake.actions == []


async def test_answers_without_a_login_contain_nothing_of_the_run(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.client() as client:
        for path in ("/", "/runs", "/runs/1", "/nodes", "/charts/reward"):
            answer = await client.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/login?next=/")
        for path in ("/api/v1/report", "/api/v1/series.csv", "/api/v1/session"):
            assert (await client.get(path)).status_code == 401
        posted = await client.post("/nodes/n0/drain", headers={"origin": web.address})
        assert posted.status_code == 401
        health = (await client.get("/healthz")).json()

    assert fake.actions == []
    assert set(health) == {"status", "feed", "data_age_s"}


async def test_a_form_without_a_session_gets_the_way_back_to_its_page_and_nothing_of_the_run(web: RunningWeb) -> None:
    pages = {
        f"{web.address}/pools/eu?range=1h": "/login?next=/pools/eu%3Frange%3D1h",
        f"{web.address}//evil.example/x": "/login?next=/",
        "": "/login?next=/",
    }
    async with web.client() as client:
        for referer, login in pages.items():
            headers = {"origin": web.address, "referer": referer}
            plain = await client.post("/pools/eu/hold", headers=headers, data={"reason": "canary"})
            assert (plain.status_code, plain.headers["astraflow-error-code"]) == (401, "login.session_ended")
            assert f'href="{login}"' in plain.text
            assert "reverse-0001" not in plain.text
            assert "canary" not in plain.text
            swapped = await client.post("/pools/eu/hold", headers=headers | {"hx-request": "true"})
            assert (swapped.status_code, swapped.headers["hx-redirect"]) == (401, login)
        assert client.cookies["astraflow_typed"] == "1"


@pytest.mark.long
async def test_a_login_link_works_once_and_only_in_one_browser(web: RunningWeb) -> None:
    async with web.logged_in() as first, web.client() as second:
        again = await second.get(web.login_url)
        refused = await second.get("/api/v1/session")
        same_browser = await first.get(web.login_url)

    assert again.status_code == 403
    assert "works once" in again.text
    assert refused.status_code == 401
    assert same_browser.status_code == 303, "logged-in users are redirected"


async def test_a_prefetch_or_image_request_does_not_consume_the_login_link(web: RunningWeb) -> None:
    async with web.client() as client:
        for headers in ({"sec-purpose": "prefetch"}, {"sec-fetch-dest": "image"}):
            assert (await client.get(web.login_url, headers=headers)).status_code == 403
        assert (await client.head(web.login_url)).status_code == 405
        assert (await client.get(web.login_url)).status_code == 303


@pytest.mark.long
async def test_the_session_cookie_is_for_this_site_and_no_script(web: RunningWeb) -> None:
    async with web.client() as client:
        cookie = (await client.get(web.login_url)).headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Max-Age=43200" in cookie
    assert "Secure" not in cookie, "loopback is plain HTTP"


@pytest.mark.long
async def test_a_logout_invalidates_copies_of_the_cookie(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        cookie = dict(client.cookies)
        assert (await client.post("/logout")).headers["location"] == "/login"
        async with httpx.AsyncClient(base_url=web.address, cookies=cookie) as thief:
            assert (await thief.get("/api/v1/session")).status_code == 401


@pytest.mark.long
async def test_a_session_expires(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        web.clock.push(12 * 3600 + 1)
        assert (await client.get("/api/v1/session")).status_code == 401


@pytest.mark.long
async def test_a_login_redirects_to_no_other_site(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for target in ("//evil.example", "https://evil.example", "/\\evil.example", "/\tx"):
            answer = await client.get("/login", params={"next": target})
            assert answer.headers["location"] == "/"


@pytest.mark.long
async def test_actions_have_the_actor_of_the_session_and_a_notice_with_the_result(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        drained = await client.post("/nodes/n0/drain", data={"reason": "slow", "actor": "mallory"})
        page = await client.get(drained.headers["location"])
        paused = await client.post("/flows/train/pause", data={})
        resumed = await client.post("/flows/train/resume", data={})
        unknown = await client.post("/nodes/unknown/drain", data={})
        response = await client.get(unknown.headers["location"])
        again = await client.get("/nodes")

    assert fake.actions == [("drain", "n0", "admin"), ("paused", "train", "admin"), ("resumed", "train", "admin")]
    notice = parsed(page).one("#flash")
    assert (notice.tone, "n0" in notice.text.split()) == ("good", True)
    assert paused.status_code == resumed.status_code == 303
    notice = parsed(response).one("#flash")
    assert (notice.tone, notice["data-code"]) == ("bad", "unknown_node")
    assert "unknown" in notice.text
    assert not parsed(again).has("#flash"), "a notice is shown once"
