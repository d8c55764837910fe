"""Takes the pictures of the documentation from a run that is going on.

    python docs/make_screenshots.py 'http://127.0.0.1:PORT/login?token=...' docs/images

The link is the one that the run printed; it is used up. Needs playwright and a Chromium.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Error, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
WIDE = (1440, 900)
NARROW = (360, 740)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture."""

    name: str
    path: str
    theme: str = "light"
    size: tuple[int, int] = WIDE
    is_whole: bool = False
    """The whole page rather than what fits the window."""
    at: str = ""
    """Selector of what to scroll to first."""
    press: str = ""
    """Key that is pressed first."""
    click: str = ""
    """Selector of what is clicked first; the picture is left out when the page has none."""


SHOTS = (
    Shot(name="overview", path="/"),
    Shot(name="overview-dark", path="/", theme="dark"),
    Shot(name="overview-whole", path="/", is_whole=True),
    Shot(name="overview-narrow", path="/", size=NARROW),
    Shot(name="overview-decision", path="/", click="a.pin.decision"),
    Shot(name="palette", path="/", press="/", theme="dark"),
    Shot(name="keys", path="/", press="?"),
    Shot(name="nodes", path="/nodes"),
    Shot(name="pools", path="/pools"),
    Shot(name="pool", path="/pools/{pool}", is_whole=True),
    Shot(name="decisions", path="/decisions"),
    Shot(name="api", path="/api/v1/docs"),
    Shot(name="run", path="/runs/{run}"),
    Shot(name="trajectories", path="/runs/{run}", at="#samples"),
)


def main() -> int:
    """Log in, take every picture, say where they are."""
    parser = argparse.ArgumentParser(description="Screenshots of a run that is going on.")
    parser.add_argument("login_url", help="the one-time link that the run printed")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument(
        "--scale", type=float, default=2.0, help="device pixels for each CSS pixel (default %(default)s)"
    )
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM if CHROMIUM.exists() else None, args=["--no-sandbox", "--disable-gpu"]
            )
            for path in _pictures(browser, chosen.login_url, chosen.folder, chosen.scale):
                print(path)  # noqa: T201 (for the person who ran it)
    except (Error, RuntimeError) as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (for the person who ran it)
        return 1
    return 0


def _pictures(browser: Browser, login_url: str, folder: Path, scale: float) -> Iterator[Path]:
    address = login_url.partition("/login")[0]
    login = browser.new_context()
    page = login.new_page()
    page.goto(login_url)
    run, pool = _run_on(page, address), _pool_on(page, address)
    for shot in SHOTS:
        if "{pool}" in shot.path and not pool:
            continue
        context = browser.new_context(
            storage_state=login.storage_state(),
            color_scheme="dark" if shot.theme == "dark" else "light",
            viewport={"width": shot.size[0], "height": shot.size[1]},
            device_scale_factor=scale,
        )
        path = _take(context, shot, address + shot.path.format(run=run, pool=pool), folder)
        if path is not None:
            yield path
        context.close()


def _run_on(page: Page, address: str) -> str:
    """The number of the run that is live."""
    page.goto(f"{address}/runs")
    if "/login" in page.url:
        raise RuntimeError("that link was used already: start the web process again, it prints a new one")
    link = page.locator("tbody tr a.row-link").first.get_attribute("href")
    if link is None:
        raise RuntimeError("no run was recorded yet: wait for its first second")
    return link.rpartition("/")[2]


def _pool_on(page: Page, address: str) -> str:
    """The first pool; empty for a run without a fleet service."""
    page.goto(f"{address}/pools")
    links = page.locator("table.pools-table a.row-link")
    link = links.first.get_attribute("href") if links.count() else None
    return link.rpartition("/")[2] if link else ""


def _take(context: BrowserContext, shot: Shot, url: str, folder: Path) -> Path | None:
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector('.age[data-state="live"]')
    page.wait_for_timeout(1500)  # a second or two of the live feed, as a visitor sees it
    if shot.click:
        if page.locator(shot.click).count() == 0:
            return None
        page.locator(shot.click).last.click()
    if shot.press:
        page.keyboard.press(shot.press)
    if shot.click or shot.press:
        page.wait_for_timeout(500)
    if shot.at:
        page.locator(shot.at).scroll_into_view_if_needed()
        page.locator(shot.at).evaluate("element => element.scrollIntoView()")
    path = folder / f"{shot.name}.png"
    page.screenshot(path=path, full_page=shot.is_whole)
    return path


if __name__ == "__main__":
    sys.exit(main())
