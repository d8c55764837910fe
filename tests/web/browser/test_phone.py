"""Every page on a phone: nothing is to be scrolled sideways, nor are the tables that one looks at first."""

from pathlib import Path

import pytest

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.control_plane import FakeControlPlane
from tests.web.walk import house

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240)]

WIDTH = 360

FIRST = ("/", "/pools", "/pools/eu", "/nodes", "/runs", "/decisions")
"""Where an operator looks at night."""

TOO_WIDE = """[...document.querySelectorAll(".table-scroll")]
    .filter((table) => table.offsetParent && table.scrollWidth > table.clientWidth)
    .map((table) => table.ariaLabel)"""

TABLES = "document.querySelectorAll('.table-scroll .table.fits tbody tr').length"


async def test_no_page_scrolls_sideways_on_a_phone_and_the_first_tables_fit_it(
    fake: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    fake.world.node_errors = {"node-b": ("an error that says rather much about what happened to it",)}
    async with (
        house(tmp_path, fake) as walked,
        browser() as chromium,
        logged_in_page(chromium, walked.web.address + "/login", viewport={"width": WIDTH, "height": 740}) as found,
    ):
        page, _, context = found
        cookies = [{"name": n, "value": v, "url": walked.web.address} for n, v in walked.admin.cookies.items()]
        await context.add_cookies(cookies)  # type: ignore[arg-type] # as it takes them
        pages = await walked.pages()
        assert set(FIRST) <= set(pages)
        too_wide, rows = {}, {}
        for address in pages:
            await page.goto(walked.web.address + address)
            width = await page.evaluate("document.documentElement.scrollWidth")
            if width > WIDTH:
                too_wide[address] = width
            if address in FIRST:
                rows[address] = await page.evaluate(TABLES)
                assert await page.evaluate(TOO_WIDE) == [], address
    assert not too_wide
    assert all(rows[address] for address in FIRST[1:]), "there is something in each of the tables"
