"""Viewer of a run directory: serves the page from a copy of the recorded data, without the services of the run."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from astraflow.archive.connection import ARCHIVE_PATH
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


def view_archived_run(folder: RunFolder, *, port: int, print_message: Callable[[str], None]) -> int:
    """Serves the page of a run directory until a signal; returns its exit code.

    Raises: InvalidInput for a folder that is not a run directory or has no recorded data; Unavailable when the page
    exits.
    """
    facts = folder.facts
    require_package("fastapi", extra="web", to="view a run")
    with tempfile.TemporaryDirectory(prefix="astraflow-view-") as state_folder:
        _copy_history(folder, Path(state_folder))
        run_options = ["--run-dir", str(folder.path.absolute()), "--recipe", facts.recipe]
        argv = [sys.executable, "-m", "web", "--read-only", "--directory", state_folder, "--port", str(port)]
        return _serve(
            [*argv, *run_options], lambda: print_message(f"{(Path(state_folder) / LINK).read_text()}&next=/runs")
        )


def _copy_history(folder: RunFolder, target: Path) -> None:
    """Copies the database of the run's page to `target` or, without one, rebuilds it from the archive of dataflow.

    Raises: InvalidInput when neither exists or can be read.
    """
    recorded = folder.path / WEB / DATABASE
    if not recorded.exists():
        _rebuild_history(folder, target)
        return
    copy_database(recorded, target / DATABASE)
    secret = recorded.with_name(SECRET)
    if secret.exists():
        (target / SECRET).touch(mode=0o600)
        (target / SECRET).write_bytes(secret.read_bytes())


def _rebuild_history(folder: RunFolder, target: Path) -> None:
    if not (folder.path / ARCHIVE_PATH).is_file():
        logs = ", ".join(folder.logs()) or "none"
        raise InvalidInput(
            f"cannot show run {folder.facts.run!r}: {str(folder.path)!r} has neither {WEB}/{DATABASE} nor "
            f"{ARCHIVE_PATH}, only the recipe ({folder.recipe_file.name}) and logs ({logs}); continue the run with "
            f"`astraflow run {folder.recipe_file} --run-dir {folder.path}`",
            code="archive.nothing_recorded",
        )
    argv = [sys.executable, "-m", "web.history.backfill", "--run-dir", str(folder.path), "--directory", str(target)]
    done = subprocess.run(argv, env=_environment(), stdin=subprocess.DEVNULL, check=False)  # noqa: S603 (arguments one by one)
    if done.returncode:
        raise InvalidInput(
            f"cannot show the archive {str(folder.path / ARCHIVE_PATH)!r}: it could not be converted; see the error "
            "above",
            code="archive.not_convertible",
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


def _serve(argv: list[str], print_link: Callable[[], None]) -> int:
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=_environment(), start_new_session=True)  # noqa: S603 (arguments one by one)

    def stop(number: int, frame: object) -> None:
        program.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        is_ready = False
        for line in program.stdout or ():
            if line.startswith(READY):
                is_ready = True
                print_link()
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
