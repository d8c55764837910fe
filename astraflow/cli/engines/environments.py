"""Installation of engine servers from the command line, and the table of what is installed."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from astraflow.cli.output import Table, show
from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.raas.engines.server.environments import Environment, environments_folder, installed_environments
from astraflow.raas.engines.server.installation.host import Host, default_device, this_host
from astraflow.raas.engines.server.installation.installer import (
    EnvironmentState,
    check_can_install,
    environment_states,
    install,
)
from astraflow.raas.engines.server.installation.releases import EngineRelease, find_release, server_kinds
from astraflow.runtime import logs

_DETAIL_EVERY_S = 15.0
"""Interval of progress details without a terminal."""


class InstallationScreen:
    """Prints the progress of an installation: on a terminal, the newest detail stays in the last line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._began_at = self._detail_at = time.monotonic()

    def __enter__(self) -> "InstallationScreen":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def progress(self, line: str) -> None:
        """Prints a line; a detail (it begins with a space) replaces the previous one, or is printed at an interval."""
        now = time.monotonic()
        text = f"{now - self._began_at:5.0f} s  {line}"
        if not line.startswith(" "):
            self._console.print(text, soft_wrap=True)
        elif self._status is not None:
            self._status.update(text)
        elif now - self._detail_at >= _DETAIL_EVERY_S:
            self._detail_at = now
            self._console.print(text, soft_wrap=True)


def install_engines(
    kinds: Sequence[str], *, is_all: bool, device: str, name: str, has_consent: bool, wheels: Path | None
) -> None:
    """Installs engines, after asking unless `has_consent`. kinds: empty with `is_all`.

    Raises: InvalidInput for options that contradict each other and without a terminal to ask on; errors of `install`.
    """
    if is_all == bool(kinds) or (is_all and name):
        raise InvalidInput(
            f"cannot install: name one engine ({', '.join(server_kinds())}), or all of them by --all, which takes no "
            "--name",
            code="cli.engine_required",
        )
    if wheels is not None and not wheels.is_dir():
        raise InvalidInput(
            f"cannot install from {str(wheels)!r}: no such folder; give a folder with wheels", code="cli.no_folder"
        )
    host = this_host()
    for kind in server_kinds() if is_all else kinds:
        release = find_release(kind, default_device(host) if device == "auto" else device)
        _install_one(release, host, name=name or release.name, has_consent=has_consent, wheels=wheels)


def ensure_installed(kind: str, *, has_consent: bool) -> None:
    """Installs a server program unless an environment has it, after asking; does nothing for other engines.

    Raises: InvalidInput without consent; errors of `install`.
    """
    if kind not in server_kinds() or any(environment.kind == kind for environment in installed_environments()):
        return
    host = this_host()
    release = find_release(kind, default_device(host))
    _install_one(release, host, name=release.name, has_consent=has_consent, wheels=None)


def show_environments(*, as_json: bool, check: bool) -> int:
    """Prints the environments; returns the exit code: 1 when `check` is set and a server does not answer."""
    logs.configure(level="ERROR")  # the table shows problems
    rows = [_row(state, check=check) for state in environment_states()]
    show(rows, _environment_table, as_json=as_json)
    return 1 if check and not all(row["is_healthy"] for row in rows) else 0


def _environment_table(rows: Sequence[Mapping[str, Any]]) -> Table | Text:
    if not rows:
        kinds = "|".join(server_kinds())
        return Text(f"no engine is installed below {environments_folder()}: astraflow engines install {kinds}")
    table = Table("environment", "engine", "release", "device", "size", "health", right=("size",))
    for row in rows:
        size = f"{row['size_bytes'] / 1e9:.1f} GB"
        table.add(row["name"], row["kind"], row["version"], row["device"], size, row["health"])
    return table


def _install_one(release: EngineRelease, host: Host, *, name: str, has_consent: bool, wheels: Path | None) -> None:
    from astraflow.raas.engines.server.installation.verification import verify

    logs.configure(level="ERROR")  # progress and errors are printed
    console = Console(highlight=False)
    for environment in installed_environments():
        if (environment.name, environment.kind, environment.version) == (name, release.kind, release.version):
            console.print(f"{name} has {release.title} already: astraflow engines list --check", soft_wrap=True)
            return
    check_can_install(release, host, name=name)
    tested = "" if release.is_tested else ", which the authors have not run,"
    console.print(
        f"{release.title}{tested} takes {release.size_bytes / 1e9:.1f} GB in {environments_folder() / name} and some "
        "minutes to download and install.",
        soft_wrap=True,
    )
    require_consent(f"astraflow engines install {release.kind} --device {release.device}", has_consent=has_consent)
    began_at = time.monotonic()
    with InstallationScreen(console) as screen:
        install(release, name=name, wheels=wheels, check=verify, progress=screen.progress)
    console.print(f"installed {name} in {time.monotonic() - began_at:.0f} s")


def require_consent(command: str, *, has_consent: bool) -> None:
    """Asks for consent on the terminal. Raises: InvalidInput if the user declines or there is no terminal."""
    if has_consent:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"cannot ask whether to install: there is no terminal; run `{command} --yes`",
            code="cli.consent_required",
        )
    try:
        answer = Console(highlight=False).input("Install it? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidInput(f"cannot go on: not installed; run `{command}` when you want it", code="cli.not_consented")


def _row(state: EnvironmentState, *, check: bool) -> dict[str, Any]:
    environment = state.environment
    problem, answer = "", ""
    if environment is None:
        problem = "incomplete: install it again, or remove it"
    elif check:
        problem, answer = _check(environment)
    return {
        "name": state.name,
        "kind": environment.kind if environment else "",
        "version": environment.version if environment else "",
        "device": environment.device if environment else "",
        "folder": str(state.folder),
        "size_bytes": state.size_bytes,
        "is_healthy": not problem,
        "health": problem or answer or "answered when it was installed",
    }


def _check(environment: Environment) -> tuple[str, str]:
    """Returns the problem of an environment, or what its server did."""
    from astraflow.raas.engines.server.installation.verification import verify

    try:
        return "", verify(environment)
    except AstraFlowError as problem:
        return str(problem), ""
