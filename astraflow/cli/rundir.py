"""The folder of a run: what was run with which code, its token, addresses, logs and the state of each role."""

import errno
import fcntl
import json
import os
import platform
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from astraflow.access.authority import Authority
from astraflow.contract.errors import AstraFlowError, InvalidInput, StorageFull
from astraflow.runtime.runs import LOCK, PROCESSES, RUN, RunFacts, RunFolder, runs
from astraflow.weights.signing import SigningKey

SIGNING_KEY, WEIGHTS_KEY = "weights.key", "weights.pub"
_FLEET, _MAINTAINER = "fleet.json", "maintainer.json"


class RunDirectory(RunFolder):
    """One run's folder, to write to. `RunDirectory.opened` makes or takes up one and holds its lock."""

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None, *, name: str, seed: int, recipe: str) -> Iterator[Self]:
        """A new folder, or an earlier run's, which goes on. Nobody else can open it meanwhile.

        path: None makes one under AstraFlow's home, named for the recipe and the time. recipe: the snapshot.
        Raises: InvalidInput when a run is active there or another recipe was run there, StorageFull.
        """
        run = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        directory = cls((path or runs() / run).resolve())
        with directory._writing():
            directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (directory.path / LOCK).open("w")
        with lock:
            directory._lock(lock.fileno())
            with directory._writing():
                directory._begin(run=path.name if path else run, name=name, seed=seed, recipe=recipe)
            yield directory

    @property
    def signing_key_file(self) -> Path | None:
        """What the run's trainers sign versions with; None for a run that began without it."""
        path = self.path / SIGNING_KEY
        return path if path.exists() else None

    @property
    def weights_key(self) -> str:
        """The other half, for readers; empty for a run that began without it."""
        path = self.path / WEIGHTS_KEY
        return path.read_text().strip() if path.exists() else ""

    @property
    def fleet_file(self) -> Path:
        """What the fleet service is told."""
        return self.path / _FLEET

    def tell_fleet(self, values: Mapping[str, Any]) -> None:
        """Write that down. Raises: StorageFull."""
        with self._writing():
            write_private(self.fleet_file, json.dumps(dict(values), indent=2))

    @property
    def maintainer_file(self) -> Path:
        """What the maintainer is told."""
        return self.path / _MAINTAINER

    def tell_maintainer(self, values: Mapping[str, Any]) -> None:
        """Write that down. Raises: StorageFull."""
        with self._writing():
            write_private(self.maintainer_file, json.dumps(dict(values), indent=2))

    def state(self, role: str) -> Path:
        """Where one role keeps what must survive."""
        return self.path / role

    def note(self, **changes: Any) -> None:
        """Change some of the facts."""
        with self._writing():
            write_private(self.path / RUN, json.dumps({**asdict(self.facts), **changes}, indent=2))

    def note_happening(self, happening: str, pids: Mapping[str, int]) -> None:
        """Log what a process did, and keep a list of the process ids for whoever wants to find one."""
        with self._writing():
            with self.log("supervisor").open("a") as log:
                log.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {happening}\n")
            write_private(self.path / PROCESSES, json.dumps(dict(pids), indent=2))

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"a run is active in {self.path}: stop it (Ctrl-C in its terminal), or choose another --run-dir"
            ) from None

    def _begin(self, *, run: str, name: str, seed: int, recipe: str) -> None:
        if self.recipe_file.exists() and _essence(self.recipe_file.read_text()) != _essence(recipe):
            raise InvalidInput(
                f"{self.path} holds a run of other settings (see {self.recipe_file}): choose another --run-dir, or go "
                f"on with `astraflow run {self.recipe_file} --run-dir {self.path}`"
            )
        write_private(self.recipe_file, recipe)
        self.log("supervisor").parent.mkdir(exist_ok=True)
        if not self.token_file.exists():
            write_private(self.token_file, secrets.token_urlsafe(24))
        is_new = not (self.path / RUN).exists()
        if is_new:  # a run keeps its key; versions of one that began without it could not be signed any more
            make_signing_key(self.path)
        known = run if is_new else self.facts.run
        if not self.authority.exists():
            Authority.made(self.authority, run=known)
        write_private(self.path / RUN, json.dumps(asdict(_facts(run=known, name=name, seed=seed)), indent=2))
        entry = runs() / known
        if entry != self.path and not entry.is_symlink() and not entry.exists():
            entry.parent.mkdir(parents=True, exist_ok=True)
            entry.symlink_to(self.path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise explained(problem, f"the run directory {self.path}") from problem


def explained(problem: OSError, what: str) -> AstraFlowError:
    """A file system's error as a sentence that says what to do."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room on the disk for {what}: free some, or choose another place")
    return InvalidInput(f"{what} cannot be used: {problem.strerror or problem} ({problem.filename or 'unknown file'})")


def make_signing_key(folder: Path) -> None:
    """A new one, and its public half. Raises: OSError."""
    key = SigningKey.made()
    write_private(folder / WEIGHTS_KEY, str(key.public))
    write_private(folder / SIGNING_KEY, key.text())  # last: where it is, both are


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and for its owner only."""
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)


def _essence(recipe: str) -> object:
    """A snapshot without when to stop: an earlier run may go on for longer than it was meant to."""
    return {key: value for key, value in json.loads(recipe).items() if key != "stop"}


def _facts(*, run: str, name: str, seed: int) -> RunFacts:
    return RunFacts(
        run=run,
        recipe=name,
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        release=_release(),
        commit=_commit(),
        python=platform.python_version(),
        pid=os.getpid(),
    )


def _release() -> str:
    try:
        return version("astraflow")
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of the checkout this file is in."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return ""  # without git, or in a checkout of another user, the release has to do


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603 (fixed arguments)
