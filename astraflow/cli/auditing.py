"""What the page's own programs do from the command line: the audit over a copy of its database, and login links."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from astraflow.cli.reopening import DATABASE, SECRET, WEB, copied
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.runs import active_runs

URL = "ASTRAFLOW_WEB_DATABASE"


def audited(place: Path | None, what: str, *arguments: str) -> int:
    """Run `python -m web.audit WHAT`; returns its exit code. Raises: InvalidInput without an audit at that place."""
    folder = _folder(place, has_url=bool(os.environ.get(URL)))
    with tempfile.TemporaryDirectory(prefix="astraflow-audit-") as directory:
        copy = Path(directory)
        if not os.environ.get(URL):
            copied(folder / DATABASE, copy / DATABASE)
        (copy / SECRET).touch(mode=0o600)
        (copy / SECRET).write_bytes(_secret(folder))
        argv = [sys.executable, "-m", "web.audit", what, "--directory", directory, *arguments]
        return subprocess.run(argv, check=False).returncode  # noqa: S603 (arguments one by one)


def login_link(place: Path | None) -> int:
    """Run `python -m web.accounts.links`, which prints a link; returns its exit code. Raises: InvalidInput."""
    folder = _folder(place, has_url=bool(os.environ.get(URL)))
    argv = [sys.executable, "-m", "web.accounts.links", "--directory", str(folder)]
    return subprocess.run(argv, check=False).returncode  # noqa: S603 (arguments one by one)


def _folder(place: Path | None, *, has_url: bool) -> Path:
    """Where a page keeps what it wrote. has_url: its database is elsewhere, and only its secret is there."""
    wanted = SECRET if has_url else DATABASE
    places = [place] if place is not None else [run.path for run in active_runs()]
    for one in places:
        for folder in (one, one / WEB):
            if (folder / wanted).is_file():
                return folder
    if place is None:
        raise InvalidInput(
            "no run with a page of its own is active on this machine: name a run's folder, or the --directory of "
            "`astraflow serve web`"
        )
    raise InvalidInput(f"neither {place} nor {place / WEB} has a {wanted}: no page kept its audit there")


def _secret(folder: Path) -> bytes:
    """What the newest entry is sealed with. Raises: InvalidInput when it is not there, or cannot be read."""
    try:
        return (folder / SECRET).read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"{folder / SECRET} cannot be read: {problem.strerror}; without it nobody can say whether the newest entry "
            "is the page's own"
        ) from None
