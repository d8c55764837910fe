"""A session that ends while a person fills in a form, in a real browser: after the login what was typed is there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.fakes.browser import logged_in_page
from tests.fakes.fleet import RunningFleet
from tests.fakes.web import RunningWeb

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PASSWORD = "a long password of the test"
HOURS_S = 13 * 3600.0
"""Longer than a session."""


@asynccontextmanager
async def admin_page(pages: RunningWeb, chromium: Browser) -> AsyncIterator[tuple[Page, BrowserContext]]:
    """Yields the page of an admin who has a password."""
    async with logged_in_page(chromium, pages.login_url) as (page, _, context):
        await page.goto(f"{pages.address}/settings")
        await page.fill('input[name="new"]', PASSWORD)
        await page.click('form[action="/settings/password"] button')
        await expect(page.locator(".flash")).to_contain_text("Password changed")
        yield page, context


async def log_in(page: Page) -> None:
    """Logs in by name and password on the login page."""
    await page.fill('input[name="name"]', "admin")
    await page.fill('input[name="password"]', PASSWORD)
    await page.click('form[action="/login"] button')


async def test_a_plain_form_keeps_what_was_typed_over_the_login(
    pages: RunningWeb, fleet: RunningFleet, chromium: Browser
) -> None:
    async with admin_page(pages, chromium) as (page, context):
        await page.goto(f"{pages.address}/pools/eu")
        form = page.locator('form[action="/pools/eu/hold"]')
        await form.locator('select[name="minutes"]').select_option("60")
        await form.locator('input[name="reason"]').fill("maintenance of the rack")
        pages.clock.push(HOURS_S)
        await form.get_by_role("button", name="Hold").click()
        await expect(page.locator("h1")).to_have_text("Log in again")
        assert await page.locator("main").get_attribute("data-code") == "login.session_ended"
        await page.get_by_role("link", name="Log in and return to the form").click()
        await log_in(page)
        await page.wait_for_url(f"{pages.address}/pools/eu")
        await expect(form.locator('input[name="reason"]')).to_have_value("maintenance of the rack")
        await expect(form.locator('select[name="minutes"]')).to_have_value("60")
        await expect(form.get_by_role("status")).to_be_visible()
        assert fleet.status().pools[0].hold_until_at is None, "nothing was sent"
        await form.get_by_role("button", name="Hold").click()
        await expect(page.locator(".flash")).to_be_visible()
        assert fleet.status().pools[0].hold_until_at is not None
        await page.goto(f"{pages.address}/pools/eu")
        await expect(form.locator('input[name="reason"]')).to_have_value("")
        assert await page.evaluate("sessionStorage.length") == 0
        assert [cookie for cookie in await context.cookies() if cookie["name"] == "astraflow_typed"] == []


async def test_an_htmx_form_leads_to_the_login_and_keeps_what_was_typed(pages: RunningWeb, chromium: Browser) -> None:
    async with admin_page(pages, chromium) as (page, _):
        await page.goto(f"{pages.address}/pools/eu")
        form = page.locator('form[action="/pools/eu/plans"]')
        await form.locator('input[name="target"]').fill("4")
        await form.locator('input[name="reason"]').fill("more nodes")
        pages.clock.push(HOURS_S)
        await form.get_by_role("button", name="Preview").click()
        await page.wait_for_url("**/login?next=/pools/eu")
        await log_in(page)
        await expect(form.locator('input[name="reason"]')).to_have_value("more nodes")
        await form.get_by_role("button", name="Preview").click()
        await expect(page.locator("#dialog-body #confirm")).to_contain_text("more nodes")


async def test_a_form_of_an_earlier_session_in_another_tab_keeps_what_was_typed(
    pages: RunningWeb, chromium: Browser
) -> None:
    async with admin_page(pages, chromium) as (page, context):
        await page.goto(f"{pages.address}/pools/eu")
        form = page.locator('form[action="/pools/eu/hold"]')
        await form.locator('input[name="reason"]').fill("typed before")
        pages.clock.push(HOURS_S)
        other = await context.new_page()
        await other.goto(f"{pages.address}/login")
        await log_in(other)
        await other.wait_for_url(f"{pages.address}/")
        await form.get_by_role("button", name="Hold").click()
        assert await page.locator("main").get_attribute("data-code") == "request.wrong_form_token"
        await page.get_by_role("link", name="Return to the form").click()
        await expect(form.locator('input[name="reason"]')).to_have_value("typed before")


async def test_no_password_is_kept(pages: RunningWeb, chromium: Browser) -> None:
    async with admin_page(pages, chromium) as (page, _):
        await page.goto(f"{pages.address}/settings")
        await page.fill('input[name="current"]', PASSWORD)
        await page.fill('input[name="new"]', "another long password")
        await page.fill('form[action="/settings/tokens"] input[name="name"]', "laptop")
        pages.clock.push(HOURS_S)
        await page.click('form[action="/settings/password"] button')
        await expect(page.locator("h1")).to_have_text("Log in again")
        kept = await page.evaluate("JSON.stringify(sessionStorage)")
        assert "laptop" in kept
        assert "password" not in kept
        await page.get_by_role("link", name="Log in and return to the form").click()
        await log_in(page)
        await expect(page.locator('form[action="/settings/tokens"] input[name="name"]')).to_have_value("laptop")
        await expect(page.locator('input[name="new"]')).to_have_value("")
