"""Plugin of pytest: processor time of each test, with all processes that it starts.

Each worker of pytest has a cgroup (version 1, `cpuacct`), whose counter is read after each test. Children stay in it
whatever they do, so that browsers, services and forked programs count.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "SUITE_SELECTION_FOLDER"
"""Environment variable: folder of the recording."""
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
GROUP = Path("/sys/fs/cgroup/cpuacct/astraflow-tests") / WORKER


def _used_s() -> float:
    return int((GROUP / "cpuacct.usage").read_text()) / 1e9


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Moves the worker into its group."""
    GROUP.mkdir(parents=True, exist_ok=True)
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Appends id, processor seconds and duration of a test to the recording."""
    used_s, began_at = _used_s(), time.monotonic()
    result = yield
    row = [item.nodeid, round(_used_s() - used_s, 4), round(time.monotonic() - began_at, 3)]
    with (Path(os.environ[FOLDER]) / f"times.{WORKER}.jsonl").open("a") as file:
        file.write(f"{json.dumps(row)}\n")
    return result
