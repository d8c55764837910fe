"""Takes the pictures of docs/reference/pages.md: every page of a run, in a real browser.

    python -m docs.generate.screenshots docs/images                     # starts a run of its own, and ends it
    python -m docs.generate.screenshots docs/images --of LINK           # of an existing run
    python -m docs.generate.screenshots /tmp/look --only pool --only run --size 1920x1080 --theme dark

LINK is the output of `astraflow login-link`; it is used up. An own run uses docs/generate/screenshots.toml: some
minutes pass until its charts have data. Needs playwright and a Chromium.
"""

import argparse
import base64
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from playwright.sync_api import Browser, Error, Page, StorageState, sync_playwright

from docs.generate.screenshot_png import as_png
from docs.generate.screenshot_run import OwnRun, empty_page, own_run

CHROMIUM = Path("/usr/bin/chromium-headless-shell")
WIDE = (1280, 800)
NARROW = (360, 740)
PATIENCE_MS = 60_000
"""A busy machine must not cause a failure."""

Act = Callable[[Page], None]
"""Action on a page before its picture is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture."""

    name: str
    path: str
    """`{run}`, `{pool}`, `{node}` and `{trajectory}` stand for the existing ones."""
    act: Act | None = None
    theme: str = "light"
    size: tuple[int, int] = WIDE
    height: int = 0
    """Pixels of the page from its top; 0 for what fits the window, -1 for the whole page."""
    is_logged_in: bool = True


def click(selector: str) -> Act:
    """Clicks the last match on the page: for annotations, the newest."""
    return lambda page: page.locator(selector).last.click(timeout=PATIENCE_MS)


def press(key: str) -> Act:
    """Presses a key."""
    return lambda page: page.keyboard.press(key)


def show(selector: str) -> Act:
    """Scrolls to an element."""
    return lambda page: page.locator(selector).evaluate("element => element.scrollIntoView()")


def find_nodes(page: Page) -> None:
    """Opens the palette and types into it."""
    page.keyboard.press("Control+k")
    page.locator("#palette-list [role=option]").first.wait_for()
    page.keyboard.type("node")


def open_first(page: Page) -> None:
    """Opens the first row of a table in its dialog."""
    page.locator("tbody a.row-link").first.click()
    page.locator("dialog[open] h1").wait_for(timeout=PATIENCE_MS)


def plan_a_size(page: Page) -> None:
    """Opens the dialog with the preview of a plan."""
    page.locator("input[name=target]").fill("6")
    page.locator("form[action$='/plans'] input[name=reason]").fill("the trainer waits")
    page.get_by_role("button", name="Preview").click()
    page.locator("dialog[open] #confirm").wait_for(timeout=PATIENCE_MS)


def ask_what_if(page: Page) -> None:
    """Evaluates the rule with other bounds."""
    page.locator("input[name=max_nodes]").fill("3")
    page.get_by_role("button", name="What if?").click()
    page.locator("#what-if").wait_for(timeout=PATIENCE_MS)
    page.locator("#bounds").evaluate("element => element.scrollIntoView()")


SHOTS = (
    Shot(name="login", path="/login", is_logged_in=False, size=(1280, 560)),
    Shot(name="overview", path="/", height=920),
    Shot(name="overview-whole", path="/", height=-1),
    Shot(name="overview-dark", path="/", theme="dark"),
    Shot(name="overview-narrow", path="/", size=NARROW),
    Shot(name="overview-decision", path="/", act=click("a.mark.decision")),
    Shot(name="doctor", path="/doctor"),
    Shot(name="runs", path="/runs", size=(1280, 520)),
    Shot(name="run", path="/runs/{run}", height=-1),
    Shot(name="trajectories", path="/runs/{run}/trajectories"),
    Shot(name="conversation", path="/runs/{run}/trajectories/{trajectory}"),
    Shot(name="compare", path="/runs/compare?{compared}"),
    Shot(name="new-run", path="/runs/new?recipe=smoke"),
    Shot(name="pools", path="/pools", size=(1280, 560)),
    Shot(name="pool", path="/pools/{pool}", height=-1),
    Shot(name="plan", path="/pools/{pool}", act=plan_a_size),
    Shot(name="what-if", path="/pools/{pool}", act=ask_what_if),
    Shot(name="nodes", path="/nodes", size=(1280, 640)),
    Shot(name="nodes-dark", path="/nodes", theme="dark", size=(1280, 640)),
    Shot(name="nodes-map", path="/nodes/map", size=(1280, 460)),
    Shot(name="node", path="/nodes/{node}", height=-1),
    Shot(name="dataflow", path="/dataflow", height=1150),
    Shot(name="weights", path="/weights"),
    Shot(name="events", path="/events"),
    Shot(name="decisions", path="/decisions"),
    Shot(name="decision", path="/decisions?kind=target_moved", act=open_first),
    Shot(name="maintainer", path="/maintainer", height=1150),
    Shot(name="alerts", path="/alerts", size=(1280, 640)),
    Shot(name="audit", path="/audit"),
    Shot(name="settings", path="/settings", height=1150),
    Shot(name="palette", path="/", act=find_nodes, theme="dark"),
    Shot(name="keys", path="/", act=press("?")),
    Shot(name="api", path="/api/v1/docs"),
)

AFTER = Shot(name="stale", path="/", size=(1280, 560))
"""Last picture, with dataflow stopped."""
EMPTY = Shot(name="empty", path="/runs", size=(1280, 560))
"""Picture of a page without runs."""


def main() -> int:
    """Takes every picture and prints the paths."""
    chosen = _arguments()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    shots = [shot for shot in (*SHOTS, AFTER, EMPTY) if not chosen.only or shot.name in chosen.only]
    if chosen.size:
        shots = [replace(shot, size=chosen.size) for shot in shots]
    if chosen.theme:
        shots = [replace(shot, theme=chosen.theme) for shot in shots]
    try:
        with ExitStack() as stack:
            run = None if chosen.of else stack.enter_context(own_run(chosen.settle_s, say=_say))
            browser = stack.enter_context(sync_playwright()).chromium.launch(
                executable_path=CHROMIUM if CHROMIUM.exists() else None, args=["--no-sandbox", "--disable-gpu"]
            )
            for path in _pictures(browser, shots, run.link if run else chosen.of, run, chosen.folder):
                _say(str(path))
    except (Error, RuntimeError) as problem:
        print(f"error: {problem}", file=sys.stderr)  # noqa: T201 (for the person who ran it)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pictures of every page of a run.")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--of", default="", metavar="LINK", help="login link of a run that goes on; none: an own one")
    parser.add_argument(
        "--settle-s", type=float, default=900.0, help="how long an own run goes on before (default %(default)s)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only that picture; may be repeated"
    )
    parser.add_argument("--size", type=_size, default=None, metavar="WxH", help="another window")
    parser.add_argument("--theme", choices=("light", "dark"), default="", help="another theme")
    return parser.parse_args()


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 (for the person who ran it)


def _pictures(browser: Browser, shots: list[Shot], link: str, run: OwnRun | None, folder: Path) -> Iterator[Path]:
    address, state = _logged_in(browser, link)
    page = browser.new_context(storage_state=state).new_page()
    page.set_default_timeout(PATIENCE_MS)
    if run is not None and any("{compared}" in shot.path for shot in shots):
        _launch_two(page, address)  # at the start: their load must not appear in the pictures
    if run is not None:
        run.settle()
    places = _places(page, address)
    for shot in shots:
        wanted = set(re.findall(r"{(\w+)}", shot.path))
        if shot in (AFTER, EMPTY) or not all(places[name] for name in wanted):
            continue  # a run without a fleet service has no pools
        yield _take(browser, shot, address + shot.path.format_map(places), state, folder)
    if run is None:
        return
    if AFTER in shots:
        with run.stopped("dataflow"):
            time.sleep(20)  # pages mark a report as stale after five seconds; this one is clearly older
            yield _take(browser, AFTER, address + AFTER.path, state, folder)
    if EMPTY in shots:
        with empty_page() as empty:
            address, state = _logged_in(browser, empty)
            yield _take(browser, EMPTY, address + EMPTY.path, state, folder)


def _logged_in(browser: Browser, link: str) -> tuple[str, StorageState]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    if "/login" in page.url:
        raise RuntimeError("cannot log in: the link was used already; `astraflow login-link` prints a new one")
    return link.partition("/login")[0], context.storage_state()


def _launch_two(page: Page, address: str) -> None:
    """Runs two short runs that differ in one setting, to compare them; returns after their end."""
    for staleness in ("2", "4"):
        page.goto(address + "/runs/new?recipe=smoke")
        page.locator("input[name='set.policies.solver.max_staleness']").fill(staleness)
        page.locator("#reason").fill("to compare")
        page.get_by_role("button", name="Launch run").click()
        page.locator("#launch-state:not([hx-get])").wait_for(timeout=3 * PATIENCE_MS)


def _places(page: Page, address: str) -> dict[str, str]:
    """Returns the newest run, the first pool, node and trajectory for addresses; empty where there is none."""

    def last_part(path: str, selector: str) -> str:
        page.goto(address + path)
        links = page.locator(selector)
        return (links.first.get_attribute("href") or "").rpartition("/")[2] if links.count() else ""

    page.goto(address + "/runs")
    shown = page.locator(".frame").get_attribute("data-run")
    hrefs = {link.inner_text(): link.get_attribute("href") or "" for link in page.locator("tbody a.row-link").all()}
    runs = {name: href.rpartition("/")[2] for name, href in hrefs.items() if re.search(r"^/runs/\d+$", href)}
    run = runs.get(shown or "", "")
    compared = [number for number in runs.values() if number != run]
    return {
        "run": run,
        "compared": "&".join(f"run={number}" for number in compared[:2]) if len(compared) > 1 else "",
        "pool": last_part("/pools", "table.pools-table a.row-link"),
        "node": last_part("/nodes", "tbody a.row-link"),
        "trajectory": last_part(f"/runs/{run}/trajectories", "a.row-link") if run else "",
    }


def _take(browser: Browser, shot: Shot, url: str, state: StorageState, folder: Path) -> Path:
    context = browser.new_context(
        storage_state=state if shot.is_logged_in else None,
        color_scheme="dark" if shot.theme == "dark" else "light",
        viewport={"width": shot.size[0], "height": shot.size[1]},
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    page.wait_for_timeout(2500)  # a few seconds of live updates, as a visitor sees them
    if shot.act:
        shot.act(page)
        page.wait_for_timeout(800)
    for _ in range(2 if shot.height else 0):  # charts draw themselves again at another size, and the page may grow
        whole = int(page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": shot.size[0], "height": whole if shot.height < 0 else shot.height})
        page.wait_for_timeout(500)
    picture = base64.b64encode(page.screenshot()).decode()
    raw = context.new_page().evaluate(PIXELS, picture)
    path = folder / f"{shot.name}.png"
    path.write_bytes(as_png(base64.b64decode(raw["rgba"]), width=raw["width"]))
    context.close()
    return path


PIXELS = """async (picture) => {
  const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const pixels = drawing.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let at = 0; at < pixels.length; at += 32768) text += String.fromCharCode(...pixels.subarray(at, at + 32768));
  return { width: image.width, rgba: btoa(text) };
}"""
"""The browser decodes its own picture."""

if __name__ == "__main__":
    sys.exit(main())
