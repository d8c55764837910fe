"""What every test shares: the event loop, and a home that is not the user's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from astraflow.runtime import logs
from tests import tools
from tests.fakes.postgres import emptied, postgres_server

pytest_plugins = ["tests.retries"]

settings.register_profile("astraflow", deadline=None)  # a busy machine is no defect
settings.load_profile("astraflow")


def pytest_configure(config: pytest.Config) -> None:
    """In CI nothing is skipped for a tool that a package brings. Raises: pytest.UsageError."""
    lacking = [name for name in tools.missing() if tools.TOOLS[name].packages] if os.environ.get("CI") else []
    if lacking:
        lines = "\n".join(tools.summary(lacking))
        raise pytest.UsageError(f"cannot run the tests in CI (CI is set): {', '.join(lacking)} missing\n{lines}")


def pytest_report_header() -> list[str]:
    """What will be skipped on this machine, and how to have it run."""
    return tools.summary(tools.missing())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run, and puts files of real processes and browsers first: begun last, one worker
    would be left with a long one."""
    lacking = set(tools.missing())
    for item in items:
        needed = [name for marker in item.iter_markers("needs") for name in marker.args]
        needed += ["chromium"] if item.get_closest_marker("browser") else []
        for name in needed:
            if name in lacking:
                item.add_marker(pytest.mark.skip(reason=tools.why(name)))
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Logs as services write them; whatever a test sets up or binds is gone after it."""
    logs.configure(as_json=True)
    yield
    structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL that all tests share; take `empty_postgres`."""
    if tools.missing(["postgresql"]):
        pytest.skip(tools.why("postgresql"))
    with postgres_server() as url:
        yield url


@pytest.fixture
def empty_postgres(postgres: str) -> str:
    """URL of a PostgreSQL with nothing in it."""
    return emptied(postgres)


@pytest.fixture
def anyio_backend() -> str:
    """Everything here is asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches and run directories of a test stay in its own folder."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("ASTRAFLOW_HOME", str(home))
    return home
