"""Export of a run: one file with all that the page shows, without secrets and requests, and with a hash that holds."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser

from astraflow.cli.checks.export import checked_hash
from astraflow.contract.errors import CorruptData, InvalidInput
from astraflow.runtime.redaction import without_secrets
from tests.fakes.browser import BrowserErrors
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from tests.web.trajectories.test_trajectories import recorded
from web.components.formats import MISSING
from web.exports.content import MAX_CHART_POINTS, MAX_SAMPLE_CHARS
from web.exports.document import export_html, hash_of
from web.exports.settings import settings_of

pytestmark = pytest.mark.anyio

Exported = tuple[Path, dict[str, Any], str]
"""File of the page, its document, and the audit log after it."""

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}</script><script>alert(2)</script><!--"


def data_of(file: bytes) -> dict[str, Any]:
    """Returns the document in an export."""
    text = file.decode().partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    content: dict[str, Any] = json.loads(text)
    return content


def with_texts(value: Any, text: str) -> Any:
    """Returns a document with every text replaced, apart from those that choose how others are shown."""
    if isinstance(value, dict):
        kept = ("sparkline", "by")
        return {key: item if key in kept else with_texts(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, text) for item in value]
    return text if isinstance(value, str) else value


@pytest.fixture(scope="module")
async def exported(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Exported]:
    """File of the page, its document, and the audit log after it."""
    folder, fake = tmp_path_factory.mktemp("export"), FakeControlPlane(sequence=150, history=5)
    async with fake.serving() as dataflow, running_web(folder, dataflow) as web, web.logged_in() as admin:
        await recorded(web, admin)
        answer = await until_charts(admin)
        file = folder / "run.html"
        file.write_bytes(answer.content)
        assert answer.headers["content-disposition"] == 'attachment; filename="reverse-0001.html"'
        yield file, data_of(answer.content), (await admin.get("/audit.ndjson")).text


async def until_charts(admin: httpx.AsyncClient) -> httpx.Response:
    """Returns an export once training steps are copied, a second after the first report."""
    for _ in range(600):
        answer = await admin.post("/runs/1/export")
        assert answer.status_code == 200, answer.text[:500]
        if any(chart["by"] == "step" for chart in data_of(answer.content)["charts"]):
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("no training step was copied")


async def test_the_file_has_all_parts_and_its_hash_is_in_the_audit_log(exported: Exported) -> None:
    file, content, audit = exported
    digest = checked_hash(file)
    assert digest == hash_of(file.read_bytes())
    assert digest in audit
    assert '"run.export"' in audit
    for part in ("policies", "charts", "samples", "evaluations", "events", "balances"):
        assert content[part], part
    assert {sample["kind"] for sample in content["samples"]} >= {"best", "worst", "first step", "last step"}
    assert content["audit"]["last_hash"] in file.read_text()
    assert all(len(chart["x"]) == len(chart["y"]) <= MAX_CHART_POINTS for chart in content["charts"])
    assert all(len(sample["completion"]) <= MAX_SAMPLE_CHARS for sample in content["samples"])
    assert file.stat().st_size < 3_000_000


async def test_a_changed_file_and_another_file_are_refused(exported: Exported, tmp_path: Path) -> None:
    text = exported[0].read_text()
    changed, other = tmp_path / "changed.html", tmp_path / "other.html"
    for old, new in (("<h1><bdi>reverse", "<h1><bdi>better"), ('"reward":', '"reward": '), ("</html>", "</html> ")):
        assert old in text
        changed.write_text(text.replace(old, new, 1))
        with pytest.raises(CorruptData) as problem:
            checked_hash(changed)
        assert problem.value.code == "export.changed"
    other.write_text("<html></html>")
    with pytest.raises(InvalidInput):
        checked_hash(other)
    with pytest.raises(InvalidInput):
        checked_hash(tmp_path / "none.html")


async def test_hostile_texts_stay_text_everywhere(exported: Exported) -> None:
    text = export_html(with_texts(exported[1], HOSTILE)).decode()
    assert "<img" not in text
    assert "<!--" not in text
    assert "alert(2)</script>" not in text
    assert len(re.findall(r"<script\b", text)) == 3
    assert "49" not in text.partition("onerror")[2][:20]
    assert data_of(text.encode())["run"]["name"] == HOSTILE


async def test_the_policy_allows_the_own_scripts_only(exported: Exported) -> None:
    text = exported[0].read_text()
    policy = text.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert len(rules["script-src"].split()) == 2
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href)=\"(?!#)", text.partition("<script")[0])


async def test_settings_are_compared_with_the_packaged_recipe_and_have_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"stop": {"steps": 7}, "store": {"url": "s3://me:canary@host/x", "token": "canary"}}
    (tmp_path / "recipe.json").write_text(json.dumps(settings))

    async def packaged(folder: Path) -> dict[str, str]:
        return {"stop.steps": "300", "store.token": "other"}

    monkeypatch.setattr("web.exports.settings._packaged", packaged)
    rows = without_secrets(await settings_of(tmp_path))
    assert {"key": "stop.steps", "value": "7", "packaged": "300"} in rows
    assert "canary" not in json.dumps(rows)
    assert await settings_of(None) == []


async def test_a_viewer_may_export_and_an_unknown_run_is_not_found(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="eve") as viewer:
        await recorded(web, admin)
        assert (await viewer.post("/runs/1/export")).status_code == 200
        assert (await viewer.post("/runs/9/export")).status_code == 404
        del viewer.headers["x-form-token"]
        assert (await viewer.post("/runs/1/export")).status_code == 403


@pytest.mark.browser
async def test_the_file_opens_from_disk_without_a_request_or_error_with_charts_and_without_scripts(
    exported: Exported, chromium: Browser
) -> None:
    address = exported[0].as_uri()
    context = await chromium.new_context(offline=True, color_scheme="dark")
    page, complaints, requests = await context.new_page(), BrowserErrors(), list[str]()
    complaints.listen(page)
    page.on("request", lambda request: requests.append(request.url))
    await page.goto(address)
    figure = page.locator("[data-chart]").first
    await figure.locator("canvas").wait_for()
    box = await figure.locator(".u-over").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 20, box["y"] + 20)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 120, box["y"] + 20)
    await page.mouse.up()
    assert await figure.locator(".u-legend .u-value").first.inner_text() != MISSING
    await page.evaluate("dispatchEvent(new Event('beforeprint'))")
    charts = page.locator("[data-chart] .uplot")
    widths = await charts.evaluate_all("charts => charts.map((chart) => chart.offsetWidth)")
    assert len(widths) == await page.locator("[data-chart]").count(), "charts out of sight are printed too"
    assert set(widths) == {300}, "two beside each other"
    assert await page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light", "on white paper"
    await page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert await figure.locator(".uplot").evaluate("chart => chart.offsetWidth") != 300
    assert (complaints.taken(), requests) == ([], [address])
    await context.close()
    plain = await chromium.new_context(java_script_enabled=False)
    without = await plain.new_page()
    await without.goto(address)
    assert await without.locator("[data-chart] polyline").first.is_visible()
    assert await without.locator("canvas").count() == 0
    await plain.close()
