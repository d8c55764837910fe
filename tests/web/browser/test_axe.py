"""Every page in a real browser, in both themes: no serious axe-core finding and no console message."""

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.web.all_pages import served_site

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.browser]

GRAVE = ("serious", "critical")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
@pytest.mark.past_reports
async def test_no_page_has_script_errors_or_serious_accessibility_findings(
    theme: str, fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with served_site(tmp_path, fake) as walked, browser() as chromium:
        pages = await walked.pages()
        assert len(pages) > 25
        cookies = [{"name": name, "value": value} for name, value in walked.admin.cookies.items()]
        cookies.append({"name": "astraflow_theme", "value": theme})
        async with logged_in_page(chromium, walked.web.address + "/login") as (page, complaints, context):
            findings = await _findings(page, "/login")
            await page.evaluate("document.body.insertAdjacentHTML('beforeend', '<button></button>')")
            assert "button-name" in (await _findings(page, "/login"))[0], "axe finds the button without a name"
            await context.add_cookies([{**cookie, "url": walked.web.address} for cookie in cookies])  # type: ignore[typeddict-item] # cookie dictionaries
            for address in pages:
                complaints.taken()  # drops messages of the previous page
                answer = await page.goto(walked.web.address + address)
                assert await page.evaluate("document.documentElement.dataset.theme") == theme
                findings += await _findings(page, address)
                own = "" if answer is None or answer.ok else f"status of {answer.status}"
                findings += [f"{address}: {text}" for text in complaints.taken() if not own or own not in text]
            await page.goto(walked.web.address)  # the last page has no palette
            await page.keyboard.press("Control+k")
            await page.locator("#palette-list [role=option]").first.wait_for()
            findings += await _findings(page, "the palette")
    assert not findings, "\n".join(findings)


async def _findings(page: Page, address: str) -> list[str]:
    """Returns the serious and critical axe findings of a page, one line each."""
    await page.evaluate("Promise.allSettled(document.getAnimations().map((moving) => moving.finished))")
    results = await Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        f"{address}: {violation['id']} ({violation['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for violation in results.response["violations"]
        if violation["impact"] in GRAVE
        for node in violation["nodes"][:3]
    ]
