"""The second attempt: eligible tests, its report, and pytest's closing line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TESTS = """
import pytest
from pathlib import Path

tries = Path(__file__).with_name("tries")

def fails_first(name):
    with (tries / name).open("a") as file:
        file.write("x")
    return len((tries / name).read_text()) == 1

@pytest.mark.slow
@pytest.mark.retry_once("a process may be killed by the machine")
def test_steady_on_the_second_try():
    assert not fails_first("second")

@pytest.mark.slow
def test_without_a_second_try():
    assert not fails_first("without")

@pytest.mark.slow
@pytest.mark.retry_once("a process may be killed by the machine")
def test_broken():
    fails_first("broken")
    assert False

@pytest.mark.slow
@pytest.mark.retry_once("a process may be killed by the machine")
def test_steady():
    fails_first("steady")
"""


def played(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest over these tests, with the plugin."""
    (folder / "tries").mkdir(exist_ok=True)
    (folder / "test_played.py").write_text(tests)
    markers = "[pytest]\nmarkers =\n    slow: x\n    retry_once(reason): x\n"
    (folder / "pytest.ini").write_text(markers)
    plugins = ("-p", "tests.retries", "-p", "no:cacheprovider", "-p", "xdist.plugin")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("--numprocesses", "1")], ids=["alone", "in a worker"])
def test_only_marked_tests_are_retried_once_and_counted_in_the_summary(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = played(tmp_path, TESTS, *options)
    assert done.returncode == 1
    tries = {file.name: len(file.read_text()) for file in (tmp_path / "tries").iterdir()}
    assert tries == {"second": 2, "without": 1, "broken": 2, "steady": 1}
    closing = done.stdout.splitlines()[-1]
    for part in ("2 failed", "2 passed", "1 passed on a second try"):
        assert part in closing


@pytest.mark.parametrize(
    "marks",
    ["@pytest.mark.slow\n@pytest.mark.retry_once()", "@pytest.mark.retry_once('not a test of processes')"],
    ids=["no reason", "not slow"],
)
def test_a_marker_without_a_reason_or_on_a_quick_test_is_refused(tmp_path: Path, marks: str) -> None:
    done = played(tmp_path, f"import pytest\n\n{marks}\ndef test_it(): pass\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR


def test_more_marked_tests_than_the_limit_are_refused(tmp_path: Path) -> None:
    test_source = "@pytest.mark.slow\n@pytest.mark.retry_once('a reason')\ndef test_{0}(): pass\n"
    done = played(tmp_path, "import pytest\n" + "".join(test_source.format(number) for number in range(7)))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
