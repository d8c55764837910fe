"""Pages in a real browser: time to first paint, size, and the CPU of an open page of nodes."""

from functools import partial
from typing import Any

import httpx
from playwright.async_api import Page, Response

from benchmarks.web_load.processes import Web
from tests.fakes.browser import browser

OPEN_S = 120.0
PAGES = ("/", "/nodes", "/nodes/map")


async def measure_pages(web: Web, client: httpx.AsyncClient) -> list[tuple[str, str, str]]:
    """Returns rows of quantity, measurement and target."""
    lines: list[tuple[str, str, str]] = []
    async with browser() as chromium:
        cookies: Any = [{"name": name, "value": value, "url": web.address} for name, value in client.cookies.items()]
        for path in PAGES:
            context = await chromium.new_context()
            await context.add_cookies(cookies)
            page = await context.new_page()
            sizes: dict[str, int] = {}
            page.on("response", partial(_sized, sizes))
            await page.goto(web.address + path)
            await page.wait_for_timeout(1500)
            paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
            script = sum(size for address, size in sizes.items() if address.endswith(".js"))
            lines += [
                (f"first contentful paint of {path}", f"{paint:.0f} ms" if paint else "none", "<= 600 ms"),
                (
                    f"JS, whole, of {path}",
                    f"{script / 1e3:.0f} kB, {sum(sizes.values()) / 1e3:.0f} kB",
                    "<= 120 kB gz, <= 250 kB",
                ),
            ]
            await context.close()
        context = await chromium.new_context()
        await context.add_cookies(cookies)
        lines += await _open(await context.new_page(), web)
    return lines


async def _sized(sizes: dict[str, int], answer: Response) -> None:
    sizes[answer.url.partition("?")[0]] = len(await answer.body())


async def _open(page: Page, web: Web) -> list[tuple[str, str, str]]:
    """Measures the table of nodes, left open."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.goto(f"{web.address}/nodes")
    await page.wait_for_timeout(10_000)
    before = await _measured(session)
    await page.wait_for_timeout(OPEN_S * 1000)
    after = await _measured(session)
    grown = (after["JSHeapUsedSize"] - before["JSHeapUsedSize"]) / 1e6
    busy = 100 * (after["TaskDuration"] - before["TaskDuration"]) / (after["Timestamp"] - before["Timestamp"])
    return [
        (f"heap growth in {OPEN_S:.0f} s", f"{grown:.2f} MB", f"<= {5 * OPEN_S / 600:.1f} MB (5 MB in 10 min)"),
        ("browser CPU, nodes page open", f"{busy:.1f} % of a core", "<= 10 %"),
    ]


async def _measured(session: Any) -> dict[str, float]:
    await session.send("HeapProfiler.collectGarbage")
    reply = await session.send("Performance.getMetrics")
    return {metric["name"]: metric["value"] for metric in reply["metrics"]}
