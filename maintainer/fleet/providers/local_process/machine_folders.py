"""Machines as processes with a folder each: creates, starts, inspects and ends them. Standard library only.

A machine's state is in its folder alone, so that the managing process can be killed at any time and another one can
continue. A folder with its order is created in one step, and then the machine's process (`machine.py`) is
started, which takes the folder's lock. The provider `local_process` uses this module locally, `static_ssh` on hosts.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from maintainer.fleet.providers.local_process import machine
from maintainer.fleet.providers.local_process.machine import LOCK, LOG, NOTE, NOTICE, ORDER, RETIRED

STARTED = "started"
"""File in the folder of a machine that was started, or was about to be."""

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")

_START_S = 10.0
"""Time in which a started machine takes its lock; without a lock after it, the machine was never started. Seconds."""

_FORWARDED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "HF_HOME",
    "ASTRAFLOW_SHARED_FOLDER",
)
"""Environment variables passed to machines. Others, such as secrets of the parent, are not."""


class MachineFolders:
    """Folders under one directory, one per launch.

    grace_s: time from a termination request until a machine is killed. retention_s: time for which folders of ended
    machines are kept. A launch id that is no valid folder name raises ValueError.
    """

    def __init__(self, directory: Path, *, grace_s: float, retention_s: float) -> None:
        self._directory = directory
        self._grace_s = grace_s
        self._retention_s = retention_s
        self._children: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager with exclusive use of the directory, for decisions on several folders."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """Checks that a folder can be created. Raises: OSError."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryDirectory(prefix=".", dir=self._directory).cleanup()

    def order(self, launch_id: str) -> dict[str, Any]:
        """Returns the machine's order; empty for an unknown machine."""
        return _read(self._folder(launch_id) / ORDER)

    def notice_option(self, launch_id: str) -> str:
        """Returns the value of `astraflow join --preemption` for the machine's node."""
        return f"{{ kind = 'file', path = '{self._folder(launch_id) / NOTICE}' }}"

    def make(self, launch_id: str, order: Mapping[str, Any]) -> None:
        """Creates the folder with its order in one step. An existing folder stays as it is."""
        folder = self._folder(launch_id)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = Path(tempfile.mkdtemp(prefix=".", dir=self._directory))
        (draft / ORDER).write_text(json.dumps(order))
        try:
            draft.rename(folder)
        except OSError:
            shutil.rmtree(draft)
            if not folder.exists():
                raise

    def start(self, launch_id: str, *, token: str) -> None:
        """Starts the machine's process, unless it runs, has run or is retired. token: passed in its environment."""
        self.reap()
        folder = self._folder(launch_id)
        if (folder / NOTE).exists() or (folder / RETIRED).exists() or _is_held(folder):
            return
        environment = {key: os.environ[key] for key in _FORWARDED_VARIABLES if key in os.environ}
        environment |= {"ASTRAFLOW_TOKEN": token, "OMP_NUM_THREADS": "1"}
        log = (os.POSIX_SPAWN_OPEN, 1, str(folder / LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        (folder / STARTED).touch()
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-S", "-E", str(Path(machine.__file__)), str(folder)],
            environment,
            setsid=True,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)],
        )
        self._children.add(child)

    def withdraw(self, launch_id: str) -> bool:
        """Removes the folder of a machine that was never started; returns whether it did. Call it while `locked`."""
        folder = self._folder(launch_id)
        if (folder / STARTED).exists():
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def retire(self, launch_id: str) -> str:
        """Asks a machine to end, and kills it after the grace period. Returns `gone`, `terminating` or `absent`."""
        self.reap()
        folder = self._folder(launch_id)
        if not folder.exists():
            return "absent"
        (folder / RETIRED).touch(exist_ok=True)
        if not _is_held(folder):
            return "gone" if (folder / NOTE).exists() or _will_never_start(folder) else "terminating"
        note = _read(folder / NOTE)
        if "pid" in note:  # otherwise its process id is not recorded yet; the next call finds it
            is_overdue = time.time() - (folder / RETIRED).stat().st_mtime > self._grace_s + 1.0
            _signal_group(note["pid"], signal.SIGKILL if is_overdue else signal.SIGTERM)
        return "terminating"

    def kill(self, launch_id: str) -> None:
        """Kills the machine and all its processes without a record, as if it had failed."""
        folder = self._folder(launch_id)
        note = _read(folder / NOTE)
        if "pid" in note and _is_held(folder):
            _signal_group(note["pid"], signal.SIGKILL)

    def status(self, launch_id: str) -> dict[str, Any] | None:
        """Returns the order with the current `state`, `notice_at` and `message`; None for an unknown machine."""
        self.reap()
        folder = self._folder(launch_id)
        return _status(folder) if folder.exists() else None

    def all(self) -> Iterator[dict[str, Any]]:
        """Yields every machine as in `status`; removes expired folders of ended machines."""
        self.reap()
        for folder in self._folders():
            status = _status(folder)
            if status["state"] == "gone" and self._is_old(folder):
                shutil.rmtree(folder, ignore_errors=True)
            elif "tags" in status:
                yield status

    def running(self) -> int:
        """Returns the number of machines with a running process."""
        return sum(1 for folder in self._folders() if _is_held(folder))

    def reap(self) -> None:
        """Reaps ended child processes."""
        for child in tuple(self._children):
            try:
                ended, _ = os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                ended = child
            if ended:
                self._children.discard(child)

    def _is_old(self, folder: Path) -> bool:
        try:
            return bool(time.time() - folder.stat().st_mtime > self._retention_s)
        except FileNotFoundError:
            return False

    def _folders(self) -> tuple[Path, ...]:
        if not self._directory.exists():
            return ()
        return tuple(folder for folder in self._directory.iterdir() if not folder.name.startswith("."))

    def _folder(self, launch_id: str) -> Path:
        if not _LAUNCH_ID.fullmatch(launch_id):
            raise ValueError(
                f"cannot use the launch id {launch_id[:80]!r}: it is no launch id; use 1 to 64 letters, digits, - and _"
            )
        return self._directory / launch_id


def _status(folder: Path) -> dict[str, Any]:
    is_held = _is_held(folder)  # read before the note, so that an end in between shows at the next call
    order, note = _read(folder / ORDER), _read(folder / NOTE)
    current = {"state": _state(folder, note, is_held=is_held)}
    return {**order, "launch_id": folder.name, **{key: note.get(key) for key in ("notice_at", "message")}, **current}


def _state(folder: Path, note: Mapping[str, Any], *, is_held: bool) -> str:
    if is_held:
        state = str(note.get("state", "pending"))
        return "terminating" if state == "gone" or (folder / RETIRED).exists() else state
    if note or _will_never_start(folder):
        return "gone"
    return "terminating" if (folder / RETIRED).exists() else "pending"


def _will_never_start(folder: Path) -> bool:
    """Returns whether the machine has not taken its lock in time, so that nothing runs."""
    return time.time() - float(_read(folder / ORDER).get("created_at", 0.0)) > _START_S


def _is_held(folder: Path) -> bool:
    """Returns whether the machine or a process of its node holds the folder's lock."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    """Reads a JSON object; empty without a file."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return value if isinstance(value, dict) else {}


def _signal_group(group: int, number: signal.Signals) -> None:
    """Signals a process group. The lock is held, so the group id is not reused."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)
