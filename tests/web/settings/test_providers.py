"""Providers on the settings page and in the API: configured, tested, absent and unavailable."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import RateLimited, Unavailable
from astraflow.contract.fleet.plans import Actor
from astraflow.contract.fleet.preflight import PreflightResult, ProviderFacts
from maintainer.fleet.providers.base import AuthError
from tests.fakes.cloud import CloudProvider, failing_once
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import RunningWeb, running_web, shown_secret
from tests.web.page_elements import Element, notice_after, parsed

pytestmark = pytest.mark.anyio

PATIENCE_S = 40.0
POLLING = "every 5s"
"""`hx-trigger` of a section that loads itself again."""

OTHER_RELEASE = "the service has another release"
HOSTILE = "<script>alert(1)</script>'\"&{{7*7}}"


@asynccontextmanager
async def page_over(
    fake: FakeControlPlane, tmp_path: Path, fleet: str
) -> AsyncIterator[tuple[RunningWeb, httpx.AsyncClient]]:
    async with (
        fake.serving() as dataflow,
        running_web(tmp_path, dataflow, fleet=fleet) as web,
        web.logged_in() as client,
    ):
        await web.until_connected()
        yield web, client


async def providers_section(client: httpx.AsyncClient, state: str = "connected", *, tone: str = "") -> Element:
    """Waits until the section has the state, and a provider of the tone: `off` before a preflight check.

    The page queries the fleet service once a second.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        section = parsed(await client.get("/settings")).one("#providers")
        if section["data-state"] == state and (not tone or section.has(f".state[data-tone={tone}]")):
            return section
        assert time.monotonic() < deadline, f"not {state}, {tone} within {PATIENCE_S:.0f} s: {section.text}"
        await asyncio.sleep(0.05)


async def audited(client: httpx.AsyncClient) -> list[dict[str, str]]:
    lines = (await client.get("/audit.ndjson?action=provider.preflight")).text.splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.long
async def test_without_a_fleet_service_the_page_shows_commands_to_start_one(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        section = await providers_section(client, "absent")
        api, tested = await client.get("/api/v1/providers"), await client.post("/api/v1/providers/here/preflight")
        notice = await notice_after(client, await client.post("/settings/providers/here/preflight"))
    commands = section.commands()
    assert ["astraflow", "run", "RECIPE", "--fleet"] in commands
    assert any(command[:3] == ["astraflow", "serve", "fleet"] and "--dataflow" in command for command in commands)
    assert (api.status_code, tested.status_code) == (503, 503)
    assert (notice.tone, notice["data-code"]) == ("bad", "fleet.not_configured")


@pytest.mark.long
async def test_the_page_retries_a_fleet_service_that_has_not_answered_yet(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with page_over(fake, tmp_path, "127.0.0.1:9") as (_, client):
        section = await providers_section(client, "connecting")
        assert section.one(".empty-title").texts("code") == ["127.0.0.1:9"]
        assert section["hx-trigger"] == POLLING
        assert (await client.get("/api/v1/providers")).status_code == 503


@pytest.mark.long
async def test_a_preflight_check_is_shown_and_audited_and_starts_nothing(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with (
        running_fleet(tmp_path / "fleet", nodes=1) as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        starts = fleet.parts.cloud.starts
        before = await providers_section(client, tone="off")
        assert before.texts("h3")[0].split()[0] == "cloud"
        assert before.links() == ["/pools/eu"]
        assert "hx-trigger" not in before
        notice = await notice_after(client, await client.post("/settings/providers/cloud/preflight"))
        assert (notice.tone, notice.numbers) == ("good", [3])
        after = await providers_section(client, tone="good")
        assert after.one(".state").numbers == [3]
        assert after.one("p[role=status]").texts("bdi") == ["admin"]
        checks = {check["data-check"]: check for check in after.all("li[data-check]")}
        assert {kind: check.tone for kind, check in checks.items()} == dict.fromkeys(
            ("list", "launch", "price"), "good"
        )
        assert checks["list"].numbers == [1]
        assert checks["launch"].texts("bdi")[0] == "eu"
        assert 1.0 in checks["price"].numbers
        assert fleet.parts.cloud.starts == starts
        (entry,) = await audited(client)
        assert (entry["target"], entry["actor"], entry["result"]) == ("cloud", "admin", "done")
        assert json.loads(entry["after"]) == {"checks": 3, "failed": 0}


async def test_a_failed_check_shows_a_remedy_and_escapes_the_message_of_the_provider(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with (
        running_fleet(tmp_path / "fleet", pool={"type": HOSTILE}) as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        await providers_section(client, tone="off")
        notice = await notice_after(client, await client.post("/settings/providers/cloud/preflight"))
        assert (notice.tone, notice.numbers) == ("bad", [1, 2])
        section = await providers_section(client, tone="bad")
        (failed,) = section.all("li[data-tone=bad]")
        assert failed["data-check"] == "launch"
        pool, message = failed.texts("bdi")
        assert pool == "eu"
        assert message.startswith("InvalidError: ")
        assert "<script>alert(1)</script>" in message
        assert failed.one("strong").text, "a remedy"
        assert "<script>alert" not in (await client.get("/settings")).text
        (entry,) = await audited(client)
        assert json.loads(entry["after"]) == {"checks": 2, "failed": 1}
        unknown = await notice_after(client, await client.post("/settings/providers/sky/preflight"))
        assert (unknown.tone, unknown["data-code"]) == ("bad", "fleet.unknown_provider")
        assert "'sky'" in unknown.text
        assert [entry["result"] for entry in await audited(client)] == ["failed", "done"]


@pytest.mark.long
async def test_users_without_the_role_see_the_role_that_a_check_needs(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (web, client),
        web.in_role(client, "viewer") as viewer,
        web.in_role(client, "operator") as operator,
    ):
        section = await providers_section(viewer, tone="off")
        needed = section.one(".needs-role")
        assert (needed["data-role"], needed.texts("bdi")) == ("operator", ["admin"])
        assert not section.has("form")
        assert (await viewer.post("/settings/providers/cloud/preflight")).status_code == 403
        assert not (await providers_section(operator, tone="off")).has(".needs-role")
        assert (await operator.post("/settings/providers/cloud/preflight")).status_code == 303
        assert (await audited(client))[0]["actor"] == "some-operator"


@pytest.mark.long
async def test_a_form_of_another_session_runs_no_check(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        await providers_section(client, tone="off")
        refused = await client.post("/settings/providers/cloud/preflight", headers={"x-form-token": "another's"})
        assert refused.status_code == 403
        await providers_section(client, tone="off")


async def test_a_fleet_service_that_stopped_is_shown_as_unavailable(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with AsyncExitStack() as serving:
        fleet = await serving.enter_async_context(running_fleet(tmp_path / "fleet"))
        async with page_over(fake, tmp_path, fleet.address) as (_, client):
            await providers_section(client, tone="off")
            await serving.aclose()
            section = await providers_section(client, "unreachable")
    assert section["hx-trigger"] == POLLING


@pytest.mark.long
async def test_a_fleet_service_that_fails_to_list_providers_is_retried(
    tmp_path: Path, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: FleetPlaneClient) -> tuple[ProviderFacts, ...]:
        raise Unavailable(OTHER_RELEASE)

    monkeypatch.setattr(FleetPlaneClient, "providers", fails)
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        section = await providers_section(client, "failed")
    assert section.texts(".waiting-problem") == [OTHER_RELEASE]
    assert section["hx-trigger"] == POLLING


async def test_a_read_only_page_runs_no_check(tmp_path: Path) -> None:
    async with running_web(tmp_path, "", token="", is_read_only=True) as web, web.logged_in() as client:
        section = await providers_section(client, "recorded")
        assert not section.has("pre.command"), "no command that starts a fleet service"
        assert (await client.post("/settings/providers/cloud/preflight")).status_code == 403


@pytest.mark.long
async def test_the_api_lists_and_tests_providers_without_secrets(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        running_fleet(tmp_path / "fleet", nodes=1) as fleet,
        page_over(fake, tmp_path, fleet.address) as (web, admin),
        web.client() as program,
    ):
        token_response = await admin.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
        program.headers["authorization"] = f"Bearer {shown_secret(token_response)}"
        (listed,) = (await program.get("/api/v1/providers")).json()["items"]
        assert listed == {
            "name": "cloud",
            "kind": "cloud",
            "pools": ["eu"],
            "simulated": [],
            "has_spot": True,
            "last_preflight": None,
        }
        answer = await program.post("/api/v1/providers/cloud/preflight")
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["provider"], body["is_ok"], body["requested_by"]) == ("cloud", True, "admin")
        launch = body["checks"][1]
        assert (launch["kind"], launch["pool"], launch["is_ok"], launch["remedy"]) == ("launch", "eu", True, "")
        assert launch["message"]
        assert (await program.get("/api/v1/providers")).json()["items"][0]["last_preflight"] == body
        assert TOKEN not in answer.text
        unknown = await program.post("/api/v1/providers/sky/preflight")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "fleet.unknown_provider")
        assert "'sky'" in unknown.json()["detail"]
        assert (await audited(admin))[-1]["via"] == "token ci"


async def test_a_failed_login_at_the_cloud_is_a_failed_check(tmp_path: Path, fake: FakeControlPlane) -> None:
    def provider(cloud: object) -> CloudProvider:
        return CloudProvider(cloud, fault=failing_once(AuthError, "list before"))  # type: ignore[arg-type] # a cloud of the test

    async with (
        running_fleet(tmp_path / "fleet", provider=provider) as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        answer = await client.post("/api/v1/providers/cloud/preflight")
    assert answer.status_code == 200
    failed = answer.json()["checks"][0]
    assert (failed["kind"], failed["is_ok"]) == ("list", False)
    assert failed["message"].startswith("AuthError: ")
    assert "credentials" in failed["remedy"]


@pytest.mark.long
async def test_a_rate_limited_check_has_the_time_until_the_next(
    tmp_path: Path, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: FleetPlaneClient, provider: str, *, actor: Actor) -> PreflightResult:
        raise RateLimited("cannot run the check: 20 checks in a minute; retry in 3 s", code="test.rate_limited")

    monkeypatch.setattr(FleetPlaneClient, "run_preflight", refused)
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        answer = await client.post("/api/v1/providers/cloud/preflight")
        notice = await notice_after(client, await client.post("/settings/providers/cloud/preflight"))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (429, "test.rate_limited")
    assert problem["detail"].endswith("3 s")
    assert (notice["data-code"], notice.numbers[-1]) == ("test.rate_limited", 3)
