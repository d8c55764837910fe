"""Debian's Chromium without windows, with its console errors, exceptions and failed requests."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Request, async_playwright, expect

CHROMIUM = Path("/usr/bin/chromium-headless-shell")
"""The engine without the windows of a browser: a page costs 1.0 s of a core instead of 2.8 s with `chromium`."""

expect.set_options(timeout=40_000)  # a busy machine must not fail the test

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


REQUEST_ABORTED = "net::ERR_ABORTED"
"""Error of a request that was pending when the page was left, or that is a download."""


class BrowserErrors:
    """Console errors (including refused requests and violations of the content security policy), exceptions, and
    requests without a response.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []

    def listen(self, page: Page) -> None:
        page.on("console", lambda message: self._note(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda problem: self._note(str(problem)))
        page.on("requestfailed", self._note_failed)

    def taken(self) -> list[str]:
        """Returns the errors since the last call."""
        errors, self.heard = self.heard, []
        return errors

    def _note_failed(self, request: Request) -> None:
        if request.failure not in (None, REQUEST_ABORTED):
            self._note(f"{request.url}: {request.failure}")

    def _note(self, text: str) -> None:
        self.heard.append(text)


@asynccontextmanager
async def browser(environment: Mapping[str, str] | None = None) -> AsyncIterator[Browser]:
    """Headless Chromium, with extra environment variables. A machine that runs these tests must have Chromium: they
    are never skipped.
    """
    if not CHROMIUM.exists():
        remedy = f"apt-get install {CHROMIUM.name}, or leave these tests out with -m 'not browser'"
        pytest.fail(f"{CHROMIUM} is missing: {remedy}")
    async with async_playwright() as playwright:
        variables = {**os.environ, **(environment or {})}
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS), env=variables)  # type: ignore[arg-type] # invariant
        try:
            yield chromium
        finally:
            await chromium.close()


@asynccontextmanager
async def logged_in_page(
    chromium: Browser, login_url: str, **options: Any
) -> AsyncIterator[tuple[Page, BrowserErrors, BrowserContext]]:
    """Yields a page that followed the login link, with its errors."""
    context = await chromium.new_context(**options)
    page, complaints = await context.new_page(), BrowserErrors()
    complaints.listen(page)
    await page.goto(login_url)
    yield page, complaints, context
    await context.close()
