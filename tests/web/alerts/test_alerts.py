"""Alerts through the page and the API: a rule fires, is shown, notified, muted, resolved, and survives a restart."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.contract.errors import InvalidInput
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.receivers import WebhookServer
from tests.fakes.web import RunningWeb, flash_of, running_web, shown_secret
from tests.web.page_elements import parsed
from web.security.problems import CODE_HEADER

pytestmark = pytest.mark.anyio

RULE = {"name": "Steps", "series": "policy/solver:steps", "condition": "above", "threshold": "1"}


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 30
    while not await is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def alerts_of(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get("/api/v1/alerts")).json()["items"]
    return items


async def send(client: httpx.AsyncClient, method: str, path: str, key: str, **body: Any) -> httpx.Response:
    headers = {"idempotency-key": key}
    return await client.request(method, f"/api/v1/alerts/{path}", json={"reason": "a test", **body}, headers=headers)


async def test_a_rule_of_the_page_fires_notifies_once_survives_a_restart_and_is_resolved_when_deleted(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with WebhookServer([200]).serving() as hook, fake.serving() as dataflow:
        async with running_web(tmp_path, dataflow) as web, web.logged_in() as admin:
            await web.until_live(admin, sequence=150)
            added = await admin.post(
                "/alerts/receivers", data={"name": "ops", "kind": "webhook", "target": hook.url, "private": "yes"}
            )
            assert len(shown_secret(added)) == 64
            created = await admin.post("/alerts/new", data={**RULE, "receiver": "ops"})
            assert await flash_of(admin, created) == "Alert rule Steps created"

            async def fires() -> bool:
                await fake.advance()
                return bool(await alerts_of(admin))

            await until(fires)
            web.clock.push(4.0)
            await until(lambda: _has(hook, 1))
            page = await admin.get("/alerts")
            assert "1 alert fires" in page.text
            assert "Alert: Steps" in (await admin.get("/runs/1")).text
            assert "secret-path" not in page.text
            assert 'class="top-alerts"' in page.text
        async with running_web(tmp_path, dataflow) as web, web.logged_in() as admin:
            await fake.advance()
            await web.until_live(admin, sequence=fake.sequence)
            (alert,) = await alerts_of(admin)
            assert alert["ended_at"] is None
            assert (await admin.post("/alerts/rules/1/delete", data={"reason": "done"})).status_code == 303
            await until(lambda: _is_resolved(admin))
            assert "the rule changed" in (await admin.get("/alerts/1")).text
    (notice,) = [json.loads(body) for _, body in hook.requests]
    assert [entry["state"] for entry in notice["alerts"]] == ["firing"]
    assert notice["alerts"][0]["run"] == "reverse-0001"


async def _has(hook: WebhookServer, count: int) -> bool:
    return len(hook.requests) >= count


async def _is_resolved(client: httpx.AsyncClient) -> bool:
    return all(alert["ended_at"] is not None for alert in await alerts_of(client))


async def test_the_form_keeps_what_was_entered_and_says_what_is_wrong(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        wrong = await admin.post("/alerts/new", data={**RULE, "threshold": "much", "hold": "7"})
        assert (wrong.status_code, wrong.headers[CODE_HEADER]) == (422, "config.invalid")
        page = parsed(wrong)
        assert page.one("input[name=threshold]").attributes["value"] == "much"
        assert page.one("input[name=hold]").attributes["value"] == "7"
        assert (await admin.post("/alerts/new", data=RULE)).status_code == 303
        twice = await admin.post("/alerts/new", data=RULE)
        assert twice.headers[CODE_HEADER] == "alert.rule_exists"
        unknown = await admin.post("/alerts/new", data={**RULE, "name": "b", "receiver": "unknown"})
        assert unknown.headers[CODE_HEADER] == "alert.receiver_of_rule"
        private = {"name": "own", "kind": "webhook", "target": "http://127.0.0.1:1/x"}
        assert (await flash_of(admin, await admin.post("/alerts/receivers", data=private))).startswith("No receiver")
        mail = {"name": "ops", "kind": "mail", "target": "a@b.org"}
        assert "--mail" in await flash_of(admin, await admin.post("/alerts/receivers", data=mail))


@pytest.mark.past_reports
async def test_a_new_rule_of_a_chart_has_a_limit_that_history_does_not_reach_and_the_test_agrees(
    web: RunningWeb, fake: FakeControlPlane
) -> None:
    async with web.logged_in() as admin:
        await web.until_live(admin, sequence=150)
        await until(lambda: _is_recorded(admin))
        address = "/alerts/new?chart=/runs/1/charts/buffer&value=buffered&policy=solver"
        assert 'href="/alerts/new?value=buffered&amp;chart=' in (await admin.get("/?range=1h")).text
        page = parsed(await admin.get(address))
        fields = {name: page.one(f"input[name={name}]").attributes["value"] for name in ("name", "runs", "threshold")}
        fields |= {"series": "policy/solver:buffered", "condition": "above", "hold": "0", "unit": "seconds"}
        quiet = await admin.post("/alerts/test", data=fields, headers={"hx-request": "true"})
        assert "not have fired" in quiet.text
        loud = await admin.post("/alerts/test", data={**fields, "threshold": "-1"}, headers={"hx-request": "true"})
        assert "have fired once" in loud.text
        whole = await admin.post("/alerts/test", data={**fields, "threshold": "-1"})
        assert "<!doctype html>" in whole.text
        assert "have fired once" in whole.text


async def _is_recorded(client: httpx.AsyncClient) -> bool:
    return "policy/solver:buffered" in (await client.get("/alerts/new")).text


async def test_the_api_creates_changes_tests_mutes_and_deletes_once_per_key(web: RunningWeb) -> None:
    body = {"name": "Low", "series": "policy/*", "value": "wait", "condition": "above", "threshold": 0.5}
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="eve") as viewer:
        created = await send(admin, "POST", "rules", "a", **body)
        assert (created.status_code, (await send(admin, "POST", "rules", "a", **body)).json()) == (201, created.json())
        assert (await send(admin, "POST", "rules", "b", **body)).status_code == 409
        inconsistent = await send(admin, "POST", "rules", "c", **{**body, "threshold": None})
        assert (inconsistent.status_code, inconsistent.json()["code"]) == (409, "config.invalid")
        assert (await send(viewer, "POST", "rules", "d", **body)).status_code == 403
        changed = await send(admin, "PUT", "rules/1", "e", **{**body, "severity": "critical"})
        assert changed.json()["severity"] == "critical"
        assert (await send(admin, "PUT", "rules/9", "f", **body)).status_code == 404
        await send(admin, "POST", "rules/1/mute", "g", minutes=5)
        (rule,) = (await viewer.get("/api/v1/alerts/rules")).json()["items"]
        assert rule["muted_until"] > time.time() + 200
        tested = await viewer.post("/api/v1/alerts/rule-test", json=body)
        assert tested.status_code == 200, tested.text
        hook = {"name": "own", "kind": "webhook", "target": "http://localhost:1/secret-path", "allows_private": True}
        added = (await send(admin, "POST", "receivers", "h", **hook)).json()
        assert (len(added["secret"]), added["receiver"]["target"]) == (64, "http://localhost:1/…")
        assert (await send(admin, "POST", "receivers", "h", **hook)).json()["secret"] is None
        assert (await admin.post("/api/v1/alerts/receivers/1/test")).json()["code"] == "alert.webhook_unreachable"
        assert (await send(viewer, "POST", "receivers", "i", **{**hook, "name": "x"})).status_code == 403
        assert (await send(admin, "POST", "receivers/1/delete", "j")).status_code == 200
        assert (await send(admin, "POST", "rules/1/delete", "k")).status_code == 200
        assert (await send(admin, "POST", "rules/1/delete", "l")).status_code == 404
        audited = {entry["action"] for entry in (await admin.get("/api/v1/audit?limit=50")).json()["items"]}
        assert {"alert.create", "alert.change", "alert.mute", "alert.delete", "alert.receiver_test"} <= audited
        assert "secret-path" not in (await admin.get("/audit.ndjson")).text


async def test_a_viewer_reads_but_does_not_see_forms_that_change(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="eve") as viewer:
        assert (await admin.post("/alerts/new", data=RULE)).status_code == 303
        page = (await viewer.get("/alerts")).text
        assert "Steps" in page
        assert 'action="/alerts/receivers"' not in page
        form = (await viewer.get("/alerts/rules/1")).text
        assert not re.search(r"<button[^>]*>(Save rule|Mute)", form)
        assert (await viewer.post("/alerts/rules/1/mute", data={"minutes": "5"})).status_code == 403


async def test_rules_of_a_file_replace_those_of_the_last_start_and_the_page_only_mutes_them(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "alerts.toml"
    rule = '[[rule]]\nname = "{}"\nseries = "policy/*"\nvalue = "wait"\ncondition = "above"\nthreshold = 0.5\n'
    async with fake.serving() as dataflow:
        for names in (("a", "b"), ("b", "c")):
            file.write_text("".join(rule.format(name) for name in names))
            async with running_web(tmp_path, dataflow, alerts=file) as web, web.logged_in() as admin:
                rules = (await admin.get("/api/v1/alerts/rules")).json()["items"]
                assert [(item["name"], item["is_from_file"]) for item in rules] == [(name, True) for name in names]
                number = rules[0]["id"]
                assert (await admin.post(f"/alerts/rules/{number}/mute", data={"minutes": "5"})).status_code == 303
                changed = await admin.post(f"/alerts/rules/{number}", data={**RULE, "name": "x"})
                assert changed.headers[CODE_HEADER] == "alert.rule_of_file"
                assert 'action="/alerts/rules/1/delete"' not in (await admin.get(f"/alerts/rules/{number}")).text
        file.write_text(rule.format("a") * 2)
        with pytest.raises(ExceptionGroup) as problem:
            async with running_web(tmp_path, dataflow, alerts=file):
                pass
    assert problem.group_contains(InvalidInput, match="two rules have the name 'a'")
