"""Exporters on the settings page: what is known of the run that is shown, and nothing else."""

import doctest
import html
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.cli.rundir import RunDirectory
from astraflow.runtime.runs import RunFacts
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from web.present import exporters
from web.present.exporters import ExporterRow, exporters_view
from web.reading.exporters import Exports
from web.settings import Settings

HERE = "http://127.0.0.1:8080"


@contextmanager
def run_folder(dataflow: str, **facts: str) -> Iterator[RunDirectory]:
    """Of a run of this machine that goes on, with its dataflow there."""
    with RunDirectory.opened(None, name="smoke", seed=3, recipe="{}") as directory:
        directory.note(dataflow=dataflow, **facts)
        yield directory


async def section(client: httpx.AsyncClient) -> str:
    page = html.unescape((await client.get("/settings")).text)
    return page.partition('aria-labelledby="exporters"')[2].partition("</section>")[0]


def rows(facts: RunFacts | None, *, recipe: str = "") -> dict[str, ExporterRow]:
    view = exporters_view(Exports(facts=facts), Settings(directory=Path("unused"), recipe=recipe), own_address=HERE)
    return {row.name: row for row in view.rows}


def facts(**changes: Any) -> RunFacts:
    return RunFacts(run="r", recipe="smoke", seed=0, started_at="", release="", commit="", python="", pid=1, **changes)


@pytest.mark.anyio
async def test_a_run_whose_folder_is_elsewhere_is_not_guessed_at(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        shown = await section(client)
    assert "How this run was started is not known here" in shown
    assert shown.count("Not known here") == 3
    assert f'<code class="place">{web.address}/api/v1</code>' in shown


@pytest.mark.anyio
async def test_a_run_of_this_machine_shows_what_is_on_where_and_how_to_have_the_rest(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, recipe="") as web:
        with run_folder(dataflow, metrics="http://127.0.0.1:9464/metrics") as directory:
            async with web.logged_in() as client:
                shown = await section(client)
        async with web.client() as stranger:
            assert (await stranger.get("/settings")).status_code == 303
    assert f"{directory.path}/run.json" in shown
    assert '<code class="place">http://127.0.0.1:9464/metrics</code>' in shown
    assert "astraflow run smoke --set dataflow.keda.port=9465" in shown
    assert shown.count(">Off</span>") == 2


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_read_takes_no_page_away(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as web:
        with run_folder(dataflow) as directory:
            (directory.path / "run.json").write_text("{")
            async with web.logged_in() as client:
                shown = await section(client)
    assert "is not a run directory" in shown
    assert shown.count("Not known here") == 3


def test_what_is_off_says_what_a_recipe_or_a_command_turns_on() -> None:
    off = rows(facts())
    assert {name: row.state for name, row in off.items()} == {
        "OpenMetrics": "off",
        "OpenTelemetry traces": "off",
        "KEDA external scaler": "off",
        "This page's API": "on",
    }
    assert off["OpenMetrics"].key == 'dataflow.metrics = "127.0.0.1:9464"'
    assert off["OpenMetrics"].command == "astraflow run smoke --set dataflow.metrics=127.0.0.1:9464"
    assert off["OpenTelemetry traces"].command == "astraflow run smoke --set tracing.to=traces"
    assert rows(None)["OpenMetrics"].command.startswith("astraflow run RECIPE ")
    assert rows(None, recipe="math")["OpenMetrics"].command.startswith("astraflow run math ")


def test_what_is_on_says_where_without_what_opens_it() -> None:
    on = rows(facts(keda="10.0.0.5:9465", traces="http://me:secret@collector:4318?key=1#0.1"))
    traces, keda = on["OpenTelemetry traces"], on["KEDA external scaler"]
    assert (traces.state, traces.place) == ("on", "http://collector:4318")
    assert traces.note.startswith("10% of groups.")
    assert (keda.state, keda.place, keda.note) == ("on", "10.0.0.5:9465", "")
    free = rows(facts(keda="127.0.0.1:0"))["KEDA external scaler"]
    assert (free.state, free.place) == ("on", "127.0.0.1")
    assert "keda_ready" in free.note
    assert rows(facts(traces="/runs/a/traces"))["OpenTelemetry traces"].place == "/runs/a/traces"


def test_its_examples_hold() -> None:
    assert doctest.testmod(exporters).attempted > 0
