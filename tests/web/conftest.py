"""A fake dataflow and a web process that follows it; cheap password hashing and command line for all tests."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import argon2
import pytest
from playwright.async_api import Browser

from astraflow.runtime.folders.run_folders import HOME
from tests.fakes.browser import browser
from tests.fakes.control_plane import HISTORY_REPORTS, FakeControlPlane
from tests.fakes.fleet import RunningFleet, running_fleet
from tests.fakes.forking import ForkingProgram
from tests.fakes.launching import CliOutputs, OwnRecipeProgram
from tests.fakes.web import RunningWeb, running_web
from web.database.db import Database, open_database
from web.launcher.catalogue import cli_output
from web.launcher.recipe_program import RecipeProgram

SHORT_HISTORY = 5
"""Past reports. Count."""


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords() -> Iterator[None]:
    """Hashes passwords with the least parameters; `real_passwords` undoes it."""
    least = partial(argon2.PasswordHasher, time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("web.accounts.users.PasswordHasher", least)
        yield


@pytest.fixture(scope="session", autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home without runs: pages show all runs of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME, str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def real_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes passwords with the parameters of a real page."""
    monkeypatch.setattr("web.accounts.users.PasswordHasher", argon2.PasswordHasher)


@pytest.fixture(scope="session")
def cli_outputs(forking_cli: ForkingProgram) -> CliOutputs:
    """Outputs of the command line that all tests of this session share."""
    return CliOutputs(forking_cli)


@pytest.fixture(autouse=True)
def shared_cli(cli_outputs: CliOutputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each command of the recipe catalogue once per session, without the time of its imports, and answers its
    requests in this process; `real_cli` undoes it."""
    monkeypatch.setattr("web.launcher.catalogue.cli_output", partial(cli_outputs.output, folder=tmp_path))
    monkeypatch.setattr("web.launcher.catalogue.RecipeProgram", partial(OwnRecipeProgram, cli_outputs, tmp_path))


@pytest.fixture
def real_cli(shared_cli: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts processes for the commands and requests of the recipe catalogue, as a real page does."""
    monkeypatch.setattr("web.launcher.catalogue.cli_output", cli_output)
    monkeypatch.setattr("web.launcher.catalogue.RecipeProgram", RecipeProgram)


@pytest.fixture
def ready_cli(forking_cli: ForkingProgram) -> str:
    """Starts the process that forks, and returns its path, before the site of the test is up. Within a request, its
    imports take longer than the client waits on a loaded machine."""
    return forking_cli.command[0]


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """Browser that the tests of a module share; each opens its own contexts."""
    async with browser() as running:
        yield running


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> FakeControlPlane:
    """Dataflow in its 150th second. Each web process that follows it reads, checks and stores its past reports: tests
    that show all of the past have the marker `past_reports`."""
    needs_past = request.node.get_closest_marker("past_reports") is not None
    return FakeControlPlane(sequence=150, history=HISTORY_REPORTS if needs_past else SHORT_HISTORY)


@pytest.fixture
async def web(fake: FakeControlPlane, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    """Web process that already shows the fake's first report."""
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow) as running:
        await running.until_connected()
        yield running


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[RunningFleet]:
    """Fleet service with a pool of two nodes."""
    async with running_fleet(tmp_path / "fleet", nodes=2, pool={"max_nodes": 8}) as running:
        yield running


@pytest.fixture
async def pages(fake: FakeControlPlane, fleet: RunningFleet, tmp_path: Path) -> AsyncIterator[RunningWeb]:
    """Web process that shows the run and the fleet."""
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, fleet=fleet.address) as running:
        await running.until_connected()
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Empty database of the page."""
    opened = open_database(tmp_path)
    yield opened
    opened.close()
