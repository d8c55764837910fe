"""Fixtures of all tests: the event loop, and a home that is not the user's."""

import gc
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from astraflow.runtime import logs
from tests import shared_work, tools
from tests.event_loops import EventLoop
from tests.fakes.forking import ForkingProgram, ForkingPython
from tests.fakes.postgres import emptied, postgres_server

settings.register_profile("astraflow", deadline=None, max_examples=50)  # a busy machine must not fail a test
settings.register_profile("long", deadline=None, max_examples=500)  # --hypothesis-profile long
settings.load_profile("astraflow")

# Tests start hundreds of Python processes. Without cached bytecode, each compiles the modules that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# As the command line sets it: gRPC's fork handlers sometimes crash a child between fork and exec. Workers inherit it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

gc.disable()  # until all tests are collected: imports make millions of objects that live to the end


def pytest_configure(config: pytest.Config) -> None:
    """Fails in CI when a tool of a Debian package is missing. Raises: pytest.UsageError."""
    shared_work.seed_cheaply()
    lacking = [name for name in tools.missing() if tools.TOOLS[name].packages] if os.environ.get("CI") else []
    if lacking:
        lines = "\n".join(tools.summary(lacking))
        raise pytest.UsageError(f"cannot run the tests in CI (CI is set): {', '.join(lacking)} missing\n{lines}")


def pytest_collection_finish() -> None:
    """Leaves the objects of imported modules out of every later garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> list[str]:
    """Lists the tests to skip on this machine, and how to enable them."""
    return tools.summary(tools.missing())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that this machine cannot run, and puts files of real processes and browsers first, so that no
    worker ends with a long one."""
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
    """Logs as services write them; removes the settings and bound values of a test after it."""
    logs.configure(as_json=True)
    yield
    structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session")
def forking_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingPython]:
    """Python without the time of imports, for programs of AstraFlow."""
    python = ForkingPython(tmp_path_factory.mktemp("python"))
    yield python
    python.close()


@pytest.fixture(scope="session")
def forking_cli(forking_python: ForkingPython) -> ForkingProgram:
    """The command line without the time of its imports."""
    return ForkingProgram(forking_python, "astraflow.cli")


@pytest.fixture
def forked_programs(forking_python: ForkingPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all programs that the test starts fork, as far as they use `sys.executable`."""
    monkeypatch.setattr(sys, "executable", forking_python.executable)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL that all tests share; use `empty_postgres`."""
    if tools.missing(["postgresql"]):
        pytest.skip(tools.why("postgresql"))
    with postgres_server() as url:
        yield url


@pytest.fixture
def empty_postgres(postgres: str) -> str:
    """URL of a PostgreSQL without tables."""
    return emptied(postgres)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Selects asyncio. Asynchronous fixtures of a module need it beyond a test."""
    return "asyncio", {"loop_factory": EventLoop}


@pytest.fixture(scope="session", autouse=True)
def work_done_once() -> Iterator[None]:
    """Lets tests share what each would otherwise repeat."""
    with shared_work.copied_databases(), shared_work.shared_certificates():
        yield


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of empty folders. `tmp_path_factory` reads the names of all earlier ones to number each."""
    directory = tmp_path_factory.mktemp("homes")
    return (directory / f"{number}" for number in count())


@pytest.fixture(autouse=True)
def own_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts caches and run directories of a test into its own folder; tables have the width of a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    home = next(homes)
    home.mkdir()
    monkeypatch.setenv("ASTRAFLOW_HOME", str(home))
    return home
