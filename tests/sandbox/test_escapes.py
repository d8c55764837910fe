"""Programs that try to leave the sandbox: as the account of the tests and as an unprivileged user, at each level."""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from tests.sandbox.probes import PROBES, run_probes

ROOT = Path(__file__).parents[2]
OTHER_USER = 65534


def contained(account: str, level: str) -> dict[str, bool]:
    if account == "own":
        return asyncio.run(run_probes(level))
    python = interpreter_of_other_user()
    if not python:
        pytest.skip("only root can start programs as another user, who needs an interpreter of this release")
    ended = subprocess.run(
        [python, "-m", "tests.sandbox.probes", level], user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd="/",
        capture_output=True, timeout=200, check=True, env=environment(),
    )  # fmt: skip
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def environment() -> dict[str, str]:
    packages = sysconfig.get_paths()["purelib"]
    return {"PYTHONPATH": f"{ROOT}:{packages}", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}


@cache
def interpreter_of_other_user() -> str:
    """Returns an interpreter that the other user can run with the packages of this one; empty without."""
    if os.geteuid() != 0:
        return ""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            ended = subprocess.run(
                [python, "-c", "import tests.sandbox.probes"], user=OTHER_USER, group=OTHER_USER, extra_groups=[],
                cwd="/", capture_output=True, env=environment(),
            )  # fmt: skip
        except OSError:
            continue
        if ended.returncode == 0:
            return python
    return ""


@pytest.mark.parametrize("account", ["own", "other"])
@pytest.mark.parametrize("level", ["namespaces", "restricted"])
def test_a_program_cannot_leave_the_sandbox(level: str, account: str) -> None:
    results = contained(account, level)
    assert results.keys() == set(PROBES)
    assert [name for name, is_contained in results.items() if not is_contained] == []


def test_the_probes_reach_the_host_without_isolation() -> None:
    """The probes can tell isolation from none."""
    names = ("files of the host", "links to files", "TCP", "unix sockets", "memory without limits")
    assert not any(asyncio.run(run_probes("none", names)).values())
