"""A run directory reopened to look at: the page over a copy of what was recorded, without the run's services."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.runs import RunFolder

WEB, DATABASE, SECRET = "web", "web.sqlite", "web.secret"
READY = "ready "
GRACE_S = 5.0
NOT_PASSED_ON = ("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET")


def reopen(directory: Path, *, port: int, say: Callable[[str], None]) -> int:
    """Serve the page of a run directory until a signal; returns its exit code.

    Raises: InvalidInput when the directory is none, or nothing was recorded in it; Unavailable when the page ends.
    """
    folder = RunFolder(directory)
    recorded = _recorded(folder)
    with tempfile.TemporaryDirectory(prefix="astraflow-view-") as place:
        copied(recorded, Path(place) / DATABASE)
        secret = recorded.with_name(SECRET)
        if secret.exists():
            (Path(place) / SECRET).touch(mode=0o600)
            (Path(place) / SECRET).write_bytes(secret.read_bytes())
        argv = [sys.executable, "-m", "web", "--read-only", "--directory", place, "--port", str(port)]
        return _serve([*argv, "--recipe", folder.facts.recipe], say)


def copied(database: Path, target: Path) -> None:
    """A copy of a database as of now, also of one that is being written; the original is only read."""
    is_settled = not database.with_name(f"{database.name}-wal").exists()
    how = "mode=ro&immutable=1" if is_settled else "mode=ro"  # else files would be made beside it only to read it
    try:
        source = sqlite3.connect(f"{database.resolve().as_uri()}?{how}", uri=True)
        with closing(source), closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except sqlite3.Error as problem:
        raise InvalidInput(f"what was recorded in {database} cannot be read: {problem}") from None


def _recorded(folder: RunFolder) -> Path:
    """The database of the run's own page. Raises: InvalidInput that says what there is instead."""
    facts = folder.facts
    database = folder.path / WEB / DATABASE
    if database.exists():
        return database
    logs = ", ".join(folder.logs()) or "none"
    raise InvalidInput(
        f"{folder.path} has no {WEB}/{DATABASE}: {facts.run} ran without its page (--no-web), so that no charts were "
        f"recorded there. A run that was launched from a page is in that page's database: look for it under its Runs. "
        f"What there is: the recipe ({folder.recipe_file.name}), logs ({logs}); with its trajectories it comes back as "
        f"`astraflow run {folder.recipe_file} --run-dir {folder.path}`"
    )


def _environment() -> dict[str, str]:
    """Without what would have the page open another database, or another run."""
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}


def _serve(argv: list[str], say: Callable[[str], None]) -> int:
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=_environment(), start_new_session=True)  # noqa: S603 (arguments one by one)

    def stop(number: int, frame: object) -> None:
        program.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        is_ready = False
        for line in program.stdout or ():
            if line.startswith(READY):
                is_ready = True
                say(f"{line.removeprefix(READY).strip()}&next=/runs")
        code = program.wait()
        if not is_ready:
            raise Unavailable("the page ended before it listened; what it said is above")
        return max(0, code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if program.poll() is None:
            program.terminate()
            program.wait(GRACE_S)
