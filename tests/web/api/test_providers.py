"""Providers on the settings page and in the API: there, tested, not there, away."""

import asyncio
import html
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import RateLimited, Unavailable
from astraflow.contract.fleet import Actor
from astraflow.contract.rehearsals import ProviderFacts, Rehearsal
from maintainer.fleet.providers.base import Auth
from tests.fakes.cloud import CloudProvider, failing_once
from tests.fakes.control_plane import TOKEN, FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.web import RunningWeb, flash_of, running_web, shown_secret

pytestmark = pytest.mark.anyio

PATIENCE_S = 40.0
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
        await web.until_fed()
        yield web, client


async def providers_section(client: httpx.AsyncClient, *, holds: str) -> str:
    """The section once that stands in it: the fleet service is asked once a second."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        page = html.unescape((await client.get("/settings")).text)
        section = page.partition('<section class="card" id="providers"')[2].partition("</section>")[0]
        if holds in section:
            return section
        assert time.monotonic() < deadline, f"not there within {PATIENCE_S:.0f} s: {holds}\n{section}"
        await asyncio.sleep(0.05)


async def audited(client: httpx.AsyncClient) -> list[dict[str, str]]:
    lines = (await client.get("/audit.ndjson?action=provider.test")).text.splitlines()
    return [json.loads(line) for line in lines]


async def test_without_a_fleet_service_the_page_says_how_to_have_one(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        section = await providers_section(client, holds="No fleet service, so no provider")
        api, tested = await client.get("/api/v1/providers"), await client.post("/api/v1/providers/here/test")
        told = await flash_of(client, await client.post("/settings/providers/here/test"))
    assert "astraflow run RECIPE --fleet" in section
    assert "astraflow serve fleet fleet.toml --dataflow 127.0.0.1:" in section
    assert (api.status_code, tested.status_code) == (503, 503)
    assert told.startswith("Here was not tested: this page was told of no fleet service")


async def test_a_fleet_service_that_does_not_answer_yet_is_asked_again_and_that_is_said(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with page_over(fake, tmp_path, "127.0.0.1:9") as (_, client):
        section = await providers_section(client, holds="Asking the fleet service at <code>127.0.0.1:9</code>")
        assert 'hx-trigger="every 5s"' in section.partition(">")[0]
        assert (await client.get("/api/v1/providers")).status_code == 503


async def test_a_provider_is_shown_tested_and_audited_and_nothing_is_started(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with (
        running_fleet(tmp_path / "fleet", nodes=1) as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        starts = fleet.parts.cloud.starts
        before = await providers_section(client, holds="Not tested yet")
        assert "<bdi>cloud</bdi>" in before
        assert '<a href="/pools/eu"><bdi>eu</bdi></a>' in before
        assert "hx-trigger" not in before.partition(">")[0]
        told = await flash_of(client, await client.post("/settings/providers/cloud/test"))
        assert told == "Cloud: all 3 checks passed"
        after = await providers_section(client, holds="All 3 checks passed")
        assert "by <bdi>admin</bdi>" in after
        assert "Can its machines be listed? Yes: <bdi>1 machine with the tag tests</bdi>" in after
        assert "Would a machine be started for <bdi>eu</bdi>? Yes: <bdi>a small machine would be started</bdi>" in after
        assert "1.00 USD an hour (made up for tests)" in after
        assert fleet.parts.cloud.starts == starts
        (entry,) = await audited(client)
        assert (entry["target"], entry["actor"], entry["result"]) == ("cloud", "admin", "done")
        assert json.loads(entry["after"]) == {"checks": 3, "failed": 0}


async def test_a_test_that_fails_says_what_to_do_and_whatever_a_provider_says_stays_text(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    async with (
        running_fleet(tmp_path / "fleet", pool={"type": HOSTILE}) as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        await providers_section(client, holds="Not tested yet")
        told = await flash_of(client, await client.post("/settings/providers/cloud/test"))
        assert told == "Cloud: 1 of 2 checks failed"
        section = await providers_section(client, holds="1 of 2 checks failed")
        assert "Would a machine be started for <bdi>eu</bdi>? No: <bdi>Invalid: no type is called" in section
        assert "<strong>Correct what is named: the provider's table in the fleet's file" in section
        assert "<script>alert" not in (await client.get("/settings")).text
        (entry,) = await audited(client)
        assert json.loads(entry["after"]) == {"checks": 2, "failed": 1}
        unknown = await flash_of(client, await client.post("/settings/providers/sky/test"))
        assert unknown == "Sky was not tested: no provider is called 'sky'; known: cloud"
        assert [entry["result"] for entry in await audited(client)] == ["failed", "done"]


async def test_who_may_not_test_is_told_which_role_it_takes(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (web, client),
        web.in_role(client, "viewer") as viewer,
        web.in_role(client, "operator") as operator,
    ):
        section = await providers_section(viewer, holds="Not tested yet")
        assert "This needs role operator, to test a provider; you are viewer. Who can grant it: <bdi>admin" in section
        assert "<form" not in section
        assert (await viewer.post("/settings/providers/cloud/test")).status_code == 403
        assert "This needs role" not in await providers_section(operator, holds="Not tested yet")
        assert (await operator.post("/settings/providers/cloud/test")).status_code == 303
        assert (await audited(client))[0]["actor"] == "some-operator"


async def test_a_form_of_another_session_tests_nothing(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        await providers_section(client, holds="Not tested yet")
        refused = await client.post("/settings/providers/cloud/test", headers={"x-form-token": "another's"})
        assert refused.status_code == 403
        await providers_section(client, holds="Not tested yet")


async def test_a_service_that_went_away_is_said_to_be(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with AsyncExitStack() as serving:
        fleet = await serving.enter_async_context(running_fleet(tmp_path / "fleet"))
        async with page_over(fake, tmp_path, fleet.address) as (_, client):
            await providers_section(client, holds="Not tested yet")
            await serving.aclose()
            section = await providers_section(client, holds="does not answer</p>")
    assert "This page asks again by itself" in section
    assert 'hx-trigger="every 5s"' in section.partition(">")[0]


async def test_a_service_that_does_not_say_which_it_has_is_asked_again(
    tmp_path: Path, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: FleetPlaneClient) -> tuple[ProviderFacts, ...]:
        raise Unavailable("the service is another release's")

    monkeypatch.setattr(FleetPlaneClient, "providers", fails)
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        section = await providers_section(client, holds="did not say which providers it has")
    assert "the service is another release's" in section


async def test_a_page_over_what_was_recorded_asks_nobody(tmp_path: Path) -> None:
    async with running_web(tmp_path, "", token="", is_read_only=True) as web, web.logged_in() as client:
        section = await providers_section(client, holds="This page shows what was recorded")
        assert "No fleet service" not in section
        assert (await client.post("/settings/providers/cloud/test")).status_code == 403


async def test_programs_list_and_test_providers_and_read_no_secret(tmp_path: Path, fake: FakeControlPlane) -> None:
    async with (
        running_fleet(tmp_path / "fleet", nodes=1) as fleet,
        page_over(fake, tmp_path, fleet.address) as (web, admin),
        web.client() as program,
    ):
        made = await admin.post("/settings/tokens", data={"name": "ci", "scope": "operator", "days": "1"})
        program.headers["authorization"] = f"Bearer {shown_secret(made)}"
        (listed,) = (await program.get("/api/v1/providers")).json()["items"]
        assert listed == {
            "name": "cloud",
            "kind": "cloud",
            "pools": ["eu"],
            "simulated": [],
            "has_spot": True,
            "last": None,
        }
        answer = await program.post("/api/v1/providers/cloud/test")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["provider"], found["is_ok"], found["by"]) == ("cloud", True, "admin")
        assert found["checks"][1] == {
            "kind": "launch",
            "pool": "eu",
            "is_ok": True,
            "message": "a small machine would be started",
            "to_do": "",
        }
        assert (await program.get("/api/v1/providers")).json()["items"][0]["last"] == found
        assert TOKEN not in answer.text
        unknown = await program.post("/api/v1/providers/sky/test")
        assert (unknown.status_code, unknown.json()["detail"]) == (404, "no provider is called 'sky'; known: cloud")
        assert (await audited(admin))[-1]["via"] == "token ci"


async def test_what_cannot_log_in_at_its_cloud_is_an_answer_and_no_failure_of_the_page(
    tmp_path: Path, fake: FakeControlPlane
) -> None:
    def provider(cloud: object) -> CloudProvider:
        return CloudProvider(cloud, fault=failing_once(Auth, "list before"))  # type: ignore[arg-type] # the tests' own

    async with (
        running_fleet(tmp_path / "fleet", provider=provider) as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        answer = await client.post("/api/v1/providers/cloud/test")
    assert answer.status_code == 200
    failed = answer.json()["checks"][0]
    assert (failed["kind"], failed["is_ok"]) == ("list", False)
    assert failed["message"].startswith("Auth: ")
    assert "credentials" in failed["to_do"]


async def test_asking_too_often_is_told_with_when_to_ask_again(
    tmp_path: Path, fake: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: FleetPlaneClient, provider: str, *, actor: Actor) -> Rehearsal:
        raise RateLimited("127.0.0.1 asks for RehearseProvider more than 20 times a minute: ask again in 3 s")

    monkeypatch.setattr(FleetPlaneClient, "rehearse", refused)
    async with (
        running_fleet(tmp_path / "fleet") as fleet,
        page_over(fake, tmp_path, fleet.address) as (_, client),
    ):
        answer = await client.post("/api/v1/providers/cloud/test")
        told = await flash_of(client, await client.post("/settings/providers/cloud/test"))
    problem = answer.json()
    assert (answer.status_code, problem["title"]) == (429, "That was asked too often")
    assert "ask again in 3 s" in problem["detail"]
    assert "ask again in 3 s" in told
