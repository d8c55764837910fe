"""Runs programs of the page: the audit log commands on a copy of its database, and login links."""

import os
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

from astraflow.cli.inspection.archive_viewer import DATABASE, LINK, SECRET, WEB, copy_database, has_display, serve_page
from astraflow.cli.run_directory import folder_of
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.folders.run_folders import active_runs, home
from astraflow.runtime.imports import require_package
from astraflow.runtime.locks import is_locked
from astraflow.runtime.service import make_private_folder

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


PAGE_LOCK = "page.lock"
"""Lock file in the folder of a page, which its process holds."""


def open_page(*, port: int, opens_browser: bool) -> int:
    """Serves the page until a signal and opens it, or opens the page that already runs; returns the exit code.

    Raises: Unavailable when the page exits before it is ready.
    """
    require_package("fastapi", extra="web", to="serve the page")
    directory = home() / WEB
    if is_locked(directory / PAGE_LOCK):
        argv = [sys.executable, "-m", "web.accounts.login_links", "--directory", str(directory)]
        printed = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603 (arguments one by one)
        _open(printed.stdout.strip(), opens_browser=opens_browser)
        return printed.returncode
    make_private_folder(directory)
    argv = [sys.executable, "-m", "web", "--directory", str(directory), "--port", str(port)]
    return serve_page(argv, lambda _: _open((directory / LINK).read_text().strip(), opens_browser=opens_browser))


def _open(link: str, *, opens_browser: bool) -> None:
    """Prints the login link, and opens it where a browser has a display."""
    if not link:
        return
    print(f"All runs of this machine; log in, once, at {link}", flush=True)  # noqa: T201 (the command's result)
    if opens_browser and has_display():
        webbrowser.open(link)
