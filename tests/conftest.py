"""What every test shares: the event loop, and a home that is not the user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from astraflow.runtime import logs
from tests.fakes.postgres import PROGRAMS, emptied, postgres_server

settings.register_profile("astraflow", deadline=None)  # a busy machine is no defect
settings.load_profile("astraflow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of real processes and browsers come first: begun last, one worker would be left with a long one."""
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
    if not PROGRAMS.exists():
        pytest.skip(f"{PROGRAMS} is missing: apt-get install postgresql")
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
