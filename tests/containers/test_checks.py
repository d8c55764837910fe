import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import pytest

from astraflow.contract.reports.report import StreamGroups
from tests.containers.__main__ import FAILED, NOT_STARTED, PASSED, judged
from tests.containers.checks import backup_commands, balanced
from tests.containers.engine import SOURCE
from tests.containers.host import NotStarted
from tests.containers.stack import CheckFailed

FLOW = {"id": "train", "issued": 10, "open": 3, "admitted": 6, "dropped": {"failed": 1}}
GROUPS = StreamGroups(admitted=6, buffered=1, in_batch=2, trained=2, dropped={"stale": 1})
STREAM = {"policy": "solver", "groups": asdict(GROUPS), "training": {"steps": 1}, "batch_groups": 2}
REPORT: dict[str, Any] = {"flows": [FLOW], "streams": [STREAM]}


def test_a_balanced_report_returns_steps_and_issued_groups() -> None:
    assert balanced(REPORT) == (1, 10)


@pytest.mark.parametrize("path", ["issued", "open", "groups.buffered", "training.steps"])
def test_an_unbalanced_report_fails_the_check(path: str) -> None:
    report = deepcopy(REPORT)
    *parts, field = path.split(".")
    counts = report["streams"][0][parts[0]] if parts else report["flows"][0]
    counts[field] += 1
    with pytest.raises(CheckFailed):
        balanced(report)


@pytest.mark.parametrize(
    ("problem", "code", "name"),
    [(None, PASSED, "passed"), (CheckFailed("why"), FAILED, "failed"), (NotStarted("why"), NOT_STARTED, "not started")],
)
def test_the_verdict_has_one_line_and_an_exit_code(problem: Exception | None, code: int, name: str) -> None:
    def check() -> str:
        if problem is not None:
            raise problem
        return "why"

    assert judged(check) == (code, f"containers: {name}: why")


def test_the_check_of_compose_runs_before_packages_are_installed() -> None:
    without_packages = [sys.executable, "-S", "-c", "import tests.containers.__main__"]
    assert subprocess.run(without_packages, check=False, cwd=SOURCE).returncode == 0


def test_the_documented_backup_is_a_script_that_saves_and_restores_every_volume() -> None:
    for commands, action in zip(backup_commands(), ("--create", "--extract"), strict=True):
        subprocess.run(["sh", "-en"], input=commands, text=True, check=True)
        assert action in commands
        assert "export BACKUP=/state/backup" in commands
