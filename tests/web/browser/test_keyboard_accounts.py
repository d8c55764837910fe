"""Users, tokens, grants, both login methods and their audit entries with the keyboard alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.fakes.browser import browser, logged_in_page
from tests.fakes.keyboard import KeyboardUser
from tests.fakes.web import RunningWeb

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.timeout(240), pytest.mark.long]

PASSWORD = "a sentence is easy"


async def test_accounts_and_their_audit_work_by_keyboard(web: RunningWeb) -> None:
    async with browser() as chromium, _logged_in_page(chromium, web.login_url) as keys:
        link = await _add_a_user(keys)
        async with _logged_in_page(chromium, link, refusals=1) as own:
            await _choose_a_password(own)
            await _log_in_by_password(own)
        await _make_and_revoke_a_token(keys)
        await _grant_and_revoke(keys)
        await _disable_a_user(keys)
        await _read_the_audit_log(keys)


@asynccontextmanager
async def _logged_in_page(chromium: Browser, link: str, *, refusals: int = 0) -> AsyncIterator[KeyboardUser]:
    """Opens a login link in a browser; asserts the number of refused requests at the end."""
    async with logged_in_page(chromium, link) as (page, complaints, _):
        keys = KeyboardUser(page)
        await keys.arrived("")
        yield keys
        assert ["403" in complaint for complaint in complaints.heard] == [True] * refusals, complaints.heard


async def _add_a_user(keys: KeyboardUser) -> str:
    """Adds the user bob; returns the login link."""
    await keys.go("s", "Settings")
    await keys.use("Users")
    await keys.fill("Name", "bob")
    await keys.choose("Role", "operator")
    await keys.use("Add user")
    await keys.arrived("Login link for bob")
    await keys.to("The secret")
    link = str(await keys.page.evaluate("document.activeElement.textContent"))
    await keys.use("Done")
    await keys.arrived("Settings")
    await expect(keys.page.locator("table", has_text="Login")).to_contain_text("bob")
    return link


async def _choose_a_password(keys: KeyboardUser) -> None:
    await keys.go("s", "Settings")
    await keys.fill("New password", PASSWORD)
    await keys.press("Enter")
    await keys.flash_message("Password changed")


async def _log_in_by_password(keys: KeyboardUser) -> None:
    await keys.use("Log out", back=True)
    await keys.arrived("Log in")
    assert await keys.name() == "Name", "the field has the focus"
    await keys.write("bob")
    await keys.fill("Password", "not that one")
    await keys.press("Enter")
    await expect(keys.page.locator(".form-problem")).to_be_visible()
    await keys.is_seen()
    assert await keys.name() == "Password", "the typed name is kept"
    await keys.write(PASSWORD)
    await keys.press("Enter")
    await keys.arrived("The trainer")


async def _make_and_revoke_a_token(keys: KeyboardUser) -> None:
    await keys.go("s", "Settings")
    await keys.use("Tokens")
    await keys.fill("Purpose", "a script")
    await keys.choose("Scope", "viewer")
    await keys.fill("Valid for", "9")
    await keys.press("Enter")
    await expect(keys.page.locator(".secret")).to_be_visible()
    await keys.use("Done")
    await keys.arrived("Settings")
    await keys.use("Revoke a script")
    await keys.dialog("Revoke token a script?")
    await keys.cancel_dialog("Revoke a script")
    await keys.press("Enter")
    await keys.dialog("Revoke token a script?")
    await keys.fill("Reason", "not needed")
    await keys.press("Enter")
    await keys.flash_message("Token a script revoked")


async def _grant_and_revoke(keys: KeyboardUser) -> None:
    await keys.to("Holder")
    await keys.choose("Role", "operator")
    await keys.fill("On run", "reverse-0001")
    await keys.fill("On pool", "local")
    await keys.use("Grant")
    await keys.flash_message("Granted: operator")
    await keys.use("Revoke operator of bob on reverse-0001 local")
    await keys.dialog("Revoke this grant?")
    await keys.use("Revoke")
    await keys.flash_message("local")


async def _disable_a_user(keys: KeyboardUser) -> None:
    await keys.use("Disable bob", back=True)
    await keys.dialog("Disable bob?")
    await keys.use("Disable")
    await keys.flash_message("Bob is disabled")


async def _read_the_audit_log(keys: KeyboardUser) -> None:
    await keys.go("a", "Audit")
    await keys.use("Verify chain")
    await expect(keys.page.locator(".chain-sentence")).to_contain_text("Chain intact")
    await keys.is_seen()
    await keys.choose("Action", "user.add")
    await keys.use("Filter")
    await keys.page.wait_for_url("**/audit?*action=user.add*")
    await keys.arrived("Audit")
    await expect(keys.page.locator(".audit-table tbody tr")).to_have_count(1)
    for ending in ("CSV", "NDJSON"):
        await keys.to(ending)
        async with keys.page.expect_download() as coming:
            await keys.press("Enter")
        text = Path(await (await coming.value).path()).read_text()
        assert "user.add" in text
        assert "password" not in text, "only filtered entries are exported"
