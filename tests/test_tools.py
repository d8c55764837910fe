"""Messages about missing tools: at the start of a session, as the reason of a skip, and in CI as an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tools

ROOT = Path(__file__).parents[1]

TESTS = """
import pytest

@pytest.mark.needs("promtool")
def test_promtool(): pass

@pytest.mark.browser
def test_page(): pass

def test_nothing(): pass
"""


def played(folder: Path, *, ci: bool) -> subprocess.CompletedProcess[str]:
    """Runs pytest with the project's conftest on a machine without programs."""
    (folder / "test_played.py").write_text(TESTS)
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"PATH": "/nowhere"}
    arguments = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:randomly", "-rs", "-c", "pyproject.toml")
    code = (
        "import sys, tests.tools as tools; tools.SYSTEM_PATH = ''; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments, "--rootdir", str(folder), str(folder)],
        cwd=ROOT,
        env=environment | ({"CI": "true"} if ci else {}) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_session_header_lists_skipped_tools_and_how_to_install_them(tmp_path: Path) -> None:
    done = played(tmp_path, ci=False)
    assert done.returncode == 0, done.stdout + done.stderr
    start, _, end = done.stdout.partition("test_played.py")
    for name in ("promtool", "chromium"):
        assert f"skipped without {name}" in start
        assert tools.why(name) in end
    assert "make system-packages" in start
    assert "1 passed, 2 skipped" in end


def test_missing_tools_stop_the_session_in_ci(tmp_path: Path) -> None:
    done = played(tmp_path, ci=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "make system-packages" in done.stdout + done.stderr
    assert "passed" not in done.stdout


def test_every_tool_has_packages_or_advice() -> None:
    for name, tool in tools.TOOLS.items():
        assert bool(tool.packages) != bool(tool.advice), name
    assert tools.packages(["fonts", "root"]) == ["fonts-dejavu-core", "fonts-liberation", "fonts-noto-core"]


def test_missing_packages_can_be_listed_without_site_packages() -> None:
    """`make system-packages` runs it with the interpreter of the system, without site packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tests.tools", "packages"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wanted = [name for name in tools.missing() if tools.TOOLS[name].packages]
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, tools.packages(wanted), "")
