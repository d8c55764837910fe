"""Viewer of runs: serves a read-only page of what their folders have, without the services of the runs."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from astraflow.archive.connection import ARCHIVE_PATH
from astraflow.client.offline_run import last_report
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.imports import require_package

WEB, DATABASE, SECRET, LINK = "web", "web.sqlite", "web.secret", "login-link"
READY = "ready "
GRACE_S = 5.0
REMOVED_VARIABLES = (
    *("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET"),
    "ASTRAFLOW_MAIL_PASSWORD",
)


def view_runs(folders: Sequence[RunFolder], *, port: int, print_message: Callable[[str], None]) -> int:
    """Serves a read-only page of runs until a signal; returns its exit code. folders: empty for all runs.

    Raises: InvalidInput for a folder that is not a run directory or has no recorded data; Unavailable when the page
    exits.
    """
    for folder in folders:
        _check_recorded(folder)
    require_package("fastapi", extra="web", to="view a run")
    with tempfile.TemporaryDirectory(prefix="astraflow-view-") as state_folder:
        shown = [word for folder in folders for word in ("--show-run", str(folder.path.absolute()))]
        argv = [sys.executable, "-m", "web", "--read-only", "--directory", state_folder, "--port", str(port), *shown]
        return serve_page(argv, lambda _: print_message(f"{(Path(state_folder) / LINK).read_text()}&next=/runs"))


def export_run(folder: RunFolder, output: Path) -> None:
    """Writes a run to one HTML file: from its page's database, or without one from the archive of dataflow.

    Raises: InvalidInput as `view_runs`, and if the file cannot be written.
    """
    recorded = folder.path / WEB / DATABASE
    if not recorded.exists():
        _check_recorded(folder)
    require_package("fastapi", extra="web", to="export a run")
    if not output.absolute().parent.is_dir() or output.is_dir():
        raise InvalidInput(
            f"cannot write {str(output)!r}: its folder does not exist, or it is a folder; give a file in a folder",
            code="export.invalid_file",
        )
    with tempfile.TemporaryDirectory(prefix="astraflow-export-") as state_folder:
        if recorded.exists():
            copy_database(recorded, Path(state_folder) / DATABASE)
        options = ["--run-dir", str(folder.path.absolute()), "--directory", state_folder]
        argv = [sys.executable, "-m", "web.exports", *options, "--output", str(output.absolute())]
        done = subprocess.run(argv, env=_environment(), stdin=subprocess.DEVNULL, check=False)  # noqa: S603 (arguments one by one)
        if done.returncode:
            raise InvalidInput(
                f"cannot export the run to {str(output)!r}: the export failed; see the error above",
                code="export.failed",
            )


def _check_recorded(folder: RunFolder) -> None:
    """Checks that a run has readable records. Raises: InvalidInput."""
    if not (folder.path / ARCHIVE_PATH).is_file():
        logs = ", ".join(folder.logs()) or "none"
        raise InvalidInput(
            f"cannot show run {folder.facts.run!r}: {str(folder.path)!r} has no {ARCHIVE_PATH}, only the recipe "
            f"({folder.recipe_file.name}) and logs ({logs}); continue the run with `astraflow run {folder.recipe_file} "
            f"--run-dir {folder.path}`",
            code="archive.nothing_recorded",
        )
    if last_report(folder.path) is None:
        raise InvalidInput(
            f"cannot show run {folder.facts.run!r}: the archive of {str(folder.path)!r} has no readable report; give "
            "another run",
            code="history.no_report",
        )


def copy_database(database: Path, target: Path) -> None:
    """Copies a database in its current state, even while it is written; only reads the original."""
    is_settled = not database.with_name(f"{database.name}-wal").exists()
    how = "mode=ro&immutable=1" if is_settled else "mode=ro"  # otherwise SQLite creates files next to it for reading
    try:
        source = sqlite3.connect(f"{database.resolve().as_uri()}?{how}", uri=True)
        with closing(source), closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except sqlite3.Error as problem:
        raise InvalidInput(
            f"cannot read the database {str(database)!r}: {problem}; check the file and its permissions",
            code="archive.unreadable_database",
        ) from None


def _environment() -> dict[str, str]:
    """Returns the environment without the variables that select another database or run."""
    return {name: value for name, value in os.environ.items() if name not in REMOVED_VARIABLES}


def serve_page(argv: Sequence[str], on_ready: Callable[[str], None]) -> int:
    """Runs a page until it ends or this process gets a signal; returns its exit code. on_ready: gets its address.

    Raises: Unavailable when it exits before it is ready.
    """
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=_environment(), start_new_session=True)  # noqa: S603 (arguments one by one)

    def stop(number: int, frame: object) -> None:
        program.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        is_ready = False
        for line in program.stdout or ():
            if line.startswith(READY):
                is_ready = True
                on_ready(line.removeprefix(READY).strip())
        code = program.wait()
        if not is_ready:
            raise Unavailable(
                "cannot serve the page: its process exited before it was ready; see its output above",
                code="page.not_started",
            )
        return max(0, code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if program.poll() is None:
            program.terminate()
            program.wait(GRACE_S)


def has_display() -> bool:
    """Returns True if a graphical browser can open here; a text browser would occupy the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
