"""Machines that are processes, each in a folder: made, started, looked at and ended. Standard library only.

What is known of a machine is in its folder, and nowhere else, so that whoever looks after it may be killed at any
moment and another goes on: a folder with its order is made in one step, and only then is the machine's process started
(`local_machine.py`), which takes the folder's lock. The provider `local_process` uses this here, `static_ssh` on its
hosts, where it is sent.
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

from maintainer.fleet.providers import local_machine
from maintainer.fleet.providers.local_machine import LOCK, LOG, NOTE, NOTICE, ORDER, RETIRED

STARTED = "started"
"""In a folder whose machine was started, or was about to be."""

_LAUNCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")

_START_S = 10.0
"""A machine whose process was started takes its lock within this long; one that has not never was started."""

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "HF_HOME")
"""What of this environment machines are handed: secrets of whoever starts them stay with it."""


class MachineFolders:
    """The folders under one directory, one for each launch.

    grace_s: from asking a machine to end until it is killed. kept_s: the folder of one that is gone is kept so long.
    A launch id that cannot be a folder's name is a ValueError.
    """

    def __init__(self, directory: Path, *, grace_s: float, kept_s: float) -> None:
        self._directory = directory
        self._grace_s = grace_s
        self._kept_s = kept_s
        self._children: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all who use this directory: for a decision that is about more than one folder."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """See that a folder can be made here. Raises: OSError."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryDirectory(prefix=".", dir=self._directory).cleanup()

    def order(self, launch_id: str) -> dict[str, Any]:
        """What the machine was made for; empty where there is none."""
        return _read(self._place(launch_id) / ORDER)

    def notice_option(self, launch_id: str) -> str:
        """Where its node looks whether the machine goes away: a value of `astraflow join --preemption`."""
        return f"{{ kind = 'file', path = '{self._place(launch_id) / NOTICE}' }}"

    def make(self, launch_id: str, order: Mapping[str, Any]) -> None:
        """The folder, in one step: it has its order from its first moment on. One that is there stays as it is."""
        place = self._place(launch_id)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = Path(tempfile.mkdtemp(prefix=".", dir=self._directory))
        (draft / ORDER).write_text(json.dumps(order))
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)
            if not place.exists():
                raise

    def start(self, launch_id: str, *, token: str) -> None:
        """The machine's process, unless it runs, has run, or is to end. token: goes into its environment."""
        self.reap()
        place = self._place(launch_id)
        if (place / NOTE).exists() or (place / RETIRED).exists() or _is_held(place):
            return
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        environment |= {"ASTRAFLOW_TOKEN": token, "OMP_NUM_THREADS": "1"}
        log = (os.POSIX_SPAWN_OPEN, 1, str(place / LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        (place / STARTED).touch()
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-S", "-E", str(Path(local_machine.__file__)), str(place)],
            environment,
            setsid=True,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)],
        )
        self._children.add(child)

    def withdraw(self, launch_id: str) -> bool:
        """Remove a folder whose machine was never started; whether it is not there now. Call it `locked`."""
        place = self._place(launch_id)
        if (place / STARTED).exists():
            return False
        shutil.rmtree(place, ignore_errors=True)
        return True

    def retire(self, launch_id: str) -> str:
        """`gone`, `going` or `absent`: marks the folder, then asks its machine to end; after the grace, kills all."""
        self.reap()
        place = self._place(launch_id)
        if not place.exists():
            return "absent"
        (place / RETIRED).touch(exist_ok=True)
        if not _is_held(place):
            return "gone" if (place / NOTE).exists() or _is_never_to_start(place) else "going"
        note = _read(place / NOTE)
        if "pid" in note:  # else it has the lock and no name yet; the next call finds it
            is_overdue = time.time() - (place / RETIRED).stat().st_mtime > self._grace_s + 1.0
            _signal_group(note["pid"], signal.SIGKILL if is_overdue else signal.SIGTERM)
        return "going"

    def lose(self, launch_id: str) -> None:
        """Kill the machine and all that runs on it, as if it had failed; its folder says nothing of it."""
        place = self._place(launch_id)
        note = _read(place / NOTE)
        if "pid" in note and _is_held(place):
            _signal_group(note["pid"], signal.SIGKILL)

    def seen(self, launch_id: str) -> dict[str, Any] | None:
        """Its order, and `state`, `notice_at` and `message` as they are now; None where there is no folder."""
        self.reap()
        place = self._place(launch_id)
        return _seen(place) if place.exists() else None

    def all(self) -> Iterator[dict[str, Any]]:
        """Every one, as `seen`; folders of machines that are long gone are removed."""
        self.reap()
        for place in self._places():
            seen = _seen(place)
            if seen["state"] == "gone" and self._is_old(place):
                shutil.rmtree(place, ignore_errors=True)
            elif "tags" in seen:
                yield seen

    def running(self) -> int:
        """Machines whose process is there."""
        return sum(1 for place in self._places() if _is_held(place))

    def reap(self) -> None:
        """Machines that ended while this process lives must not stay as zombies."""
        for child in tuple(self._children):
            try:
                ended, _ = os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                ended = child
            if ended:
                self._children.discard(child)

    def _is_old(self, place: Path) -> bool:
        try:
            return bool(time.time() - place.stat().st_mtime > self._kept_s)
        except FileNotFoundError:
            return False

    def _places(self) -> tuple[Path, ...]:
        if not self._directory.exists():
            return ()
        return tuple(place for place in self._directory.iterdir() if not place.name.startswith("."))

    def _place(self, launch_id: str) -> Path:
        if not _LAUNCH_ID.fullmatch(launch_id):
            raise ValueError(f"{launch_id[:80]!r} is no launch id: use 1 to 64 letters, digits, - and _")
        return self._directory / launch_id


def _seen(place: Path) -> dict[str, Any]:
    is_held = _is_held(place)  # before the note is read, so that an end in between shows as an end later
    order, note = _read(place / ORDER), _read(place / NOTE)
    now = {"state": _state(place, note, is_held=is_held)}
    return {**order, "launch_id": place.name, **{key: note.get(key) for key in ("notice_at", "message")}, **now}


def _state(place: Path, note: Mapping[str, Any], *, is_held: bool) -> str:
    if is_held:
        said = str(note.get("state", "pending"))
        return "going" if said == "gone" or (place / RETIRED).exists() else said
    if note or _is_never_to_start(place):
        return "gone"
    return "going" if (place / RETIRED).exists() else "pending"


def _is_never_to_start(place: Path) -> bool:
    """A folder whose machine has not taken its lock in time: nothing runs, whether or not it was started."""
    return time.time() - float(_read(place / ORDER).get("created_at", 0.0)) > _START_S


def _is_held(place: Path) -> bool:
    """Whether the machine or anything of its node holds the folder's lock."""
    try:
        descriptor = os.open(place / LOCK, os.O_RDWR)
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
    """A JSON object; empty when there is none."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def _signal_group(group: int, number: signal.Signals) -> None:
    """The lock is held, so the group's number is still its own."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)
