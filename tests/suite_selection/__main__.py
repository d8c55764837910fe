"""Selects the tests that `make test` leaves to `make test-long`, and writes tests/long_tests.txt.

    python -m tests.suite_selection [--recording FOLDER] [--reuse]

Runs the whole suite with branch coverage by test, in all processes, and measures the processor time of each test: 80 to
90 minutes on two cores; needs root and cgroup version 1. `--reuse` selects from an earlier recording.

Tests below `CHEAP_S` stay. Of the others, the test that covers most new branches per second is taken until nothing new
is left. It stays if it covers `MIN_PER_S` new branches per second or `MIN_NEW` in all; a test that adds less is
listed, and so is every test that adds nothing. `STAYS` names what stays whatever it covers.
"""

import argparse
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import coverage
import numpy as np
import numpy.typing as npt

from tests.suite_selection import LIST, shortened
from tests.suite_selection.recording import FOLDER

ROOT = Path(__file__).parents[2]
CHEAP_S = 0.4
"""Processor time with coverage, which doubles it."""
MIN_PER_S = 1.0
MIN_NEW = 15
STAYS = (
    "tests/sandbox/test_escapes.py",
    "tests/system/test_demo.py",
    "tests/system/test_full_disk.py",
    "tests/system/test_hand_back.py::test_a_preempted_spot_node_drains_before_its_end",
    "tests/test_",
    "tests/web/browser/test_axe.py",
)
"""Beginnings of ids: the claim of the README, limits of the sandbox, and what lines of Python do not show."""

_HEAD = """\
# Tests that only `make test-long` runs: expensive, and cheaper tests cover their branches. Written by
# `python -m tests.suite_selection`. A test that is not listed runs in `make test`.
"""

Branches = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Recording:
    """Whole suite with coverage."""

    cost_s: dict[str, float]
    """Processor time of each test."""
    branches: dict[str, Branches]
    """Numbers of the branches that each test runs; without the tests that run none."""
    count: int
    """Branches that any test runs."""


def record(folder: Path) -> None:
    """Runs the whole suite."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**os.environ, "CI": "true", "OMP_NUM_THREADS": "1", "COVERAGE_FILE": str(folder / "coverage")}
    command = ["-m", "pytest", "-p", "tests.suite_selection.recording", "--whole-suite", "--timeout", "900"]
    command += ["--numprocesses", "3", "--dist", "worksteal", "--cov", "--cov-context", "test", "--cov-report", ""]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=False, env={**environment, FOLDER: str(folder)})


def read(folder: Path) -> Recording:
    """Reads a recording. Lines of no test, which modules run when they are imported, belong to all."""
    cost_s: dict[str, float] = {}
    for path in folder.glob("times.*.jsonl"):
        rows = map(json.loads, path.read_text().splitlines())
        cost_s.update((row[0], row[1]) for row in rows)
    numbers: dict[tuple[int, int, int], int] = {}
    by_test: dict[str, set[int]] = defaultdict(set)
    with closing(sqlite3.connect(folder / "coverage")) as connection:
        tests = {row: owner_of(text, cost_s) for row, text in connection.execute("select id, context from context")}
        for file, context, start, end in connection.execute("select file_id, context_id, fromno, tono from arc"):
            by_test[tests[context]].add(numbers.setdefault((file, start, end), len(numbers)))
    branches = {
        test: np.fromiter(numbers_of_test, np.int32, len(numbers_of_test)) for test, numbers_of_test in by_test.items()
    }
    return Recording(cost_s=cost_s, branches=branches, count=len(numbers))


def owner_of(context: str, known: dict[str, float]) -> str:
    """Returns the test of a context of coverage; empty if none.

    pytest-cov writes `ID|run`, processes that tests start have `ID (call)` of PYTEST_CURRENT_TEST, and the parts of a
    static and a dynamic context are joined by `|`.
    """
    whole = re.sub(r"\|(run|setup|teardown)$", "", context)
    for part in (whole, whole.partition("|")[2], whole.rpartition("|")[2]):
        test_id = re.sub(r" \((setup|call|teardown)\)$", "", part)
        if test_id in known:
            return test_id
    return ""


def moved_tests(recording: Recording) -> list[str]:
    """Returns the tests to list."""
    cost_s, branches = recording.cost_s, recording.branches
    covered = np.zeros(recording.count, np.bool_)
    staying = [test for test in cost_s if cost_s[test] < CHEAP_S or test.startswith(STAYS)]
    for test in ("", *staying):
        covered[branches.get(test, [])] = True
    remaining = {test: branches.get(test, np.empty(0, np.int32)) for test in cost_s.keys() - set(staying)}
    moved: list[str] = []
    while remaining:
        remaining = {test: numbers[~covered[numbers]] for test, numbers in remaining.items()}
        best = max(remaining, key=lambda test: len(remaining[test]) / cost_s[test])
        new = remaining.pop(best)
        if len(new) >= MIN_NEW or len(new) / cost_s[best] >= MIN_PER_S:
            covered[new] = True
        else:
            moved.append(best)
    return moved


def covered_percent(folder: Path, without: list[str], known: dict[str, float]) -> float:
    """Returns the coverage of lines and branches that the tests have, without some of them."""
    copied = folder / "coverage.part"
    shutil.copy(folder / "coverage", copied)
    left_out = set(without)
    with closing(sqlite3.connect(copied)) as connection, connection:
        contexts = connection.execute("select id, context from context").fetchall()
        rows = [(row,) for row, text in contexts if owner_of(text, known) in left_out]
        connection.execute("create temporary table left_out (id integer primary key)")
        connection.executemany("insert into left_out values (?)", rows)
        connection.execute("delete from arc where context_id in (select id from left_out)")
    measured = coverage.Coverage(data_file=str(copied), config_file=str(ROOT / "pyproject.toml"))
    measured.load()
    return measured.report(file=io.StringIO(), ignore_errors=True)


def main() -> None:
    """Records unless a recording is reused, writes the list and prints what it changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, default=ROOT / "build/suite_selection")
    parser.add_argument("--reuse", action="store_true", help="select from the recording that is there")
    arguments = parser.parse_args()
    if not arguments.reuse:
        record(arguments.recording)
    recording = read(arguments.recording)
    moved = moved_tests(recording)
    LIST.write_text(_HEAD + "".join(f"{test_id}\n" for test_id in shortened(moved, recording.cost_s)))
    for name, without in (("all tests", []), ("without the listed tests", moved)):
        cost_s = sum(recording.cost_s.values()) - sum(recording.cost_s[test] for test in without)
        percent = covered_percent(arguments.recording, without, recording.cost_s)
        count = len(recording.cost_s) - len(without)
        sys.stdout.write(f"{name}: {count:,} tests, {cost_s:,.0f} s of processor time, coverage {percent:.2f} %\n")


if __name__ == "__main__":
    main()
