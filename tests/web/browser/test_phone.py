"""Every page on a phone, with each font set: no page and no table of `FIRST` scrolls sideways."""

from pathlib import Path

import pytest

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.fonts import FONT_SETS, FontSet, families_of
from tests.web.all_pages import ServedSite, served_site

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("ready_cli"), pytest.mark.browser, pytest.mark.timeout(900)]

WIDTH = 360

FIRST = ("/", "/pools", "/pools/eu", "/nodes", "/runs", "/decisions")
"""The pages that an operator reads first."""

TOO_WIDE = """[...document.querySelectorAll(".table-scroll")]
    .filter((table) => table.offsetParent && table.scrollWidth > table.clientWidth)
    .map((table) => table.ariaLabel)"""

SPILLING = """[...document.querySelectorAll("main, main section, main form, main fieldset, main label, main .ledgers")]
    .filter((part) => part.offsetParent && getComputedStyle(part).overflowX === "visible")
    .filter((part) => part.scrollWidth > part.clientWidth + 1)
    .map((part) => `${part.tagName} ${part.className}`)"""
"""Script that returns page elements with content wider than themselves."""

TABLES = "document.querySelectorAll('.table-scroll .table.fits tbody tr').length"


@pytest.mark.parametrize(
    "fonts",
    [FONT_SETS[0], *(pytest.param(fonts, marks=pytest.mark.long) for fonts in FONT_SETS[1:])],
    ids=lambda fonts: fonts.family,
)
async def test_no_page_scrolls_horizontally_on_a_phone_and_the_first_tables_fit(
    fonts: FontSet, fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    fake.synthetic_run.node_errors = {"node-b": ("an error that says rather much about what happened to it",)}
    async with served_site(tmp_path, fake) as walked:
        pages = await walked.pages()
        assert set(FIRST) <= set(pages)
        problems = await _problems(walked, list(pages), fonts, tmp_path)
    assert problems == []


async def _problems(walked: ServedSite, pages: list[str], fonts: FontSet, directory: Path) -> list[str]:
    """Opens every page with one font set; returns one line for each page or table that is wider than the phone."""
    problems = []
    address = walked.web.address
    async with (
        browser(fonts.environment(directory)) as chromium,
        logged_in_page(chromium, walked.web.login_url, viewport={"width": WIDTH, "height": 740}) as (page, _, context),
    ):
        cookies = [{"name": n, "value": v, "url": address} for n, v in walked.admin.cookies.items()]
        page.set_default_timeout(120_000)  # a busy machine must not fail the test
        await context.add_cookies(cookies)  # type: ignore[arg-type] # cookie dictionaries
        for path in pages:
            await page.goto(address + path)
            where = f"{path} with {fonts.family}"
            if (width := await page.evaluate("document.documentElement.scrollWidth")) > WIDTH:
                problems.append(f"{where} is {width} px wide")
            problems += [f"{where} has too little room for {part}" for part in await page.evaluate(SPILLING)]
            if path in FIRST:
                assert path == "/" or await page.evaluate(TABLES), f"{path} has no rows to measure"
                problems += [f"{where} scrolls '{table}'" for table in await page.evaluate(TOO_WIDE)]
        assert await families_of(page, "h1") == {fonts.family}
    return problems
