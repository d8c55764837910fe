"""Entries of the palette: actions by role, runs by title and tag, charts by metric, and words with letters left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.client.local_runs import LocalRun, LocalRunState
from astraflow.contract.launching import RecipeCard
from astraflow.runtime.folders.launch_facts import LaunchFacts
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.folders.run_metadata import RunMetadata
from tests.fakes.synthetic_run import SyntheticRun
from web.accounts.viewer import Viewer
from web.database.tables import RunRecord
from web.search.actions import ASKS, PaletteEntry, PaletteSources
from web.search.palette import entries, matching_entries
from web.security.roles import Role

ADMIN, VIEWER = (Viewer(user_id=1, name="a", role=role) for role in (Role.ADMIN, Role.VIEWER))
REPORT = SyntheticRun().report(40)


def launch(name: str, state: LocalRunState) -> LocalRun:
    return LocalRun(
        name=name,
        folder=RunFolder(Path("/nowhere") / name),
        state=state,
        facts=None,
        launch=LaunchFacts(recipe="smoke", actor="a"),
        metadata=RunMetadata(),
        final_message="",
        has_failed=False,
    )


def record(name: str) -> RunRecord:
    return RunRecord(
        id=7,
        name=name,
        recipe="math",
        dataflow="",
        started_at=0,
        last_at=0,
        last_sequence=1,
        report_json="",
        folder="/f",
    )


SOURCES = PaletteSources(
    report=REPORT,
    runs=[(record("math-2026"), RunMetadata(title="Long answers", tags=("baseline",)))],
    launches=[launch("smoke-1", LocalRunState.RUNNING)],
    recipes=[RecipeCard(name="reverse", name_or_path="reverse", summary="The demo")],
    has_fleet=True,
    run_id=3,
)


def found(text: str, viewer: Viewer = ADMIN, sources: PaletteSources = SOURCES) -> list[PaletteEntry]:
    return matching_entries(entries(viewer, sources), text)


@pytest.mark.parametrize(
    ("text", "href"),
    [
        ("new run", "/runs/new"),
        ("launch reverse", "/runs/new?recipe=reverse"),
        ("stop smoke", "/launches/smoke-1/stop"),
        ("fork", "/runs/new?of=smoke-1&fork=1"),
        ("copy math", "/runs/new?of=math-2026"),
        ("kill", "/kill"),
        ("plan a size", "/pools/local#resize-title"),
        ("hold", "/pools/local#hold"),
        ("drain all", "/pools/local/drain-all"),
        ("export", ""),
        ("long answers", "/runs/7"),
        ("baseline", "/runs/7"),
        ("entropy", "/runs/3/charts/entropy"),
        ("entrpy", "/runs/3/charts/entropy"),
        ("users", "/settings#users"),
        ("weig", "/weights"),
    ],
)
def test_the_palette_finds_actions_runs_charts_and_settings(text: str, href: str) -> None:
    assert found(text)[0].href == href


def test_a_node_is_drained_by_a_page_that_asks() -> None:
    drains = found("drain")
    assert "/nodes/n0/drain" in {entry.href for entry in drains}
    assert all(ASKS in entry.hint for entry in drains if entry.href != "/nodes")


def test_kl_opens_its_chart() -> None:
    stream = REPORT.streams[0]
    training = replace(stream.training, metrics={"kl_mean": 0.1, "published_version": 3.0})
    sources = replace(SOURCES, report=replace(REPORT, streams=(replace(stream, training=training),)))
    assert [entry.href for entry in found("kl", sources=sources)][:1] == ["/runs/3/charts/kl_mean"]


def test_a_viewer_has_no_actions_that_change_anything() -> None:
    hrefs = {entry.href for entry in entries(VIEWER, SOURCES)}
    assert not [href for href in hrefs if href.startswith(("/launches", "/runs/new", "/kill")) or "drain" in href]
    assert "/settings#users" not in hrefs
    assert "/runs/7" in hrefs
