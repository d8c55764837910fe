"""Every page in a real browser, in both themes, against axe-core; none says anything to the console."""

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.web.walk import house

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

GRAVE = ("serious", "critical")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_page_complains_or_has_a_serious_or_critical_finding(
    theme: str, fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    async with house(tmp_path, fake) as walked, browser() as chromium:
        pages = await walked.pages()
        assert len(pages) > 25
        cookies = [{"name": name, "value": value} for name, value in walked.admin.cookies.items()]
        cookies.append({"name": "astraflow_theme", "value": theme})
        async with logged_in_page(chromium, walked.web.address + "/login") as (page, complaints, context):
            found = await _findings(page, "/login")
            await page.evaluate("document.body.insertAdjacentHTML('beforeend', '<button></button>')")
            assert "button-name" in (await _findings(page, "/login"))[0], "it finds what is there"
            await context.add_cookies([{**cookie, "url": walked.web.address} for cookie in cookies])  # type: ignore[typeddict-item] # as it takes them
            for address in pages:
                complaints.taken()  # of the page before: as it was left
                answer = await page.goto(walked.web.address + address)
                assert await page.evaluate("document.documentElement.dataset.theme") == theme
                found += await _findings(page, address)
                own = "" if answer is None or answer.ok else f"status of {answer.status}"
                found += [f"{address}: {heard}" for heard in complaints.taken() if not own or own not in heard]
            await page.goto(walked.web.address)  # the last of all is a page without a frame
            await page.keyboard.press("Control+k")
            await page.locator("#palette-list [role=option]").first.wait_for()
            found += await _findings(page, "the palette")
    assert not found, "\n".join(found)


async def _findings(page: Page, address: str) -> list[str]:
    """What axe holds against a page, a line each."""
    await page.evaluate("Promise.allSettled(document.getAnimations().map((moving) => moving.finished))")
    results = await Axe().run(page)
    return [
        f"{address}: {one['id']} ({one['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in results.response["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"][:3]
    ]
