"""Runs of pip in the environment of an engine: steps, progress and errors."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, InvalidInput, StorageFull, Unavailable
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.installation.releases import EngineRelease
from astraflow.runtime.home import home

_LOG_LINES = 5

Progress = Callable[[str], None]
"""Takes a line for a person. A line that begins with a space is a detail of the line before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipStep:
    """One call of pip."""

    title: str
    arguments: tuple[str, ...]
    packages: int = 0
    """Number of packages, for the progress; 0 when unknown."""


def pip_steps(release: EngineRelease) -> list[PipStep]:
    """Returns the calls that install a release, in order."""
    file = str(release.requirements)
    if not release.is_complete:
        return [PipStep(title=f"installing {release.title} and its requirements", arguments=("--requirement", file))]
    pins = [line for line in release.requirements.read_text().splitlines() if line and not line.startswith("#")]
    torch = [pin for pin in pins if pin.startswith("torch==")]
    steps = [PipStep(title=f"installing {pin}", arguments=("--constraint", file, pin)) for pin in torch]
    rest = PipStep(
        title=f"installing {release.title}: {len(pins)} packages",
        arguments=("--no-deps", "--requirement", file),
        packages=len(pins),
    )
    return [*steps, rest]


def run_pip(
    release: EngineRelease,
    environment: Environment,
    step: PipStep,
    *,
    wheels: Path | None,
    log_file: Path,
    progress: Progress,
) -> None:
    """Runs one step. wheels: folder with wheels besides pip's index.

    Raises: StorageFull, InvalidInput, Unavailable; the message names the cause.
    """
    options = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
    folders = ("--find-links", str(wheels.resolve())) if wheels is not None else ()
    command = [str(environment.python), "-m", "pip", "install", *options, *folders, *step.arguments]
    seen: set[str] = set()
    everything: list[str] = []

    def on_line(line: str) -> None:
        everything.append(line)
        detail = _detail(line, seen, step.packages)
        if detail:
            progress(f" {detail}")

    tail = run_logged(command, log_file, on_line=on_line)
    if tail is not None:
        raise _pip_error(release, everything, log_file)


def _detail(line: str, seen: set[str], total: int) -> str:
    """Returns the progress in a line of pip's output; empty if it has none."""
    words = line.split()
    match words[:1]:
        case ["Collecting"]:
            seen.add(words[1])
            return f"{len(seen)} of {total} packages, {words[1]}" if total else f"{len(seen)} packages, {words[1]}"
        case ["Downloading"]:
            return line.strip() if len(words) > 2 and any(unit in line for unit in (" MB", " GB")) else ""
        case ["Installing"]:
            return "unpacking"
    return ""


def _pip_error(release: EngineRelease, lines: Sequence[str], log_file: Path) -> AstraFlowError:
    """Returns the error for the output of a pip that failed."""
    text = "\n".join(lines)
    if re.search(r"No space left on device|Errno 28", text):
        return StorageFull(
            f"cannot install {release.title}: the disk is full; free space in {str(home())!r} and in the folder for "
            "temporary files (TMPDIR), and run the command again: it continues",
            code="engine.install_no_space",
        )
    if re.search(
        r"connection broken|Failed to establish a new connection|Temporary failure in name resolution|"
        r"Network is unreachable|Read timed out|ConnectTimeout|ProxyError",
        text,
    ):
        return Unavailable(
            f"cannot install {release.title}: pip cannot reach its package index; check network, proxy and pip's "
            "configuration, or give a folder with wheels by --wheels and set PIP_NO_INDEX=1; then run the command "
            "again: it continues",
            code="engine.install_no_index",
        )
    missing = re.search(r"No matching distribution found for (\S+)", text)
    if missing:
        return InvalidInput(
            f"cannot install {release.title}: pip finds no package {missing[1]} for this Python and machine; check "
            f"pip's index and configuration, or give a folder with wheels by --wheels. Log: {log_file}",
            code="engine.install_no_package",
        )
    errors = [line for line in lines if line.startswith("ERROR")] or list(lines)
    return Unavailable(
        f"cannot install {release.title}: pip failed: {' '.join(errors[-_LOG_LINES:])}; see {log_file}, and run the "
        "command again: it continues",
        code="engine.install_failed",
    )


def run_logged(command: Sequence[str], log_file: Path, *, on_line: Callable[[str], None]) -> list[str] | None:
    """Runs a command; its output goes to the log. Returns None, or the last lines when it failed."""
    tail: list[str] = []
    with log_file.open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(  # noqa: S603 (a fixed program with validated arguments)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_variables(os.environ),
        )
        assert process.stdout is not None  # noqa: S101 (it is started with a pipe)
        try:
            for line in process.stdout:
                log.write(line)
                tail = [*tail, line.strip()][-_LOG_LINES:]
                on_line(line)
            return None if process.wait() == 0 else tail
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of pip: those of this process without another environment's paths."""
    return {key: value for key, value in inherited.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
