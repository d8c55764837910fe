"""Whom the page lets in. Several tests are named after holes that other dashboards had."""

import httpx
import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb

pytestmark = pytest.mark.anyio


async def test_strict_headers_are_on_every_answer(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for path in ("/", "/login", "/nope", "/api/report", "/healthz", "/runs/word"):
            headers = (await client.get(path)).headers
            assert headers["content-security-policy"].startswith("default-src 'self';")
            assert "unsafe" not in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in headers


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


async def test_dns_rebinding_is_refused_and_our_own_names_are_not_whatever_the_port(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "evil.example:80", ""):
            answer = await client.get("/", headers={"host": host})
            assert answer.status_code in (400, 421)
            assert "reverse-0001" not in answer.text
        for host in ("localhost", "localhost:9999", "127.0.0.1", "[::1]:80"):
            assert (await client.get("/healthz", headers={"host": host})).status_code == 200


async def test_every_unsafe_method_from_elsewhere_is_refused(web: RunningWeb, fake: FakeControlPlane) -> None:
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


async def test_a_get_never_acts(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as client:
        for path in ("/nodes/n0/drain", "/flows/train/pause"):
            assert (await client.get(path)).status_code == 200
        for path in ("/flows/train/resume", "/logout", "/theme"):
            assert (await client.get(path)).status_code in (404, 405)
        assert (await client.get("/api/session")).status_code == 200, "nobody was logged out"

    assert fake.actions == []


async def test_without_a_login_nothing_of_the_run_is_told(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.client() as client:
        for path in ("/", "/runs", "/runs/1", "/nodes", "/charts/reward"):
            answer = await client.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/login?next=/")
        for path in ("/api/report", "/api/series.csv", "/api/session"):
            assert (await client.get(path)).status_code == 401
        posted = await client.post("/nodes/n0/drain", headers={"origin": web.address})
        assert posted.status_code == 401
        health = (await client.get("/healthz")).json()

    assert fake.actions == []
    assert set(health) == {"status", "feed", "data_age_s"}


async def test_a_login_link_works_once_and_another_browser_gets_nothing(web: RunningWeb) -> None:
    async with web.logged_in() as first, web.client() as second:
        again = await second.get(web.login_url)
        refused = await second.get("/api/session")
        same_browser = await first.get(web.login_url)

    assert again.status_code == 403
    assert "works once" in again.text
    assert refused.status_code == 401
    assert same_browser.status_code == 303, "who is logged in already is just sent on"


async def test_a_prefetch_or_an_image_of_others_does_not_use_the_link_up(web: RunningWeb) -> None:
    async with web.client() as client:
        for headers in ({"sec-purpose": "prefetch"}, {"sec-fetch-dest": "image"}):
            assert (await client.get(web.login_url, headers=headers)).status_code == 403
        assert (await client.head(web.login_url)).status_code == 405
        assert (await client.get(web.login_url)).status_code == 303


async def test_the_session_cookie_is_for_this_site_and_no_script(web: RunningWeb) -> None:
    async with web.client() as client:
        cookie = (await client.get(web.login_url)).headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Max-Age=43200" in cookie
    assert "Secure" not in cookie, "loopback is plain HTTP"


async def test_a_session_ends_at_logout_wherever_its_cookie_is(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        cookie = dict(client.cookies)
        assert (await client.post("/logout")).headers["location"] == "/login"
        async with httpx.AsyncClient(base_url=web.address, cookies=cookie) as thief:
            assert (await thief.get("/api/session")).status_code == 401


async def test_an_old_session_is_over(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        web.clock.push(12 * 3600 + 1)
        assert (await client.get("/api/session")).status_code == 401


async def test_a_login_does_not_lead_elsewhere(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        for target in ("//evil.example", "https://evil.example", "/\\evil.example", "/\tx"):
            answer = await client.get("/login", params={"next": target})
            assert answer.headers["location"] == "/"


async def test_actions_carry_the_name_from_the_session_and_say_what_they_did(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as client:
        await web.until_live(client, sequence=150)
        drained = await client.post("/nodes/n0/drain", data={"reason": "slow", "actor": "mallory"})
        page = await client.get(drained.headers["location"])
        paused = await client.post("/flows/train/pause", data={})
        resumed = await client.post("/flows/train/resume", data={})
        unknown = await client.post("/nodes/nobody/drain", data={})
        told = await client.get(unknown.headers["location"])
        again = await client.get("/nodes")

    assert fake.actions == [("drain", "n0", "admin"), ("paused", "train", "admin"), ("resumed", "train", "admin")]
    assert "Node n0 finishes what it has, then leaves" in page.text
    assert paused.status_code == resumed.status_code == 303
    assert "The node was not drained: no node nobody is in the run" in told.text
    assert "not drained" not in again.text, "a sentence is told once"
