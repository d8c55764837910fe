"""Folders of this machine and user: the cache, and runs with their facts, addresses and whether they are active."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.locks import is_locked

HOME = "ASTRAFLOW_HOME"
"""Environment variable that overrides the cache directory."""

RECIPE, RUN, TOKEN, PROCESSES, LOCK = "recipe.json", "run.json", "token", "processes.json", "lock"
AUTHORITY, LOGS = "authority", "logs"


def home() -> Path:
    """Returns the cache directory, `$ASTRAFLOW_HOME` or `~/.cache/astraflow`, without creating it. It holds prepared
    models and other data that can be recreated."""
    chosen = os.environ.get(HOME)
    return Path(chosen) if chosen else Path.home() / ".cache" / "astraflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts that make a run repeatable, and the addresses of its services. Stored in `run.json`."""

    run: str
    recipe: str
    seed: int
    started_at: str
    """UTC, ISO 8601."""
    release: str
    """Release of AstraFlow."""
    commit: str
    """Commit of the checkout that the run used, with `+` when files differed; empty for an installed release."""
    python: str
    pid: int
    """Id of the process that started the run last."""
    dataflow: str = ""
    weights: str = ""
    web: str = ""
    enroll: str = ""
    """Address where processes that join over TLS get their certificate."""
    is_tls: bool = False
    """True if the services of the run use mutual TLS."""
    fleet: str = ""
    """Address of the fleet service; empty for a run that starts its nodes itself."""
    metrics: str = ""
    """Address where dataflow serves OpenMetrics; empty for none."""
    keda: str = ""
    """`HOST:PORT` where dataflow serves KEDA's external scaler (port 0 is a free one); empty for none."""
    machine: str = ""
    """Name, processors and memory of the machine; empty for a run of an earlier release."""
    traces: str = ""
    """Target of spans, `TO#SHARE` as in ASTRAFLOW_TRACES; empty for none."""


def trainer_name(policy: str) -> str:
    """Returns the name of the process that trains a policy, and of its folder."""
    return f"trainer-{policy}"


class RunFolder:
    """A run's folder, for readers. The process of the run writes there, and pages its launch and its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def recipe_file(self) -> Path:
        """Path of the resolved recipe."""
        return self.path / RECIPE

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    @property
    def token_file(self) -> Path:
        """Path of the run token; readable by its owner only."""
        return self.path / TOKEN

    @property
    def authority(self) -> Path:
        """Folder of the run's certificate authority."""
        return self.path / AUTHORITY

    @property
    def facts(self) -> RunFacts:
        """Recorded facts of the run. Raises: InvalidInput for a folder without them."""
        try:
            return RunFacts(**json.loads((self.path / RUN).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            raise InvalidInput(
                f"cannot use {str(self.path)!r} as a run directory: it has no readable {RUN}; give the folder of a run",
                code="run_folder.invalid",
            ) from None

    @property
    def is_active(self) -> bool:
        """Returns whether a process runs this run now."""
        return is_locked(self.path / LOCK)

    def checkpoints(self, policy: str) -> Path:
        return self.path / trainer_name(policy) / "checkpoints"

    def log(self, program: str) -> Path:
        """Returns the log path of one process."""
        return self.path / LOGS / f"{program}.log"

    def logs(self) -> list[str]:
        """Returns the names of the processes that have a log, in order."""
        return sorted(file.stem for file in (self.path / LOGS).glob("*.log"))


def changed_at(file: Path) -> tuple[int, int] | None:
    """Returns time of the last change and size of a file, which differ when it has changed; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def runs_folder() -> Path:
    """Returns the folder where run directories are created, and where others have a link."""
    return home() / "runs"


def active_runs() -> list[RunFolder]:
    """Returns the runs that a process of this machine and user runs now, the latest first."""
    folders = [RunFolder(path) for path in runs_folder().glob("*") if (path / RUN).exists()]
    active = [folder for folder in folders if folder.is_active]
    return sorted(active, key=lambda folder: folder.facts.started_at, reverse=True)
