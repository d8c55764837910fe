"""Runs of pip in the environment of an engine: steps, progress and errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, StorageFull, Unavailable
from astraflow.raas.engines.server.environments import Environment
from astraflow.raas.engines.server.installation.releases import EngineRelease
from astraflow.runtime.folders.run_folders import home
from astraflow.runtime.pip import OPTIONS, PipProblem, error_lines, pip_problem, run_logged

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
    pinned = PipStep(
        title=f"installing {release.title}: {len(_pins(release.requirements))} packages",
        arguments=("--no-deps", "--require-hashes", "--requirement", file),
        packages=len(_pins(release.requirements)),
    )
    if release.builds is None:
        return [pinned]
    title = f"installing {', '.join(_pins(release.builds))}"
    return [pinned, PipStep(title=title, arguments=("--requirement", str(release.builds)))]


def _pins(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line and not line.startswith("#")]


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
    folders = ("--find-links", str(wheels.resolve())) if wheels is not None else ()
    command = [str(environment.python), "-m", "pip", "install", *OPTIONS, *folders, *step.arguments]
    package_names: set[str] = set()
    everything: list[str] = []

    def on_line(line: str) -> None:
        everything.append(line)
        detail = _detail(line, package_names, step.packages)
        if detail:
            progress(f" {detail}")

    tail = run_logged(command, log_file, on_line=on_line)
    if tail is not None:
        raise _pip_error(release, everything, log_file)


def _detail(line: str, package_names: set[str], total: int) -> str:
    """Returns the progress in a line of pip's output; empty if it has none."""
    words = line.split()
    match words[:1]:
        case ["Collecting"]:
            package_names.add(words[1])
            return (
                f"{len(package_names)} of {total} packages, {words[1]}"
                if total
                else f"{len(package_names)} packages, {words[1]}"
            )
        case ["Downloading"]:
            return line.strip() if len(words) > 2 and any(unit in line for unit in (" MB", " GB")) else ""
        case ["Installing"]:
            return "unpacking"
    return ""


def _pip_error(release: EngineRelease, lines: Sequence[str], log_file: Path) -> AstraFlowError:
    """Returns the error for the output of a pip that failed."""
    match pip_problem(lines):
        case PipProblem.NO_SPACE:
            return StorageFull(
                f"cannot install {release.title}: the disk is full; free space in {str(home())!r} and in the folder "
                "for temporary files (TMPDIR), and run the command again: it continues",
                code="engine.install_no_space",
            )
        case PipProblem.NO_INDEX:
            return Unavailable(
                f"cannot install {release.title}: pip cannot reach its package index; check network, proxy and pip's "
                "configuration, or give a folder with wheels by --wheels and set PIP_NO_INDEX=1; then run the command "
                "again: it continues",
                code="engine.install_no_index",
            )
        case PipProblem.WRONG_HASH:
            return CorruptData(
                f"cannot install {release.title}: a package differs from the one that was tested: "
                f"{error_lines(lines)}; use an index that has the same files. Log: {log_file}",
                code="engine.install_wrong_hash",
            )
        case PipProblem.NO_PACKAGE:
            return InvalidInput(
                f"cannot install {release.title}: pip finds no package for this Python and machine: "
                f"{error_lines(lines)}; check pip's index and configuration, or give a folder with wheels by --wheels. "
                f"Log: {log_file}",
                code="engine.install_no_package",
            )
    return Unavailable(
        f"cannot install {release.title}: pip failed: {error_lines(lines)}; see {log_file}, and run the command again: "
        "it continues",
        code="engine.install_failed",
    )
