"""Font sets to which a test limits a browser, to measure layouts with each of them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Page

FONTS = Path("/usr/share/fonts/truetype")

_CONFIGURATION = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}</dir>
  <cachedir>{cache}</cachedir>
  <include ignore_missing="yes">/etc/fonts/conf.d</include>
</fontconfig>
"""


@dataclass(frozen=True, kw_only=True)
class FontSet:
    """The only fonts of a machine."""

    family: str
    """Family that text without a monospaced font is drawn in."""
    package: str
    """Debian package that installs the fonts."""
    folder: str
    """Folder of the fonts below `FONTS`."""

    def environment(self, directory: Path) -> dict[str, str]:
        """Writes a configuration that lists only this set, and returns the environment variables that select it."""
        folder = FONTS / self.folder
        if not folder.is_dir():
            pytest.fail(f"cannot limit Chromium to {self.family}: {folder} is missing; apt-get install {self.package}")
        file = directory / f"{self.folder}.conf"
        file.write_text(_CONFIGURATION.format(folder=folder, cache=directory / f"{self.folder}-cache"))
        return {"FONTCONFIG_FILE": str(file)}


DEJAVU = FontSet(family="DejaVu Sans", package="fonts-dejavu-core", folder="dejavu")
LIBERATION = FontSet(family="Liberation Sans", package="fonts-liberation", folder="liberation")
NOTO = FontSet(family="Noto Sans", package="fonts-noto-core", folder="noto")

FONT_SETS = (DEJAVU, LIBERATION, NOTO)


async def families_of(page: Page, selector: str) -> set[str]:
    """Returns the font families in which the browser drew an element's text."""
    client = await page.context.new_cdp_session(page)
    await client.send("DOM.enable")
    await client.send("CSS.enable")
    root = (await client.send("DOM.getDocument"))["root"]["nodeId"]
    node = (await client.send("DOM.querySelector", {"nodeId": root, "selector": selector}))["nodeId"]
    used = await client.send("CSS.getPlatformFontsForNode", {"nodeId": node})
    await client.detach()
    return {font["familyName"] for font in used["fonts"]}
