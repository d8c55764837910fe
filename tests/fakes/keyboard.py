"""A user without a mouse: presses keys and checks the focus after each of them."""

import json

from playwright.async_api import Page, expect

MAX_TABS = 160
"""Stops of the longest page, plus a margin."""

MAX_ROWS = 40

NAME = r"""(() => {
    const focused = document.activeElement;
    if (focused === document.body) return "nowhere";
    const label = focused.ariaLabel || focused.labels?.[0]?.innerText || focused.innerText || focused.title;
    return (label || focused.name || "").trim().replace(/\s+/g, " ").slice(0, 80);
})()"""
"""Accessible name of the focused element, approximately."""

TROUBLE = """(() => {
    const focused = document.activeElement;
    const what = focused.outerHTML.slice(0, 160);
    if (!focused || focused === document.body) return "the focus is nowhere";
    const drawn = [focused, focused.closest("label"), focused.querySelector("rect")].some((element) => {
        if (!element) return false;
        const style = getComputedStyle(element);
        const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
        return isOutlined || (element.matches("rect") && style.stroke !== "none");
    });
    if (!drawn && !focused.matches("main, [role=combobox]")) return `no ring around ${what}`;
    const box = focused.getBoundingClientRect();
    const [left, right] = [Math.max(0, box.left), Math.min(innerWidth, box.right)];
    const [top, bottom] = [Math.max(0, box.top), Math.min(innerHeight, box.bottom)];
    if (right - left < 1 || bottom - top < 1) return `out of sight: ${what}`;
    const isOwn = (found) => found && (focused.contains(found) || found.contains(focused));
    for (const across of [0.5, 0.1, 0.9])
        for (const down of [0.5, 0.1, 0.9]) {
            const at = [left + across * (right - left), top + down * (bottom - top)];
            if (isOwn(document.elementFromPoint(...at))) return "";
        }
    return `something covers ${what}`;
})()"""
"""Reason why the focus is not visible on the page; empty when it is."""

MATCHES_SELECTOR = "like => document.activeElement.matches(like)"
FOCUS_STATE = f"[{NAME}, {TROUBLE}, document.activeElement === document.body]"


class KeyboardUser:
    """The keyboard of a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def press(self, *keys: str) -> None:
        """Presses keys one after the other."""
        for key in keys:
            await self.page.keyboard.press(key)

    async def write(self, text: str) -> None:
        """Replaces the value of a field."""
        await self.press("Control+a")
        await self.page.keyboard.type(text)

    async def name(self) -> str:
        """Returns the accessible name of the focused element."""
        return str(await self.page.evaluate(NAME))

    async def named(self, wanted: str) -> None:
        """Waits until the focused element has this accessible name."""
        await self.page.wait_for_function(f"{NAME} === {json.dumps(wanted)}")

    async def to(self, wanted: str, *, back: bool = False, like: str = "*") -> None:
        """Presses Tab (or Shift and Tab) until the element with this name has the focus; checks every stop.

        like: selector that the element must match as well.
        """
        passed: list[str] = []
        for _ in range(MAX_TABS):
            await self.press("Shift+Tab" if back else "Tab")
            name, trouble, is_nowhere = await self.page.evaluate(FOCUS_STATE)
            assert not trouble or is_nowhere, f"{self.page.url}: {trouble}"  # no focus after the last stop
            passed.append(name)
            if name.startswith(wanted) and await self.page.evaluate(MATCHES_SELECTOR, like):
                return
        raise AssertionError(f"{self.page.url}: Tab does not reach {wanted!r}, but {passed}")

    async def fill(self, field: str, text: str) -> None:
        """Moves to a field and types into it."""
        await self.to(field)
        await self.write(text)

    async def choose(self, field: str, option: str) -> None:
        """Moves to a list and selects an option by its first letters."""
        await self.to(field)
        await self.page.keyboard.type(option)
        assert str(await self.page.evaluate("document.activeElement.selectedOptions[0].label")).startswith(option)

    async def use(self, control: str, *, back: bool = False) -> None:
        """Moves to a link or a button and presses it."""
        await self.to(control, back=back)
        await self.press("Enter")

    async def go(self, key: str, title: str) -> None:
        """Opens a page by its shortcut letter."""
        await self.press("Escape", "g", key)  # Escape leaves the focused field
        await self.arrived(title)

    async def arrived(self, title: str) -> None:
        """Waits for a page with this heading whose scripts are running."""
        await expect(self.page.locator("h1").first).to_contain_text(title)
        await expect(self.page.locator("html.has-script")).to_be_attached()

    async def row(self, begin: str, *, key: str = "j") -> None:
        """Moves through the rows to the one that begins with this text."""
        passed = []
        for _ in range(MAX_ROWS):
            await self.press(key)
            await self.is_seen()
            passed.append(await self.name())
            if passed[-1].startswith(begin):
                return
        raise AssertionError(f"{self.page.url}: no row begins with {begin!r}, but {passed}")

    async def is_seen(self) -> None:
        """Asserts that an element has the focus and that the focus is visible."""
        trouble = await self.page.evaluate(TROUBLE)
        assert not trouble, f"{self.page.url}: {trouble}"

    async def flash_message(self, text: str) -> None:
        """Waits for the message of an action; the focus is on it or on the next element to use."""
        await expect(self.page.locator(".flash")).to_contain_text(text)
        await expect(self.page.locator("html.has-script")).to_be_attached()
        await self.is_seen()

    async def dialog(self, text: str) -> None:
        """Waits for a dialog with this text and the focus inside it."""
        await expect(self.page.locator("dialog[open]")).to_contain_text(text)
        await self.is_seen()
        assert await self.page.evaluate("Boolean(document.activeElement.closest('dialog[open]'))")

    async def cancel_dialog(self, name: str) -> None:
        """Closes the open dialog by Escape, which returns the focus to the element that opened it."""
        await self.press("Escape")
        await expect(self.page.locator("dialog[open]")).to_have_count(0)
        assert (await self.name()).startswith(name), await self.name()
        await self.is_seen()
