"""The pages in a real browser."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from astraflow.contract.records import problem_record
from tests.fakes.browser import logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.synthetic_run import SyntheticRun, hostile_record
from tests.fakes.web import RunningWeb, running_web

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">{{7*7}}'"

STEPS = '[data-live-text="policy/solver/steps"]'
AGE = ".age"


@pytest.mark.long
@pytest.mark.past_reports
async def test_without_scripts_the_page_has_numbers_and_charts(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url, java_script_enabled=False) as (page, complaints, _):
        await page.reload()
        await expect(page.locator("h1")).to_contain_text("Reward rose")
        await expect(page.locator(STEPS)).to_have_text("131")
        box = await page.locator("figure.chart .sparkline").first.bounding_box()
        await expect(page.get_by_role("button", name="Pause")).to_be_hidden()
        assert box is not None
        assert box["width"] > 300
        assert complaints.heard == []


@pytest.mark.long
async def test_live_updates_change_the_page_without_a_reload_and_begin_with_the_values_of_the_server(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url, java_script_enabled=False) as (plain, _, context):
        await plain.reload()
        values = await plain.locator(".legend output").all_inner_texts()
        cookies = await context.cookies()
    live = await chromium.new_context()
    await live.add_cookies([{"name": c["name"], "value": c["value"], "url": web.address} for c in cookies])
    page = await live.new_page()
    await page.goto(web.address)
    await expect(page.locator(".u-over").first).to_be_attached()
    outputs = page.locator(".legend output")
    assert await outputs.all_inner_texts() == values

    await page.evaluate("document.body.dataset.same = 'page'")
    for _ in range(3):
        await fake.advance()
    await expect(page.locator(STEPS)).to_have_text("134")
    changed = "values => [...document.querySelectorAll('.legend output')].some((o, at) => o.textContent !== values[at])"
    await page.wait_for_function(changed, arg=values)
    assert await page.evaluate("document.body.dataset.same") == "page"
    await live.close()


@pytest.mark.long
async def test_the_badge_is_stale_during_an_outage_of_dataflow(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with AsyncExitStack() as dying:
        dataflow = await dying.enter_async_context(fake.serving())
        async with (
            running_web(tmp_path, dataflow) as running,
            logged_in_page(chromium, running.login_url) as (page, _, _context),
        ):
            await expect(page.locator(STEPS)).to_have_text("131")
            await dying.aclose()
            running.clock.push(7)
            await expect(page.locator(AGE)).to_have_attribute("data-state", "stale")
            await expect(page.locator(AGE)).to_contain_text("stale for")
            await expect(page.locator("#banner")).to_contain_text("Dataflow does not answer")
            await expect(page.locator("html[data-stale]")).to_be_attached()

            async with fake.serving(port=int(dataflow.rpartition(":")[2])):
                await fake.advance(5)
                await expect(page.locator(AGE)).to_have_attribute("data-state", "live")
                await expect(page.locator("#banner")).to_be_hidden()
                await expect(page.locator(STEPS)).to_have_text("135")


@pytest.mark.long
@pytest.mark.past_reports
async def test_the_page_reconnects_after_a_restart_of_the_web_process(
    fake: FakeControlPlane, chromium: Browser, tmp_path: Path
) -> None:
    async with fake.serving() as dataflow:
        async with running_web(tmp_path, dataflow) as first:
            context = await chromium.new_context()
            page = await context.new_page()
            await page.clock.install()
            await page.goto(first.login_url)
            await expect(page.locator(AGE)).to_have_attribute("data-state", "live")
        port = int(first.address.rpartition(":")[2])
        await page.clock.fast_forward(6000)
        await expect(page.locator(AGE)).to_have_attribute("data-state", "stale")
        await expect(page.locator("#banner")).to_contain_text("The web process does not answer")

        async with running_web(tmp_path, dataflow, port=port):
            await fake.advance(40)
            await page.clock.fast_forward(6000)
            await expect(page.locator(AGE)).to_have_attribute("data-state", "live")
            await expect(page.locator(STEPS)).to_have_text("167")
            sequences = await page.evaluate(
                "import(document.querySelector('script[type=module]').src.replace('main.js', 'tables.js'))"
                ".then((module) => module.tableOf('points').columns.sequence)"
            )
            assert sequences == list(range(1, 191)), "no second is missing after the restart"
            await context.close()


@pytest.mark.long
async def test_hostile_strings_of_live_updates_stay_text(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await expect(page.locator(STEPS)).to_have_text("131")
        fake.synthetic_run = SyntheticRun(nodes=(HOSTILE, "b"), simulated=(HOSTILE,), node_errors={"b": (HOSTILE,)})
        fake.synthetic_run.act(151, hostile_record(HOSTILE))
        await fake.advance()

        await expect(page.locator(".event-message").first).to_contain_text(HOSTILE)
        assert await page.title() == "Overview · AstraFlow"
        assert await page.locator("img").count() == 0
        await page.goto(f"{web.address}/charts/versions")
        await expect(page.locator("th bdi").get_by_text(HOSTILE)).to_be_visible()
        assert await page.locator("img").count() == 0
        await page.goto(f"{web.address}/nodes")
        await expect(page.locator("#row-n1 .errors")).to_have_text(HOSTILE)
        assert await page.title() == "Nodes · AstraFlow"
        assert await page.locator("img").count() == 0
        assert complaints.heard == []


@pytest.mark.long
async def test_problems_of_the_run_are_shown_above_every_page_while_they_last(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        trouble = page.locator('[data-region="problems"] .banner')
        await expect(page.locator(STEPS)).to_have_text("131")
        await expect(trouble).to_have_count(0)
        fake.synthetic_run.problems = (
            problem_record("journal", "", error=f"the disk is full: free some space {HOSTILE}"),
        )
        await fake.advance()
        await expect(trouble).to_contain_text(f"The disk is full: free some space {HOSTILE}")
        await page.goto(f"{web.address}/nodes")
        await expect(trouble).to_be_visible()
        fake.synthetic_run.problems = ()
        await fake.advance()
        await expect(trouble).to_have_count(0)
        assert complaints.heard == []


async def test_new_nodes_get_rows_and_draining_is_confirmed_in_a_dialog(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await page.goto(web.address + "/nodes")
        await expect(page.locator("tbody tr")).to_have_count(2)
        fake.synthetic_run.nodes = ("node-a", "node-b", "node-c")
        await fake.advance()
        await expect(page.locator("tbody tr")).to_have_count(3)

        await page.get_by_role("link", name="Drain node-c").click()
        dialog = page.get_by_role("dialog", name="Drain node-c?")
        await expect(dialog).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        assert fake.actions == []

        await page.get_by_role("link", name="Drain node-c").click()
        await dialog.get_by_label("Reason").fill("too slow")
        await dialog.get_by_role("button", name="Drain node").click()
        await expect(page.locator(".flash")).to_contain_text("Node n2 finishes what it has")
        assert fake.actions == [("drain", "n2", "admin")]
        assert complaints.heard == []


@pytest.mark.long
async def test_all_controls_are_reachable_by_keyboard_and_arrows_move_the_chart_cursor(
    web: RunningWeb, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url, viewport={"width": 1280, "height": 900}) as (page, _, _context):
        await expect(page.locator(STEPS)).to_have_text("131")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        reached = await _tab_through(page, presses=60)
        assert {"/", "/runs", "/nodes", "Pause", "plot-body"} <= reached

        await page.locator(".plot-body[tabindex]").first.focus()
        await page.keyboard.press("ArrowLeft")
        readings = page.locator(".plot-body[tabindex] .reading:not(:empty)")
        await expect(readings.nth(1)).to_be_attached()  # of several charts
        shown = {text.partition("step ")[2].partition(" ")[0] for text in await readings.all_inner_texts()}
        assert len(shown) == 1, "all charts read the same step"
        await page.keyboard.press("Escape")
        await expect(readings).to_have_count(0)


@pytest.mark.long
async def test_every_page_has_no_errors_fits_360_pixels_and_keeps_the_theme(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url, viewport={"width": 360, "height": 740}) as (page, complaints, _):
        await expect(page.locator("html.has-script")).to_be_attached()
        async with page.expect_response(lambda response: response.request.method == "POST"):
            await page.get_by_role("button", name="Dark theme").click()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        for path in ("/", "/nodes", "/runs", "/runs/1", "/charts/wait", "/nodes/n0/drain", "/audit", "/settings"):
            await page.goto(web.address + path)
            await expect(page.locator(AGE)).to_have_attribute("data-state", "live")
            assert await page.evaluate("document.documentElement.scrollWidth") == 360, path
            assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
            assert await page.evaluate("document.querySelectorAll('h1').length") == 1
            assert await page.evaluate(UNLABELLED) == []
        assert complaints.heard == []


@pytest.mark.long
async def test_pausing_stops_updates_and_resuming_applies_them(
    web: RunningWeb, fake: FakeControlPlane, chromium: Browser
) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, _, _context):
        await expect(page.locator(STEPS)).to_have_text("131")
        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator(AGE)).to_contain_text("paused")
        await fake.advance(10)
        await expect(page.locator(STEPS)).to_have_text("131")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.locator(STEPS)).to_have_text("140")


async def test_a_new_user_logs_in_by_link_and_then_by_password(web: RunningWeb, chromium: Browser) -> None:
    async with logged_in_page(chromium, web.login_url) as (page, complaints, _):
        await page.goto(f"{web.address}/settings")
        users = page.locator("section", has=page.locator("#users"))
        await users.get_by_label("Name").fill("bob")
        await users.locator("form.filters").get_by_label("Role").select_option("operator")
        await users.get_by_role("button", name="Add user").click()
        link = await page.locator(".secret .command").inner_text()
        assert complaints.heard == []

        async with logged_in_page(chromium, link) as (own, own_complaints, _):
            await own.goto(f"{web.address}/settings")
            await own.get_by_label("New password").fill("a sentence is easy")
            await own.get_by_role("button", name="Set password").click()
            await expect(own.locator(".flash")).to_contain_text("Password changed")
            await expect(own.locator("#users")).to_have_count(0)
            await own.get_by_role("button", name="Log out", exact=True).click()
            await own.get_by_label("Name").fill("bob")
            await own.get_by_label("Password").fill("a sentence is easy")
            await own.keyboard.press("Enter")
            await expect(own.locator("h1")).to_contain_text("Reward rose")
            assert own_complaints.heard == []

        await page.goto(f"{web.address}/settings")
        await page.get_by_role("link", name="Disable bob").click()
        dialog = page.get_by_role("dialog", name="Disable bob?")
        await dialog.get_by_label("Reason").fill(HOSTILE)
        await dialog.get_by_role("button", name="Disable").click()
        await expect(page.locator(".flash")).to_contain_text("Bob is disabled")

        await page.get_by_role("link", name="Audit", exact=True).click()
        await expect(page.locator("tbody tr").first).to_contain_text(HOSTILE)
        await page.get_by_role("link", name="Verify chain").click()
        await expect(page.locator(".chain-sentence")).to_contain_text("Chain intact")
        assert page.url.endswith("/audit"), "htmx did not reload the page"
        assert complaints.heard == []


UNLABELLED = """[...document.querySelectorAll('button, input:not([type=hidden]), select, a')]
    .filter((element) => element.checkVisibility())
    .filter((element) => !element.innerText?.trim() && !element.labels?.length && !element.ariaLabel && !element.title)
    .map((element) => element.outerHTML)"""


async def _tab_through(page: Page, *, presses: int) -> set[str]:
    """Returns what received the focus: addresses of links, texts of buttons, classes of other elements."""
    reached: set[str] = set()
    for _ in range(presses):
        await page.keyboard.press("Tab")
        reached.add(
            await page.evaluate(
                "(({tagName, className, innerText, attributes}) => tagName === 'A' ? attributes.href.value"
                " : tagName === 'BUTTON' ? innerText.trim() : className.baseVal ?? className)(document.activeElement)"
            )
        )
    return reached
