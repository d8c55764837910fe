"""A person without a mouse: presses keys, and sees where the focus is after every one of them."""

from playwright.async_api import Page, expect

MOST_TABS = 160
"""As many stops as the longest page has, and some more."""

MOST_ROWS = 40

NAME = r"""(() => {
    const focused = document.activeElement;
    if (focused === document.body) return "nowhere";
    const label = focused.ariaLabel || focused.labels?.[0]?.innerText || focused.innerText || focused.title;
    return (label || focused.name || "").trim().replace(/\s+/g, " ").slice(0, 80);
})()"""
"""What the focused element is called, about as a screen reader has it."""

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
"""Why somebody who looks at the page does not see where the focus is; empty when they do."""

IS_LIKE = "like => document.activeElement.matches(like)"
EVERY_STOP = f"[{NAME}, {TROUBLE}, document.activeElement === document.body]"


class Keys:
    """The keyboard of a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def press(self, *keys: str) -> None:
        """One after the other."""
        for key in keys:
            await self.page.keyboard.press(key)

    async def write(self, text: str) -> None:
        """In place of what a field has."""
        await self.press("Control+a")
        await self.page.keyboard.type(text)

    async def name(self) -> str:
        """Of what has the focus."""
        return str(await self.page.evaluate(NAME))

    async def to(self, wanted: str, *, back: bool = False, like: str = "*") -> None:
        """Press Tab (or Shift and Tab) until what has the focus is called that; it is seen at every stop.

        like: the selector of what it has to be, too.
        """
        passed: list[str] = []
        for _ in range(MOST_TABS):
            await self.press("Shift+Tab" if back else "Tab")
            name, trouble, is_nowhere = await self.page.evaluate(EVERY_STOP)
            assert not trouble or is_nowhere, f"{self.page.url}: {trouble}"  # nowhere: after the last stop
            passed.append(name)
            if name.startswith(wanted) and await self.page.evaluate(IS_LIKE, like):
                return
        raise AssertionError(f"{self.page.url}: Tab does not reach {wanted!r}, but {passed}")

    async def fill(self, field: str, text: str) -> None:
        """Go to a field and write into it."""
        await self.to(field)
        await self.write(text)

    async def choose(self, field: str, option: str) -> None:
        """Go to a list and choose by its first letters."""
        await self.to(field)
        await self.page.keyboard.type(option)
        assert str(await self.page.evaluate("document.activeElement.selectedOptions[0].label")).startswith(option)

    async def use(self, control: str, *, back: bool = False) -> None:
        """Go to a link or a button, and press it."""
        await self.to(control, back=back)
        await self.press("Enter")

    async def go(self, key: str, title: str) -> None:
        """To a page, by its letter."""
        await self.press("Escape", "g", key)  # Escape: out of the field that has the focus
        await self.arrived(title)

    async def arrived(self, title: str) -> None:
        """Wait for a page of that heading, whose scripts are at work."""
        await expect(self.page.locator("h1").first).to_contain_text(title)
        await expect(self.page.locator("html.has-script")).to_be_attached()

    async def row(self, begin: str, *, key: str = "j") -> None:
        """Walk through the rows to the one that begins so."""
        passed = []
        for _ in range(MOST_ROWS):
            await self.press(key)
            await self.is_seen()
            passed.append(await self.name())
            if passed[-1].startswith(begin):
                return
        raise AssertionError(f"{self.page.url}: no row begins with {begin!r}, but {passed}")

    async def is_seen(self) -> None:
        """Assert that the focus is somewhere, and that one sees where."""
        trouble = await self.page.evaluate(TROUBLE)
        assert not trouble, f"{self.page.url}: {trouble}"

    async def told(self, text: str) -> None:
        """Wait for what an action says of itself; the focus is there, or where one goes on."""
        await expect(self.page.locator(".flash")).to_contain_text(text)
        await expect(self.page.locator("html.has-script")).to_be_attached()
        await self.is_seen()

    async def dialog(self, text: str) -> None:
        """Wait for a dialog that says so, with the focus in it."""
        await expect(self.page.locator("dialog[open]")).to_contain_text(text)
        await self.is_seen()
        assert await self.page.evaluate("Boolean(document.activeElement.closest('dialog[open]'))")

    async def back_out(self, name: str) -> None:
        """Close by Escape what is open, which gives the focus back to what opened it."""
        await self.press("Escape")
        await expect(self.page.locator("dialog[open]")).to_have_count(0)
        assert (await self.name()).startswith(name), await self.name()
        await self.is_seen()
