"""The page of a trajectory in a real browser: both themes, a phone, the keyboard in the token view, accessibility."""

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb
from tests.web.all_pages import advancing_reports
from tests.web.trajectories.test_trajectories import recorded

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.long]

VIEWS = ("", "?token=0", "?all_texts=true")


@pytest.fixture
def fake() -> FakeControlPlane:
    fake = FakeControlPlane(sequence=150)
    fake.synthetic_run.has_interactions = True
    fake.synthetic_run.policies = ("solver", "judge")
    stored = fake.synthetic_run.samples(150)
    fake.synthetic_run.samples = lambda sequence: stored  # type: ignore[method-assign] # none is replaced by newer ones
    return fake


async def test_a_trajectory_is_read_with_keyboard_in_both_themes_and_on_a_phone(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with advancing_reports(fake), logged_in_page(chromium, web.login_url) as (page, complaints, context):
        async with web.client() as client:
            client.cookies = {cookie["name"]: cookie["value"] for cookie in await context.cookies()}
            await recorded(web, client)
            (item, *_) = (await client.get("/api/v1/runs/1/trajectories?role=planner&limit=1")).json()["items"]
        address = f"{web.address}/runs/1/trajectories/{item['ordinal']}"
        findings = []
        for theme in ("light", "dark"):
            await context.add_cookies([{"name": "astraflow_theme", "value": theme, "url": web.address}])
            paths = [*(address + view for view in VIEWS), f"{web.address}/runs/1/trajectories?term=format"]
            for path in paths:
                await page.goto(path)
                assert await page.evaluate("document.documentElement.dataset.theme") == theme
                results = await Axe().run(page, options={"resultTypes": ["violations"]})
                findings += [
                    (path, theme, violation["id"], node["html"][:200])
                    for violation in results.response["violations"]
                    for node in violation["nodes"][:2]
                    if violation["impact"] in ("serious", "critical")
                ]
        assert not findings

        await page.goto(address)
        await expect(page.locator("html.has-script")).to_be_attached()
        result = page.locator("details.block[data-kind=result]")
        await result.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(result).to_have_attribute("open", "")
        await page.keyboard.press("Escape")
        await page.keyboard.press("w")
        await page.wait_for_url(lambda url: "token=0" in url)
        await expect(page.locator("html.has-script")).to_be_attached()
        turn = page.locator("pre.tokens").first
        await turn.focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            await page.keyboard.press(key)
        reading = page.locator("[data-part=token-reading]")
        second = await turn.locator("i").nth(1).text_content()
        await expect(reading).to_contain_text(f"\u201c{second}\u201d")
        await expect(turn.locator("i[data-current]")).to_have_count(1)
        await page.locator("pre.tokens").nth(1).locator("i").nth(3).hover()
        await expect(page.locator("pre.tokens").nth(1).locator("i[data-current]")).to_have_count(1)

        await page.set_viewport_size({"width": 360, "height": 800})
        for path in paths:
            await page.goto(path)
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.evaluate(overflow) == 0, path
        assert complaints.heard == []
