"""The twenty problems of the review of 2026-11-28, in a real browser; their numbers are in the names of the tests.

The table of all is in docs/decisions/web.md.
"""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.report import NodeState
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.runtime.folders.run_folders import HOME, runs_folder
from tests.fakes.browser import BrowserErrors, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fleet import running_fleet
from tests.fakes.recorded_run import fill, recorded_archive, run_folder
from tests.fakes.synthetic_run import SyntheticRun
from tests.fakes.web import RunningWeb, running_web
from tests.web.browser.test_runs_browser import COVERED
from tests.web.launches.test_launching import until

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240)]

GROUPS = 40
"""Groups of the ended run: one of each step. Count."""
HOLE, SHORT_HOLE, END = (60, 400), (420, 450), 460
"""Seconds between which the ended run has no reports, and its last second."""
PHONE = {"width": 390, "height": 844}
LAPTOP = {"width": 1440, "height": 900}

WORDS = "window.words = []; const fill = CanvasRenderingContext2D.prototype.fillText;" + (
    "CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {"
    " window.words.push(text); return fill.call(this, text, ...more); };"
)
"""Script that records the texts that charts draw."""

GAPS = """async (source) => {
    const { gapsOf } = await import(source.replace("main.js", "plotgaps.js"));
    const annotations = [[1, 3, "loss", "Node lost: n9.", ""], [2, 400, "evaluation", "Round 3.", ""]];
    const table = { kinds: { time: "at" }, columns: { at: [0, 10, 500, 510, 520, 530] }, annotations };
    const xs = [0, 10, 255, 500, 510, 520, 530];
    const values = [[1, 2, null, 3, 4, null, 5], [1, 2, null, 3, 4, 5, 6]];
    const lines = [{ value: "demand" }, { value: "ready" }];
    return gapsOf({ xs, values, lines, kind: "time", table }, { reason: "not measured", reasonOf: "demand" });
}"""
"""Script that returns the gaps of a line: one without reports after a lost node, one of a row without its value."""


@dataclass(kw_only=True)
class RunWithLosses(SyntheticRun):
    """A run whose nodes can be lost."""

    lost: set[str] = field(default_factory=set)

    def _state(self, node: str, sequence: int, index: int) -> NodeState:
        return NodeState.LOST if node in self.lost else super()._state(node, sequence, index)


@dataclass(frozen=True, kw_only=True)
class Review:
    """The page of the reviewer: a followed run with a fleet, and an ended run of this machine."""

    page: Page
    errors: BrowserErrors
    web: RunningWeb
    fake: FakeControlPlane
    run: RunWithLosses

    async def go(self, path: str, *, size: dict[str, int] | None = None) -> Page:
        """Opens a page of the site, at the size of a laptop by default."""
        await self.page.set_viewport_size(size or LAPTOP)  # type: ignore[arg-type] # a dictionary of its two keys
        await self.page.goto(self.web.address + path)
        return self.page

    async def text(self, path: str) -> str:
        """Returns the content of a file of the site."""
        return await (await self.page.context.request.get(self.web.address + path)).text()


@pytest.fixture(scope="module")
async def review(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> AsyncIterator[Review]:
    """The page of both runs."""
    folder, run = tmp_path_factory.mktemp("review"), RunWithLosses(nodes=("node-a", "node-b", "node-c"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME, str(folder / "home"))
        _ended_run("ended-0001")
        fake = FakeControlPlane(run, sequence=150, history=60)
        async with (
            fake.serving() as dataflow,
            running_fleet(folder / "fleet", nodes=3) as fleet,
            running_web(folder / "web", dataflow, fleet=fleet.address) as web,
        ):
            await web.until_connected()
            async with logged_in_page(chromium, web.login_url, viewport=LAPTOP) as (page, errors, _):
                yield Review(page=page, errors=errors, web=web, fake=fake, run=run)
                assert errors.heard == []


def _ended_run(name: str) -> None:
    """Creates the folder of an ended run with steps, groups of each step, and a hole in its reports."""
    run = SyntheticRun(run=name, began_at=1000.0)
    seconds = [*range(1, HOLE[0]), *range(HOLE[1], SHORT_HOLE[0]), *range(SHORT_HOLE[1], END)]
    steps = run.training_steps(END, TrainingStepQuery(policy=PolicyId("solver"))).steps
    archive = recorded_archive(run_folder(runs_folder() / name, run=name))
    fill(archive, groups=GROUPS, reports=tuple(run.report(second) for second in seconds), steps=steps)
    archive.close()


async def test_01_every_run_of_the_machine_is_listed(review: Review) -> None:
    page = await review.go("/runs")
    for path in ("/runs/1", "/runs/2"):
        await expect(page.locator(f"#runs-table a.row-link[href='{path}']")).to_be_visible()
    await page.locator("#run-1 a.row-link").click()
    await expect(page.get_by_role("link", name="Configuration")).to_be_visible()
    await expect(page.locator("main")).to_have_class(re.compile("timeless"))  # not dimmed with the followed run


async def test_02_the_headline_follows_the_nodes_that_are_ready_now(review: Review) -> None:
    page = await review.go("/")
    headline, nodes = page.locator(".diagnosis-headline"), page.locator(".chain li", has_text="Nodes")
    await expect(nodes).to_contain_text(re.compile("3 of . ready"))
    before = await headline.inner_text()
    review.run.lost |= {"n0", "n1", "n2"}
    await review.fake.advance()
    await expect(nodes).to_contain_text(re.compile("0 of . ready"))
    await expect(headline).not_to_have_text(before)
    await expect(headline).to_have_attribute("data-tone", re.compile("warn|bad"))
    review.run.lost.clear()
    await review.fake.advance()
    await expect(nodes).to_contain_text(re.compile("3 of . ready"))


async def test_03_the_first_screen_of_a_run_shows_its_reward(review: Review) -> None:
    page = await review.go("/runs/1")
    chart = page.locator("figure", has_text="Reward of rollouts").first.locator("canvas")
    await expect(chart).to_be_visible()
    box = await chart.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= LAPTOP["height"]


async def test_04_one_diagnosis_has_a_verdict_and_ratios_are_those_of_the_printed_numbers(review: Review) -> None:
    page = await review.go("/")
    await expect(page.locator(".diagnosis-headline")).to_have_count(1)
    assert await page.locator(".number :is([data-tone=good], [data-tone=warn], [data-tone=bad])").count() == 0
    card = await page.locator(".number", has_text="Capacity against demand").inner_text()
    ratio, ready, needed = map(float, re.findall(r"\d+\.\d+", card)[:3])
    assert ratio == pytest.approx(ready / needed, abs=0.01)


async def test_05_the_first_step_of_a_long_run_has_its_samples(review: Review) -> None:
    page = await review.go("/runs/1/trajectories?step=1")
    await expect(page.get_by_role("navigation", name="Steps").locator("strong")).to_have_text("Step 1")
    await expect(page.locator("article.group")).to_have_count(1)
    await expect(page.locator("article.group pre").first).to_contain_text("prompt 1")


async def test_06_a_filter_does_not_change_the_summary_of_a_group(review: Review) -> None:
    page = await review.go("/runs/1/trajectories?step=3")
    whole = await page.locator(".group-score").inner_text()
    await review.go("/runs/1/trajectories?step=3&max_reward=0.5")
    assert (await page.locator(".group-score").inner_text()).startswith(whole)
    assert "of which shown" in await page.locator(".group-score").inner_text()


@pytest.mark.parametrize("width", [390, 1280, 1920])
async def test_07_the_buttons_of_a_run_are_not_covered(review: Review, width: int) -> None:
    page = await review.go("/runs/1", size={"width": width, "height": 900})
    await expect(page.get_by_role("link", name="Configuration")).to_be_visible()
    assert await page.evaluate(COVERED) == []


async def test_08_a_run_has_a_title_tags_and_its_configuration(review: Review) -> None:
    page = await review.go("/runs/1/metadata")
    await page.get_by_label("Title").fill("the ended one")
    await page.get_by_label("Tags").fill("review, past")
    await page.get_by_role("button", name="Save").click()
    await review.go("/runs?text=past")
    await expect(page.locator("#run-1")).to_contain_text("the ended one")
    await review.go("/runs/1/configuration")
    await expect(page.locator("main")).to_contain_text("recipe")


async def test_09_a_chart_is_zoomed_and_has_a_logarithmic_axis_and_smoothing(review: Review) -> None:
    page = await review.go("/runs/1/charts/entropy")
    box = await page.locator(".u-over").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=4)
    await page.mouse.up()
    await expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    await page.get_by_role("button", name="Log scale").click()
    await page.locator("[data-smooth]").fill("0.9")
    await expect(page).to_have_url(re.compile("(?=.*from=)(?=.*log=1)(?=.*smooth=0.9)"))


async def test_10_the_file_of_training_has_every_step(review: Review) -> None:
    lines = (await review.text("/runs/1/training.csv")).splitlines()
    column = lines[0].split(",").index("step")
    steps = [int(float(line.split(",")[column])) for line in lines[1:]]
    assert steps == list(range(1, max(steps) + 1))
    assert len(steps) > 300


async def test_11_a_gap_of_a_chart_has_its_reason_in_it_and_in_its_reading(review: Review) -> None:
    await review.page.add_init_script(WORDS)
    page = await review.go("/runs/1/charts/wait?x=time")
    over = page.locator(".u-over")
    await expect(over).to_be_attached()

    async def is_drawn() -> bool:
        return "No report" in await page.evaluate("window.words")

    await until(is_drawn, what="the reason in the gap")
    gaps = await page.evaluate(GAPS, await page.locator("script[type=module][src*='main.js']").get_attribute("src"))
    assert gaps == [
        {"rows": [2, 2], "from": 10, "to": 500, "text": "No report \u00b7 Node lost", "isPart": False},
        {"rows": [5, 5], "from": 510, "to": 530, "text": "not measured", "isPart": True},
    ]
    box = await over.bounding_box()
    assert box is not None
    for begin, end in (HOLE, SHORT_HOLE):
        await page.mouse.move(box["x"] + (begin + end) / 2 / END * box["width"], box["y"] + 30)
        await expect(page.locator(".reading")).to_contain_text("No report")
        await page.mouse.move(box["x"] + (end + 3) / END * box["width"], box["y"] + 30)
        await expect(page.locator(".reading")).not_to_contain_text("No report")


async def test_12_lost_nodes_are_one_line_above_those_that_serve(review: Review) -> None:
    review.run.lost.add("n1")
    await review.fake.advance()
    page = await review.go("/nodes")
    await expect(page.get_by_text("1 node lost in the last hour")).to_be_visible()
    rows = page.locator("tbody tr th, tbody tr td:nth-child(2)")
    await expect(rows.first).to_be_visible()
    assert "node-b" not in " ".join(await rows.all_inner_texts())
    review.run.lost.clear()
    await review.fake.advance()


@pytest.mark.parametrize(("words", "entry"), [("new run", "New run"), ("drain", "Drain"), ("ended-0001", "ended-0001")])
async def test_15_the_palette_finds_actions_and_runs(review: Review, words: str, entry: str) -> None:
    page = await review.go("/")
    await expect(page.locator("html.has-script")).to_be_attached()
    await page.keyboard.press("Control+k")
    await page.keyboard.type(words)
    await expect(page.get_by_role("option").first).to_contain_text(entry)
    await page.keyboard.press("Escape")


async def test_16_the_title_of_a_chart_has_the_values_at_the_ends_of_its_line(review: Review) -> None:
    page = await review.go("/runs/1/charts/entropy")
    title = await page.locator(".chart-insight").inner_text()
    rows = json.loads(await review.text("/runs/1/charts/entropy.json"))
    values = [
        row["entropy"] for row in (rows["rows"] if isinstance(rows, dict) else rows) if row["entropy"] is not None
    ]
    assert [float(number) for number in re.findall(r"\d+\.\d+", title)] == pytest.approx(
        [values[0], values[-1]], rel=0.01
    )


async def test_17_a_pool_is_held_and_pages_use_no_internal_words(review: Review) -> None:
    page = await review.go("/pools/eu")
    await expect(page.get_by_role("button", name="Hold")).to_be_visible()
    for path in ("/", "/pools", "/pools/eu", "/decisions"):
        await review.go(path)
        text = (await page.locator("main").inner_text()).lower()
        assert [word for word in ("manual override", "envelope", "staleness gate") if word in text] == [], path


async def test_18_the_page_of_the_maintainer_has_what_connects_a_model(review: Review) -> None:
    page = await review.go("/maintainer")
    await expect(page.locator("#connect pre", has_text="chat_completions")).to_contain_text("base_url")
    await expect(page.locator("#connect pre", has_text="messages_api")).to_be_visible()
    await expect(page.locator("#serve-command")).to_contain_text("astraflow serve maintainer")


async def test_20_tables_fit_and_a_phone_has_the_reason_of_decisions_and_all_pages(review: Review) -> None:
    page = await review.go("/weights")
    assert await page.evaluate(
        "[...document.querySelectorAll('.table-scroll')].every((part) => part.scrollWidth <= part.clientWidth)"
    )
    await review.go("/decisions", size=PHONE)
    await expect(page.locator("td .only-narrow").first).to_be_visible()
    settings = page.get_by_role("navigation").get_by_role("link", name="Settings")
    await settings.scroll_into_view_if_needed()
    await settings.click()
    await expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()


async def test_13_without_a_run_the_first_page_is_the_list_and_others_say_what_they_show(
    tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    _ended_run("ended-0002")
    async with (
        running_web(tmp_path / "web", "") as web,
        logged_in_page(chromium, web.login_url, viewport=LAPTOP) as (page, errors, _),
    ):
        await page.goto(web.address)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        for _ in range(20):
            if await page.get_by_role("link", name="ended-0002").count():
                break
            await page.reload()
        await expect(page.get_by_role("link", name="ended-0002").first).to_be_visible()
        await page.goto(web.address + "/nodes")
        await expect(page.get_by_role("main")).to_contain_text("choose one in the list of runs")
        assert errors.heard == []
