"""Run directory: recipe, code version, token, addresses, logs and the state of each role; found by folder or name."""

import errno
import json
import os
import platform
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import psutil

from astraflow.access.authority import Authority
from astraflow.client.local_runs import SUMMARY
from astraflow.contract.errors import AstraFlowError, InvalidInput, StorageFull
from astraflow.recipe.continuation import refused_changes
from astraflow.runtime.config.toml import read_json
from astraflow.runtime.folders.launch_facts import (
    BASE_RECIPE,
    LaunchFacts,
    SettingsChange,
    read_launch,
    write_launch,
)
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.folders.run_folders import LOCK, PROCESSES, RUN, RunFacts, RunFolder, runs_folder
from astraflow.runtime.locks import lock_exclusively
from astraflow.weights.signing import SigningKey

SIGNING_KEY, WEIGHTS_KEY = "weights.key", "weights.pub"
_FLEET, _MAINTAINER = "fleet.json", "maintainer.json"
_DIFFERENCES, _VALUE_LENGTH = 5, 40
"""Number of differing settings in a message, and the length of a value there."""


class RunDirectory(RunFolder):
    """Writable run directory. `RunDirectory.opened` creates or continues one and holds its lock."""

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path | None, *, name: str, seed: int, recipe: str, launch: LaunchFacts | None = None, base: str = ""
    ) -> Iterator[Self]:
        """Creates a run directory or continues an existing one; holds its lock while the block runs.

        path: None creates one below ASTRAFLOW_HOME, named after recipe and time. recipe: the snapshot. launch: facts of
        a launch in the terminal; of an earlier launch only the overrides change. base: snapshot without the overrides
        of the launch.
        Raises: InvalidInput when a run is active there or the folder has another recipe, StorageFull.
        """
        run = new_run_name(name)
        directory = cls((path or runs_folder() / run).resolve())
        with directory._storage_errors():
            directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (directory.path / LOCK).open("a+")
        with lock:
            lock_exclusively(lock, refusal=directory._active())
            with directory._storage_errors():
                directory._write_initial_files(run=path.name if path else run, name=name, seed=seed, recipe=recipe)
                directory._record_launch(launch)
                if base and not (directory.path / BASE_RECIPE).exists():
                    write_private(directory.path / BASE_RECIPE, base)
                (directory.path / SUMMARY).unlink(missing_ok=True)  # of an earlier start
            yield directory

    @property
    def signing_key_file(self) -> Path | None:
        """File with the key that signs versions; None for a run that was created without one."""
        path = self.path / SIGNING_KEY
        return path if path.exists() else None

    @property
    def weights_key(self) -> str:
        """Public key of the signatures; empty for a run that was created without one."""
        path = self.path / WEIGHTS_KEY
        return path.read_text().strip() if path.exists() else ""

    @property
    def fleet_file(self) -> Path:
        """Configuration file of the fleet service."""
        return self.path / _FLEET

    def write_fleet_config(self, values: Mapping[str, Any]) -> None:
        """Writes the configuration of the fleet service. Raises: StorageFull."""
        with self._storage_errors():
            write_private(self.fleet_file, json.dumps(dict(values), indent=2))

    @property
    def maintainer_file(self) -> Path:
        """Configuration file of the maintainer."""
        return self.path / _MAINTAINER

    def write_maintainer_config(self, values: Mapping[str, Any]) -> None:
        """Writes the configuration of the maintainer. Raises: StorageFull."""
        with self._storage_errors():
            write_private(self.maintainer_file, json.dumps(dict(values), indent=2))

    def state_directory(self, role: str) -> Path:
        """Returns the folder for the persistent state of a role."""
        return self.path / role

    def update_facts(self, **changes: Any) -> None:
        """Updates some of the facts. Raises: StorageFull."""
        with self._storage_errors():
            write_private(self.path / RUN, json.dumps({**asdict(self.facts), **changes}, indent=2))

    def record_process_event(self, event: str, pids: Mapping[str, int]) -> None:
        """Logs an event of a process and writes the list of process ids."""
        with self._storage_errors():
            with self.log("supervisor").open("a") as log:
                log.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {event}\n")
            write_private(self.path / PROCESSES, json.dumps(dict(pids), indent=2))

    def _record_launch(self, launch: LaunchFacts | None) -> None:
        """Writes the facts of the launch; changes of settings to those of an earlier one."""
        earlier = read_launch(self.path)
        if launch is None or (earlier is not None and earlier.overrides == launch.overrides):
            return
        if earlier is None:
            write_launch(self.path, launch)
            return
        change = SettingsChange(step=last_step(self.path), at=launch.launched_at, overrides=launch.overrides)
        changed = {"overrides": launch.overrides, "changes": (*earlier.changes, change)}
        write_launch(self.path, earlier.model_copy(update=changed))

    def _active(self) -> InvalidInput:
        return InvalidInput(
            f"cannot open {str(self.path)!r}: a run is active there; stop it (Ctrl-C in its terminal), or choose "
            "another --run-dir",
            code="run_directory.active",
        )

    def _write_initial_files(self, *, run: str, name: str, seed: int, recipe: str) -> None:
        self._accept_settings(recipe)
        write_private(self.recipe_file, recipe)
        self.log("supervisor").parent.mkdir(exist_ok=True)
        if not self.token_file.exists() or not self.token:
            write_private(self.token_file, secrets.token_urlsafe(24))
        is_new = not (self.path / RUN).exists()
        if is_new:  # a run without a key has unsigned versions, so an existing run gets none
            make_signing_key(self.path)
        run_id = run if is_new else self.facts.run
        if not self.authority.exists():
            Authority.create(self.authority, run=run_id)
        write_private(self.path / RUN, json.dumps(asdict(_facts(run=run_id, name=name, seed=seed)), indent=2))
        entry = runs_folder() / run_id
        if entry != self.path and not entry.is_symlink() and not entry.exists():
            entry.parent.mkdir(parents=True, exist_ok=True)
            entry.symlink_to(self.path)

    def _accept_settings(self, recipe: str) -> None:
        """Removes the dataflow state of a run that trained nothing, if `recipe` has other settings.

        Raises: InvalidInput for other settings than those of a run that has trained.
        """
        if not self.recipe_file.exists():
            return
        differences = [
            f"{key} was {before[:_VALUE_LENGTH]}, is {after[:_VALUE_LENGTH]}"
            for key, (before, after) in refused_changes(self._stored_recipe(), json.loads(recipe)).items()
        ]
        if not differences:
            return
        if last_step(self.path) is None:
            # Without a checkpoint no version was published and no task issued. The dataflow service may have stored the
            # fingerprint of the earlier dataset, and would refuse another one.
            shutil.rmtree(self.state_directory("dataflow"), ignore_errors=True)
            return
        more = f", and {len(differences) - _DIFFERENCES} more" if len(differences) > _DIFFERENCES else ""
        raise InvalidInput(
            f"cannot continue the run in {str(self.path)!r}: it has other settings: "
            f"{'; '.join(differences[:_DIFFERENCES])}{more}; these may not change while a run continues: fork instead "
            f"(`astraflow fork {self.path} --set ...`), or continue with the run's own settings (`astraflow run "
            f"--resume {self.path}`)",
            code="run_directory.other_settings",
        )

    def _stored_recipe(self) -> dict[str, Any]:
        try:
            return read_json(self.recipe_file)
        except InvalidInput as problem:
            raise InvalidInput(
                f"cannot continue the run in {str(self.path)!r}: {problem}, from a copy, or remove it and continue "
                "with the recipe and the options of the run",
                code="run_directory.damaged_recipe",
            ) from problem

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise storage_error(problem, f"the run directory {self.path}") from problem


def new_run_name(recipe_name: str) -> str:
    """Returns a name for a new run of a recipe, with the time."""
    return f"{recipe_name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def folder_of(name_or_folder: Path | str) -> Path:
    """Returns the folder: itself if it exists, or that of the run of this name below ASTRAFLOW_HOME, which may be
    missing."""
    folder = Path(name_or_folder).expanduser()
    return folder if folder.exists() else runs_folder() / name_or_folder


def find_run_folder(name_or_folder: Path | str) -> RunFolder:
    """Returns a run by its folder, or by its name below ASTRAFLOW_HOME. Raises: InvalidInput when there is none."""
    folder = folder_of(name_or_folder)
    if not folder.exists():
        raise InvalidInput(
            f"cannot find the run {str(name_or_folder)!r}: it is no folder, and no run below {str(runs_folder())!r}; "
            "give the folder or the name of a run; `astraflow runs` lists them",
            code="run_folder.unknown",
        )
    return RunFolder(folder)


def last_step(run: Path) -> int | None:
    """Returns the step of the newest checkpoint of any trainer in a run's folder; None without a checkpoint."""
    from astraflow.trainer.checkpoints import finished_checkpoints  # an import for the commands that need it

    newest = [finished_checkpoints(folder)[:1] for folder in run.glob("trainer-*/checkpoints") if folder.is_dir()]
    return max((int(path.name.removeprefix("step-")) for (path,) in filter(None, newest)), default=None)


def storage_error(problem: OSError, what: str) -> AstraFlowError:
    """Converts an error of the file system to an AstraFlow error. what: name of the file or folder in the message."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"cannot write {what}: the disk is full; free some space, or choose another folder",
            code="storage.disk_full",
        )
    cause = f"{problem.strerror or problem} ({problem.filename or 'unknown file'})"
    return InvalidInput(f"cannot use {what}: {cause}; check its path and permissions", code="storage.unusable")


def make_signing_key(folder: Path) -> None:
    """Writes a new signing key and its public key. Raises: OSError."""
    key = SigningKey.generate()
    write_private(folder / WEIGHTS_KEY, str(key.public))
    write_private(folder / SIGNING_KEY, key.text())  # last, so that both exist when it does


def _facts(*, run: str, name: str, seed: int) -> RunFacts:
    return RunFacts(
        run=run,
        recipe=name,
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        release=_software_version(),
        commit=_commit(),
        python=platform.python_version(),
        pid=os.getpid(),
        machine=_machine(),
    )


def _machine() -> str:
    memory_gb = psutil.virtual_memory().total / 1e9
    return f"{platform.node()}: {os.cpu_count()} processors, {memory_gb:.0f} GB of memory, {platform.platform()}"


def _software_version() -> str:
    try:
        return version("astraflow")
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Returns the commit of the checkout, with `+` for local changes; empty outside of a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return ""  # without git, or in a checkout of another user; the release remains


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603 (fixed arguments)
