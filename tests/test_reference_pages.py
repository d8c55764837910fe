"""The generated pages of docs/reference match the code."""

import pytest

from docs.generate import balance, plugins
from docs.generate.page import Page, table
from docs.generate.pages import PAGES
from docs.generate.plugin_slots import SLOTS, PluginSlot

# The page of plugins imports every plugin, which takes 16 s in a new process: trackers, SDKs and the local engine.
pages = [pytest.param(page, marks=[pytest.mark.long] if page is plugins.PAGE else [], id=page.name) for page in PAGES]


@pytest.mark.parametrize("page", pages)
def test_reference_pages_match_the_code(page: Page) -> None:
    assert page.path.read_text() == page.text(), "run `python -m docs.generate`"


@pytest.mark.long  # simulates four hours of a run
def test_the_moving_chart_matches_the_rule() -> None:
    assert balance.PATH.read_text() == balance.drawing(), "run `python -m docs.generate`"


def test_the_page_of_plugins_lists_every_kind() -> None:
    assert "\n".join(plugins.overview()) in plugins.PAGE.path.read_text(), "run `python -m docs.generate`"


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.heading)
def test_the_page_of_plugins_has_the_options_of_kinds_that_import_quickly(slot: PluginSlot) -> None:
    text = plugins.PAGE.path.read_text()
    for kind in slot.registry.built_in_kinds():
        if not slot.registry.is_heavy(kind):
            [_, _, row] = table(("kind", "purpose"), [plugins.purpose_row(slot, kind)])
            assert row in text, "run `python -m docs.generate`"
            assert "\n".join(plugins.options_of(slot, kind)) in text, "run `python -m docs.generate`"
