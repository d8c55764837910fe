"""Pages on a phone, and `FIRST` on a laptop, with each font set: no page and no table of `FIRST` scrolls sideways."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.ids import Version
from astraflow.contract.reports.report import NodeReport, NodeState
from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fonts import FONT_SETS, FontSet, families_of
from tests.fakes.synthetic_run import SyntheticRun
from tests.web.all_pages import ServedSite, served_site

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("ready_cli"),
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.long,
]

PHONE, LAPTOPS = 360, (1280, 1440)
"""Widths in pixels."""

FIRST = ("/", "/pools", "/pools/eu", "/nodes", "/runs", "/decisions", "/alerts")
"""The pages that an operator reads first."""

TOO_WIDE = """[...document.querySelectorAll(".table-scroll")]
    .filter((table) => table.offsetParent && table.scrollWidth > table.clientWidth + 1)
    .map((table) => table.ariaLabel)"""

SPILLING = """[...document.querySelectorAll("main, main section, main form, main fieldset, main label, main .ledgers")]
    .filter((part) => part.offsetParent && getComputedStyle(part).overflowX === "visible")
    .filter((part) => part.scrollWidth > part.clientWidth + 1)
    .map((part) => `${part.tagName} ${part.className}`)"""
"""Script that returns page elements with content wider than themselves."""

LONG_AGES = """document.querySelectorAll("time[data-behavior=ago]").forEach((age) => {
    age.textContent = "22 min 19 s ago";
})"""

TABLES = "document.querySelectorAll('.table-scroll .table.fits tbody tr').length"


class LaggingRun(SyntheticRun):
    """Two types of nodes in two regions; the first is lost, many versions behind, and has an error."""

    def _node(self, name: str, index: int, sequence: int, is_history: bool) -> NodeReport:
        node = super()._node(name, index, sequence, is_history)
        node = replace(node, facts=replace(node.facts, hardware=f"{2 + index}x x86_64", price_per_hour=2.5))
        if index:
            return node
        versions = {policy: Version(max(0, version - 12)) for policy, version in node.versions.items()}
        return replace(node, versions=versions, state=NodeState.LOST, heartbeat_age_s=75.0)


@pytest.mark.parametrize(
    "fonts",
    [FONT_SETS[0], *(pytest.param(fonts, marks=pytest.mark.long) for fonts in FONT_SETS[1:])],
    ids=lambda fonts: fonts.family,
)
async def test_no_page_scrolls_horizontally_on_a_phone_and_the_first_tables_fit_it_and_a_laptop(
    fonts: FontSet, fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    errors = {"node-b": ("an error that says rather much about what happened to it",)}
    fake.synthetic_run = LaggingRun(simulated=("engine scripted",), node_errors=errors)
    async with served_site(tmp_path, fake) as walked:
        pages = await walked.pages()
        assert set(FIRST) <= set(pages)
        problems = await _problems(walked, list(pages), fonts, tmp_path)
    assert problems == []


async def _problems(walked: ServedSite, pages: list[str], fonts: FontSet, directory: Path) -> list[str]:
    """Opens every page with one font set; returns one line for each page or table that is too wide."""
    problems = []
    address = walked.web.address
    async with (
        browser(fonts.environment(directory)) as chromium,
        logged_in_page(chromium, walked.web.login_url) as (page, _, context),
    ):
        cookies = [{"name": n, "value": v, "url": address} for n, v in walked.admin.cookies.items()]
        page.set_default_timeout(120_000)  # a busy machine must not fail the test
        await context.add_cookies(cookies)  # type: ignore[arg-type] # cookie dictionaries
        for width, path in [
            *((PHONE, path) for path in pages),
            *((width, path) for width in LAPTOPS for path in FIRST),
        ]:
            await page.set_viewport_size({"width": width, "height": 740})
            await page.goto(address + path)
            where = f"{path} at {width} px with {fonts.family}"
            if (shown := await page.evaluate("document.documentElement.scrollWidth")) > width:
                problems.append(f"{where} is {shown} px wide")
            problems += [f"{where} has too little room for {part}" for part in await page.evaluate(SPILLING)]
            if path in FIRST:
                assert path == "/" or await page.evaluate(TABLES), f"{path} has no rows to measure"
                await page.evaluate(LONG_AGES)
                problems += [f"{where} scrolls '{table}'" for table in await page.evaluate(TOO_WIDE)]
        assert await families_of(page, "h1") == {fonts.family}
    return problems
