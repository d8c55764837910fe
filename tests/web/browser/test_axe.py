"""Every page in a real browser, in both themes: no serious axe-core finding and no console message."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import BrowserContext, Page

from tests.fakes.browser import BrowserErrors, browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.web.all_pages import served_site

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.browser]

GRAVE = ("serious", "critical")
TABS = 2
"""Pages that are examined at the same time. Count."""
SIBLINGS = 5
"""Siblings of one kind that are examined. Count."""

SHORTEN = """(most) => {
    for (const parent of document.querySelectorAll("main, main *")) {
        if (parent.closest("figure")) continue;
        const counts = new Map();
        for (const child of [...parent.children]) {
            const kind = `${child.tagName} ${child.className}`;
            counts.set(kind, (counts.get(kind) ?? 0) + 1);
            if (counts.get(kind) > most) child.remove();
        }
    }
}"""
"""Script that removes siblings of one kind beyond a number: they come from one template. Charts stay: their scripts
read the colours of legends later."""

EXAMINE = """async () => {
    await Promise.allSettled(document.getAnimations().map((moving) => moving.finished));
    return (await axe.run(document, { resultTypes: ["violations"] })).violations;
}"""
"""Script that returns the findings of axe."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
@pytest.mark.past_reports
async def test_no_page_has_script_errors_or_serious_accessibility_findings(
    theme: str, fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    findings: list[str] = []
    async with served_site(tmp_path, fake) as walked, browser() as chromium:
        pages = await walked.pages()
        assert len(pages) > 25
        cookies = [{"name": name, "value": value} for name, value in walked.admin.cookies.items()]
        cookies.append({"name": "astraflow_theme", "value": theme})
        async with logged_in_page(chromium, walked.web.address + "/login") as (page, _, context):
            findings += await _findings(page, "/login")
            await page.evaluate("document.body.insertAdjacentHTML('beforeend', '<button></button>')")
            assert "button-name" in (await _findings(page, "/login"))[0], "axe finds the button without a name"
            await context.add_cookies([{**cookie, "url": walked.web.address} for cookie in cookies])  # type: ignore[typeddict-item] # cookie dictionaries
            remaining = iter(pages)
            tabs = [_findings_of_pages(context, walked.web.address, remaining, theme) for _ in range(TABS)]
            findings += [finding for of_tab in await asyncio.gather(*tabs) for finding in of_tab]
            await page.goto(walked.web.address)
            await page.keyboard.press("Control+k")
            await page.locator("#palette-list [role=option]").first.wait_for()
            findings += await _findings(page, "the palette")
    assert not findings, "\n".join(findings)


async def _findings_of_pages(context: BrowserContext, site: str, addresses: Iterator[str], theme: str) -> list[str]:
    """Opens pages in a tab of its own until none remains; returns their findings and console messages."""
    tab, complaints, findings = await context.new_page(), BrowserErrors(), list[str]()
    complaints.listen(tab)
    for address in addresses:
        answer = await tab.goto(site + address)
        assert await tab.evaluate("document.documentElement.dataset.theme") == theme
        findings += await _findings(tab, address)
        own = "" if answer is None or answer.ok else f"status of {answer.status}"
        findings += [f"{address}: {text}" for text in complaints.taken() if not own or own not in text]
    return findings


async def _findings(page: Page, address: str) -> list[str]:
    """Returns the serious and critical findings of a page, one line each."""
    await page.evaluate(Axe().axe_script)
    await page.evaluate(SHORTEN, SIBLINGS)
    violations: list[dict[str, Any]] = await page.evaluate(EXAMINE)
    return [
        f"{address}: {violation['id']} ({violation['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for violation in violations
        if violation["impact"] in GRAVE
        for node in violation["nodes"][:3]
    ]
