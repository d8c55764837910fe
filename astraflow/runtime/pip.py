"""Runs of pip: their output in a log, and the cause of a failure."""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from astraflow.runtime.processes.child import child_environment

OPTIONS = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
"""Options of every command: no prompts, and plain output."""

_NAMES = (
    "CC", "CFLAGS", "CUDA_HOME", "CXX", "CXXFLAGS", "HTTPS_PROXY", "HTTP_PROXY", "LDFLAGS", "MAKEFLAGS", "NO_PROXY",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "https_proxy", "http_proxy", "no_proxy",
)  # fmt: skip
_TAIL_LINES = 5


class PipProblem(Enum):
    """Cause of a failed run."""

    NO_SPACE = "no_space"
    NO_INDEX = "no_index"
    """The package index cannot be reached."""
    NO_PACKAGE = "no_package"
    """The index does not have the package for this Python and machine."""
    WRONG_HASH = "wrong_hash"
    """A package differs from the required one."""
    OTHER = "other"


_PATTERNS = (
    (PipProblem.NO_SPACE, r"No space left on device|Errno 28"),
    (
        PipProblem.NO_INDEX,
        r"connection broken|Failed to establish a new connection|Temporary failure in name resolution|"
        r"Network is unreachable|Read timed out|ConnectTimeout|ProxyError",
    ),
    (PipProblem.WRONG_HASH, r"DO NOT MATCH THE HASHES"),
    (PipProblem.NO_PACKAGE, r"No matching distribution found for"),
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
            env=_variables(),
        )
        assert process.stdout is not None  # noqa: S101 (it is started with a pipe)
        try:
            for line in process.stdout:
                log.write(line)
                tail = [*tail, line.strip()][-_TAIL_LINES:]
                on_line(line)
            return None if process.wait() == 0 else tail
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def pip_problem(lines: Sequence[str]) -> PipProblem:
    """Returns the cause in the output of a pip that failed.

    >>> pip_problem(["ERROR: No matching distribution found for nothing"]).value
    'no_package'
    """
    text = "\n".join(lines)
    return next((problem for problem, pattern in _PATTERNS if re.search(pattern, text)), PipProblem.OTHER)


def error_lines(lines: Sequence[str]) -> str:
    """Returns the last errors in the output of a pip that failed, or its last lines."""
    errors = [line for line in lines if line.startswith("ERROR")] or list(lines)
    return " ".join(" ".join(errors[-_TAIL_LINES:]).split())


def _variables() -> dict[str, str]:
    """Returns the variables of pip, which runs code of the packages that it builds: its own options, those of compilers
    and proxies, and nothing of this process."""
    return child_environment((*_NAMES, *(name for name in os.environ if name.startswith("PIP_"))))
