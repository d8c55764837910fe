"""The generated pages of docs/reference can be built, have everything that they list, and their links have targets."""

import re
from functools import cache
from pathlib import Path

import pytest
import typer.main

from astraflow.algorithms.losses import losses
from astraflow.cli.main import app
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.training_metrics import TRAINING_METRICS
from astraflow.dataflow.endpoints.openmetrics import ReportCollector
from docs.generate import balance, commands, errors, events, live_texts, metrics, openmetrics, plugins, rest_api
from docs.generate.page import Page, cell, table
from docs.generate.pages import PAGES
from docs.generate.plugin_slots import ALGORITHM_SLOTS, SLOTS, PluginSlot
from tests.dataflow.families import full_report
from web.api_docs.routes import document
from web.app import ROUTES
from web.rest.common import PREFIX

ROOT = Path(__file__).parents[1]

QUICK = tuple(plugins.QUICK if page is plugins.PAGE else page for page in PAGES)
"""The pages, without the plugins whose import takes seconds."""


@cache
def text_of(page: Page) -> str:
    """Returns the generated page."""
    return page.text()


@pytest.mark.parametrize("page", [page for page in PAGES if page.is_committed], ids=lambda page: page.name)
def test_committed_pages_match_the_code(page: Page) -> None:
    assert page.path.read_text() == text_of(page), "run `python -m docs.generate`"


@pytest.mark.long  # simulates four hours of a run
def test_the_moving_chart_matches_the_rule() -> None:
    assert balance.PATH.read_text() == balance.drawing(), "run `python -m docs.generate`"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.is_committed], ids=lambda page: page.name)
def test_pages_of_the_site_are_committed_as_their_heads(page: Page) -> None:
    last = page.path.read_text().splitlines()[-1]
    assert last == "Generated from the code: `make docs` writes the tables below this line into the site, `build/site`."


@pytest.mark.parametrize("page", QUICK, ids=lambda page: page.name)
def test_tables_of_generated_pages_have_as_many_cells_as_columns(page: Page) -> None:
    rows = [line for line in text_of(page).splitlines() if line.startswith("|")]
    assert len(rows) > 20
    columns = 0
    for number, row in enumerate(rows):
        cells = len(re.findall(r"(?<!\\)\|", row)) - 1
        columns = cells if rows[number + 1 : number + 2] and rows[number + 1].startswith("|---") else columns
        assert cells == columns, row


def test_every_error_code_is_documented_with_its_message() -> None:
    text = text_of(errors.PAGE)
    assert len(errors.raised_errors()) > 1000
    for error in errors.raised_errors():
        assert f"| `{error.code}` | {error.type} | " in text, error.code


def test_every_command_is_documented_with_its_own_options() -> None:
    text = text_of(commands.PAGE)
    for name, command in commands.every_command(typer.main.get_command(app), "astraflow"):
        section = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        assert section, name
        assert all(cell(commands.name_of(option)) in section for option in command.params), name


def test_every_route_and_type_of_the_api_is_documented() -> None:
    text, described = text_of(rest_api.PAGE), document(ROUTES)
    for path, methods in described["paths"].items():
        for method in methods:
            assert f"| `{method.upper()} {path.removeprefix(PREFIX)}` |" in text, path
    assert all(f"\n### {name}\n" in text for name in described["components"]["schemas"])


def test_every_event_and_metric_is_documented() -> None:
    kinds, training, families = (text_of(module.PAGE) for module in (events, metrics, openmetrics))
    assert all(f"| `{kind.value}` | {kind.subject} |" in kinds for kind in RecordKind)
    assert all(f"| `{metric.name}` |" in training for metric in TRAINING_METRICS)
    assert all(f"| `{family.name}" in families for family in ReportCollector(full_report()).collect())


def test_every_live_text_of_a_page_has_an_example() -> None:
    text = text_of(live_texts.PAGE)
    keys = {
        key
        for path in (ROOT / "web").rglob("*.html")
        for key in re.findall(r'live_text\(live_texts, "([\w/]+\w)"', path.read_text())
    }
    assert len(keys) > 10
    assert [key for key in keys if f"| `{key}` |" not in text] == []


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.heading)
def test_every_kind_of_plugin_is_listed_and_those_that_import_quickly_have_their_options(slot: PluginSlot) -> None:
    text = text_of(plugins.QUICK)
    [listed] = [line for line in plugins.overview() if line.startswith(f"| [{slot.heading}]")]
    for kind in slot.registry.built_in_kinds():
        assert f"`{kind}`" in listed
        if not slot.registry.is_heavy(kind):
            [_, _, row] = table(("kind", "purpose"), [plugins.purpose_row(slot, kind)])
            assert row in text
            assert "\n".join(plugins.options_of(slot, kind)) in text


@pytest.mark.long  # imports every plugin, 16 s in a new process
def test_plugins_that_import_slowly_have_their_options_too() -> None:
    text = text_of(plugins.PAGE)
    for slot in SLOTS:
        for kind in filter(slot.registry.is_heavy, slot.registry.built_in_kinds()):
            assert "\n".join(plugins.options_of(slot, kind)) in text


def test_every_algorithm_is_documented() -> None:
    text = next(page for page in PAGES if page.name == "algorithms").path.read_text()
    kinds = [kind for registry in ALGORITHM_SLOTS for kind in registry.built_in_kinds()]
    assert set(losses.built_in_kinds()) <= set(kinds)
    assert all(f"| `{kind}` |" in text for kind in kinds)
