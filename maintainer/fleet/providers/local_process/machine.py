"""Process that simulates a machine: it boots, runs one node, can be slow or preempted. Standard library only.

`python -P machine.py DIRECTORY`, with the request in `order.json` of the directory. The provider `local_process`
starts it, and it outlives the provider. It and the node hold the lock of the directory: the machine exists as long as
one of them does. A second process on the same directory ends at once, so that a launch is one machine, however often it
is started.

    boots ──► runs the node ──► node ends | retired | preempted ──► gone, with all its child processes
"""

import fcntl
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

ORDER, NOTE, LOCK, RETIRED, NOTICE, LOG = "order.json", "machine.json", "lock", "retired", "notice.json", "log"
"""Files of the directory: request, state, lock, mark of retirement, preemption notice, log."""

_LOCK_TIMEOUT_S = 2.0
"""Time to wait for the lock, which status checks hold briefly. Seconds."""

_PAUSE_PERIOD_S = 0.5
"""Period in which a slow machine pauses for a part of the time. Seconds."""

_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)


def main(directory: str) -> int:
    """Runs the machine of a directory, unless it runs or has run; returns the exit code."""
    folder = Path(directory)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    lock = _acquire_lock(folder / LOCK)
    if lock is None or (folder / NOTE).exists():
        return 0
    Machine(folder).run()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # child processes of the node, and this process
    return 0


class Machine:
    """A machine, as requested in `order.json`."""

    def __init__(self, folder: Path) -> None:
        self._place = folder
        self._order: dict[str, Any] = json.loads((folder / ORDER).read_text())
        self._notice_at: float | None = None

    def run(self) -> None:
        """Runs the machine from boot to end."""
        if (self._place / RETIRED).exists():
            self._note("gone", "retired before it booted")
            return
        self._note("pending")
        if self._is_retired_within(self._order["delay_s"]):
            self._note("gone", "retired while it booted")
        elif not self._order["boots"]:
            self._note("gone", "did not boot (simulated)")
        else:
            self._note("gone", self._run())

    def _is_retired_within(self, delay_s: float) -> bool:
        return delay_s > 0 and signal.sigtimedwait({signal.SIGTERM}, delay_s) is not None

    def _run(self) -> str:
        """Runs the node; returns why it ended."""
        argv = self._order["argv"]
        node = os.posix_spawn(argv[0], argv, os.environ, setsigmask=(), file_actions=_standard_files())
        self._note("running")
        return _Watch(node, self._order, self._note, self._place / NOTICE).wait_until_end()

    def _note(self, state: str, message: str = "", *, notice_at: float | None = None) -> None:
        self._notice_at = notice_at or self._notice_at  # the notice stays recorded after the end
        note = {"pid": os.getpid(), "state": state, "at": time.time(), "message": message, "notice_at": self._notice_at}
        draft = self._place / f"{NOTE}.{os.getpid()}"
        draft.write_text(json.dumps(note))
        draft.replace(self._place / NOTE)


class _Watch:
    """Applies scheduled actions to a running node, in order of time."""

    def __init__(self, node: int, order: dict[str, Any], note: Any, notice: Path) -> None:
        self._node = node
        self._order = order
        self._note = note
        self._notice = notice
        self._preempted_at = time.time() + order["life_s"] if order["life_s"] is not None else math.inf
        self._notice_at = self._preempted_at - order["notice_s"] if order["notice_s"] > 0 else math.inf
        self._kill_at = math.inf
        self._toggle_at = time.time() if order["speed"] < 1 else math.inf
        self._is_paused = False
        self._reason = ""

    def wait_until_end(self) -> str:
        """Waits until the node ends; returns why it ended."""
        while True:
            due = min(self._preempted_at, self._notice_at, self._kill_at, self._toggle_at)
            wait_s = min(max(0.0, due - time.time()), 3600.0)
            received = signal.sigtimedwait(set(_SIGNALS), wait_s)
            ended, status = os.waitpid(self._node, os.WNOHANG)
            if ended:
                return self._reason or f"the node ended with {_ending(status)}"
            if received is not None and received.si_signo == signal.SIGTERM:
                self._end()
            self._run_due_actions(time.time())

    def _end(self) -> None:
        self._reason = "retired"
        self._toggle_at = math.inf
        os.kill(self._node, signal.SIGCONT)
        os.kill(self._node, signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.time() + self._order["grace_s"])
        self._note("terminating", "retired")

    def _run_due_actions(self, now: float) -> None:
        if now >= self._notice_at:
            self._notice_at = math.inf
            self._notice.write_text(json.dumps({"deadline_s": max(0.0, self._preempted_at - now)}))
            self._note("terminating", "preemption notice (simulated)", notice_at=self._preempted_at)
        if now >= self._preempted_at:
            self._preempted_at, self._kill_at = math.inf, now
            self._reason = "preempted (simulated)"
        if now >= self._kill_at:
            self._kill_at = math.inf
            os.kill(self._node, signal.SIGKILL)
        if now >= self._toggle_at:
            self._toggle_pause(now)

    def _toggle_pause(self, now: float) -> None:
        """Pauses or resumes the node, so that it runs for its share of each period."""
        self._is_paused = not self._is_paused
        os.kill(self._node, signal.SIGSTOP if self._is_paused else signal.SIGCONT)
        speed = self._order["speed"]
        self._toggle_at = now + _PAUSE_PERIOD_S * ((1 - speed) if self._is_paused else speed)


def _acquire_lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock and that child processes inherit; None when another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    give_up_at = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                return None
            time.sleep(0.01)
        else:
            return descriptor


def _standard_files() -> list[tuple[int, int, str, int, int]]:
    return [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
