"""Runs of this machine and user, as their folders tell: what was run, where its services are, whether it goes on."""

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.home import home

RECIPE, RUN, TOKEN, PROCESSES, LOCK = "recipe.json", "run.json", "token", "processes.json", "lock"
AUTHORITY, LOGS = "authority", "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What makes a run repeatable, and where its services are. `run.json`."""

    run: str
    recipe: str
    seed: int
    started_at: str
    """UTC, ISO 8601."""
    release: str
    """Of AstraFlow."""
    commit: str
    """Of the checkout it ran from, with `+` when files differed; empty for an installed release."""
    python: str
    pid: int
    """The process that started it last."""
    dataflow: str = ""
    weights: str = ""
    web: str = ""
    enroll: str = ""
    """Where those who join over TLS get their certificate."""
    is_tls: bool = False
    """Whether its services speak mutual TLS."""
    fleet: str = ""
    """Empty for a run that starts its nodes itself."""
    metrics: str = ""
    """Where dataflow serves OpenMetrics; empty for nowhere."""
    keda: str = ""
    """`HOST:PORT` where dataflow answers KEDA (port 0 is a free one); empty for nowhere."""
    traces: str = ""
    """Where spans go, `TO#SHARE` as ASTRAFLOW_TRACES has it; empty for nowhere."""


class RunFolder:
    """One run's folder, as a reader sees it. Only the process that runs it writes there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def recipe_file(self) -> Path:
        """The recipe as it was resolved."""
        return self.path / RECIPE

    @property
    def token(self) -> str:
        """The run token."""
        return self.token_file.read_text().strip()

    @property
    def token_file(self) -> Path:
        """Where the run token is; readable by its owner only."""
        return self.path / TOKEN

    @property
    def authority(self) -> Path:
        """Folder of the run's certificate authority."""
        return self.path / AUTHORITY

    @property
    def facts(self) -> RunFacts:
        """What was noted about the run. Raises: InvalidInput for a folder that holds none."""
        try:
            return RunFacts(**json.loads((self.path / RUN).read_text()))
        except (OSError, ValueError, TypeError):
            raise InvalidInput(f"{self.path} is not a run directory: it has no {RUN} that can be read") from None

    @property
    def is_active(self) -> bool:
        """Whether some process runs it now."""
        try:
            with (self.path / LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def log(self, program: str) -> Path:
        """The log of one process."""
        return self.path / LOGS / f"{program}.log"

    def logs(self) -> list[str]:
        """Names of the processes that have a log, in order."""
        return sorted(file.stem for file in (self.path / LOGS).glob("*.log"))


def runs() -> Path:
    """Where run directories are made, and where the others have a link."""
    return home() / "runs"


def active_runs() -> list[RunFolder]:
    """Runs that some process of this machine and user runs now, the latest first."""
    found = [RunFolder(path) for path in runs().glob("*") if (path / RUN).exists()]
    active = [folder for folder in found if folder.is_active]
    return sorted(active, key=lambda folder: folder.facts.started_at, reverse=True)
