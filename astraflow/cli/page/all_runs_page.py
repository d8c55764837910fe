"""`astraflow ui`: the page with all runs of this machine, opened in a browser."""

import subprocess
import sys
import webbrowser

from astraflow.cli.inspection.archive_viewer import LINK, WEB, has_display, serve_page
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.imports import require_package
from astraflow.runtime.locks import is_locked
from astraflow.runtime.service import make_private_folder

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
