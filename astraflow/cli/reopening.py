"""A run directory reopened to look at: the page over a copy of what was kept, without the run's services."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from astraflow.archive.opening import PLACE
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.runs import RunFolder

WEB, DATABASE, SECRET, LINK = "web", "web.sqlite", "web.secret", "login-link"
READY = "ready "
GRACE_S = 5.0
NOT_PASSED_ON = ("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET")


def reopen(directory: Path, *, port: int, say: Callable[[str], None]) -> int:
    """Serve the page of a run directory until a signal; returns its exit code.

    Raises: InvalidInput when the directory is none, or nothing was kept in it; Unavailable when the page ends.
    """
    folder = RunFolder(directory)
    facts = folder.facts
    with tempfile.TemporaryDirectory(prefix="astraflow-view-") as place:
        _fill(folder, Path(place))
        shown = ["--run-dir", str(folder.path.absolute()), "--recipe", facts.recipe]
        argv = [sys.executable, "-m", "web", "--read-only", "--directory", place, "--port", str(port)]
        return _serve([*argv, *shown], lambda: say(f"{(Path(place) / LINK).read_text()}&next=/runs"))


def _fill(folder: RunFolder, place: Path) -> None:
    """Put into `place` what the run's own page recorded or, when it had none, what its dataflow kept.

    Raises: InvalidInput when there is neither, or it cannot be read.
    """
    recorded = folder.path / WEB / DATABASE
    if not recorded.exists():
        _retell(folder, place)
        return
    copied(recorded, place / DATABASE)
    secret = recorded.with_name(SECRET)
    if secret.exists():
        (place / SECRET).touch(mode=0o600)
        (place / SECRET).write_bytes(secret.read_bytes())


def _retell(folder: RunFolder, place: Path) -> None:
    if not (folder.path / PLACE).is_file():
        logs = ", ".join(folder.logs()) or "none"
        raise InvalidInput(
            f"{folder.path} has neither {WEB}/{DATABASE} nor {PLACE}: {folder.facts.run} has kept nothing there that "
            f"could be shown. What there is: the recipe ({folder.recipe_file.name}), logs ({logs}); it goes on as "
            f"`astraflow run {folder.recipe_file} --run-dir {folder.path}`"
        )
    argv = [sys.executable, "-m", "web.history.retelling", "--run-dir", str(folder.path), "--directory", str(place)]
    done = subprocess.run(argv, env=_environment(), stdin=subprocess.DEVNULL, check=False)  # noqa: S603 (arguments one by one)
    if done.returncode:
        raise InvalidInput(f"what {folder.path / PLACE} holds cannot be shown; why is said above")


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


def _environment() -> dict[str, str]:
    """Without what would have the page open another database, or another run."""
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}


def _serve(argv: list[str], say_ready: Callable[[], None]) -> int:
    program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=_environment(), start_new_session=True)  # noqa: S603 (arguments one by one)

    def stop(number: int, frame: object) -> None:
        program.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        is_ready = False
        for line in program.stdout or ():
            if line.startswith(READY):
                is_ready = True
                say_ready()
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
