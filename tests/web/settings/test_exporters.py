"""Exporters on the settings page: only known facts of the shown run."""

import doctest
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow.cli.run_directory import RunDirectory
from astraflow.runtime.folders.run_folders import RunFacts
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb, running_web
from tests.web.page_elements import Element, parsed
from web.process_settings import Settings
from web.settings.exporters import Exporter, exporters

HERE = "http://127.0.0.1:8080"
KEDA = "KEDA external scaler"
RUN_SMOKE = ("astraflow", "run", "smoke", "--set")


@contextmanager
def run_folder(dataflow: str, **facts: str) -> Iterator[RunDirectory]:
    """Opens the folder of an active run on this machine; its dataflow has the given address."""
    with RunDirectory.opened(None, name="smoke", seed=3, recipe="{}") as directory:
        directory.update_facts(dataflow=dataflow, **facts)
        yield directory


async def section(client: httpx.AsyncClient) -> Element:
    return parsed(await client.get("/settings")).one("section[aria-labelledby=exporters]")


def states(shown: Element) -> list[str]:
    return [text.lower() for text in shown.texts(".state")]


def rows(facts: RunFacts | None, *, recipe: str = "") -> dict[str, Exporter]:
    settings = Settings(directory=Path("unused"), recipe=recipe)
    return {row.name: row for row in exporters(facts, settings, own_address=HERE)}


def facts(**changes: Any) -> RunFacts:
    return RunFacts(run="r", recipe="smoke", seed=0, started_at="", release="", commit="", python="", pid=1, **changes)


@pytest.mark.long
@pytest.mark.anyio
async def test_exporters_of_a_run_without_a_readable_folder_are_unknown(web: RunningWeb) -> None:
    async with web.logged_in() as client:
        shown = await section(client)
    assert shown["data-state"] == "unknown"
    assert states(shown).count("unknown") == 3
    assert shown.texts("code.location") == [f"{web.address}/api/v1"]


@pytest.mark.long
@pytest.mark.anyio
async def test_exporters_show_their_addresses_or_the_command_to_enable_them(
    fake: FakeControlPlane, tmp_path: Path
) -> None:
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, recipe="") as web:
        with run_folder(dataflow, metrics="http://127.0.0.1:9464/metrics") as directory:
            async with web.logged_in() as client:
                shown = await section(client)
        async with web.client() as stranger:
            assert (await stranger.get("/settings")).status_code == 303
    assert f"{directory.path}/run.json" in shown.texts("code")
    assert "http://127.0.0.1:9464/metrics" in shown.texts("code.location")
    assert ["astraflow", "run", "smoke", "--set", "dataflow.keda.port=9465"] in shown.commands()
    assert states(shown).count("off") == 2


@pytest.mark.anyio
async def test_an_unreadable_run_folder_breaks_no_page(fake: FakeControlPlane, tmp_path: Path) -> None:
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as web:
        with run_folder(dataflow) as directory:
            (directory.path / "run.json").write_text("{")
            async with web.logged_in() as client:
                shown = await section(client)
    assert shown["data-state"] == "unknown"
    assert str(directory.path) in shown.all("p")[0].one("bdi").text, "the cause"
    assert states(shown).count("unknown") == 3


def test_a_disabled_exporter_has_the_setting_and_command_that_enable_it() -> None:
    off = rows(facts())
    assert {name: row.state for name, row in off.items()} == {
        "OpenMetrics": "off",
        "OpenTelemetry traces": "off",
        KEDA: "off",
        "REST API": "on",
    }
    assert off["OpenMetrics"].key == 'dataflow.metrics = "127.0.0.1:9464"'
    assert off["OpenMetrics"].command.split() == [*RUN_SMOKE, "dataflow.metrics=127.0.0.1:9464"]
    assert off["OpenTelemetry traces"].command.split() == [*RUN_SMOKE, "tracing.to=traces"]
    assert rows(None)["OpenMetrics"].command.split()[2] == "RECIPE"
    assert rows(None, recipe="math")["OpenMetrics"].command.split()[2] == "math"


def test_an_enabled_exporter_has_its_address_without_credentials() -> None:
    on = rows(facts(keda="10.0.0.5:9465", traces="http://me:secret@collector:4318?key=1#0.1"))
    traces, keda = on["OpenTelemetry traces"], on[KEDA]
    assert (traces.state, traces.location) == ("on", "http://collector:4318")
    assert traces.note.startswith("10% of groups.")
    assert (keda.state, keda.location, keda.note) == ("on", "10.0.0.5:9465", "")
    free = rows(facts(keda="127.0.0.1:0"))[KEDA]
    assert (free.state, free.location) == ("on", "127.0.0.1")
    assert "keda_ready" in free.note
    assert rows(facts(traces="/runs/a/traces"))["OpenTelemetry traces"].location == "/runs/a/traces"


def test_examples_of_the_view_are_correct() -> None:
    assert doctest.testmod(sys.modules[exporters.__module__]).attempted > 0
