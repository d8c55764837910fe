"""Runs programs of the page: the audit log commands on a copy of its database, and login links."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from astraflow.cli.inspection.archive_viewer import DATABASE, SECRET, WEB, copy_database
from astraflow.cli.run_directory import folder_of
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import active_runs, home
from astraflow.runtime.imports import require_package

DATABASE_URL = "ASTRAFLOW_WEB_DATABASE"


def run_audit(location: Path | None, command: str, *arguments: str) -> int:
    """Runs `python -m web.audit WHAT`; returns its exit code. Raises: InvalidInput without an audit log there."""
    require_package("fastapi", extra="web", to="read the data of a page")
    folder = _folder(location, has_url=bool(os.environ.get(DATABASE_URL)))
    with tempfile.TemporaryDirectory(prefix="astraflow-audit-") as directory:
        copy = Path(directory)
        if not os.environ.get(DATABASE_URL):
            copy_database(folder / DATABASE, copy / DATABASE)
        (copy / SECRET).touch(mode=0o600)
        (copy / SECRET).write_bytes(_secret(folder))
        argv = [sys.executable, "-m", "web.audit", command, "--directory", directory, *arguments]
        return subprocess.run(argv, check=False).returncode  # noqa: S603 (arguments one by one)


def login_link(location: Path | None) -> int:
    """Runs `python -m web.accounts.login_links`, which prints a link; returns its exit code. Raises: InvalidInput."""
    require_package("fastapi", extra="web", to="read the data of a page")
    folder = _folder(location, has_url=bool(os.environ.get(DATABASE_URL)))
    argv = [sys.executable, "-m", "web.accounts.login_links", "--directory", str(folder)]
    return subprocess.run(argv, check=False).returncode  # noqa: S603 (arguments one by one)


def _folder(location: Path | None, *, has_url: bool) -> Path:
    """Returns the state folder of a page: by default that of the latest active run, or of `astraflow serve web`.

    has_url: the database is elsewhere, and the folder has only the secret.
    """
    file_name = SECRET if has_url else DATABASE
    candidates = [folder_of(location)] if location is not None else [*(run.path for run in active_runs()), home()]
    for candidate in candidates:
        for folder in (candidate, candidate / WEB):
            if (folder / file_name).is_file():
                return folder
    if location is None:
        raise InvalidInput(
            f"cannot find a page: no active run on this machine has one, nor has {str(home() / WEB)!r}; name a run, or "
            "the --directory of `astraflow serve web`",
            code="cli.no_active_run",
        )
    raise InvalidInput(
        f"cannot find an audit log: neither {str(location)!r} nor {str(location / WEB)!r} has a {file_name}; name a "
        "run, or the state folder of a page",
        code="audit.not_found",
    )


def _secret(folder: Path) -> bytes:
    """Returns the secret that seals the newest entry. Raises: InvalidInput when it cannot be read."""
    try:
        return (folder / SECRET).read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the secret {str(folder / SECRET)!r}: {problem.strerror}; the audit log cannot be verified "
            "without it, so run the command as the user of the page",
            code="audit.unreadable_secret",
        ) from None
