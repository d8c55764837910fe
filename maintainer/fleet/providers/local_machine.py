"""A process that stands for a machine: it boots, runs one node, is slow, is taken away. Standard library only.

`python -P local_machine.py DIRECTORY`, with `order.json` in the directory saying what to do. It is started by the
provider `local_process` and outlives it. It holds the lock of the directory, and so does the node: as long as anybody
does, the machine is there. A second one on the same directory ends at once: a launch is one machine, however often it
is started.

    boots ──► runs the node ──► the node ends | told to end | taken away ──► gone, and whatever it started with it
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
"""Files of the directory: what to do, what it does, who holds it, that it is to end, that it is taken away."""

_CLAIM_S = 2.0
"""Whoever looks whether the machine runs holds the lock for an instant: try that long."""

_STRIDE_S = 0.5
"""A slow machine stands still for a part of each of these."""

_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)


def main(directory: str) -> int:
    """Be the machine of this directory, unless another is or was; returns the exit code."""
    place = Path(directory)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    lock = _claimed(place / LOCK)
    if lock is None or (place / NOTE).exists():
        return 0
    Machine(place).live()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # what the node left behind, and this process with it
    return 0


class Machine:
    """One life, as `order.json` has it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._order: dict[str, Any] = json.loads((place / ORDER).read_text())
        self._notice_at: float | None = None

    def live(self) -> None:
        """From boot to end."""
        if (self._place / RETIRED).exists():
            self._note("gone", "retired before it booted")
            return
        self._note("pending")
        if self._is_told_to_end_within(self._order["delay_s"]):
            self._note("gone", "retired while it booted")
        elif not self._order["boots"]:
            self._note("gone", "did not boot (simulated)")
        else:
            self._note("gone", self._run())

    def _is_told_to_end_within(self, delay_s: float) -> bool:
        return delay_s > 0 and signal.sigtimedwait({signal.SIGTERM}, delay_s) is not None

    def _run(self) -> str:
        """Run the node; returns why it ended."""
        argv = self._order["argv"]
        node = os.posix_spawn(argv[0], argv, os.environ, setsigmask=(), file_actions=_standard_files())
        self._note("running")
        return _Watch(node, self._order, self._note, self._place / NOTICE).until_it_ends()

    def _note(self, state: str, message: str = "", *, notice_at: float | None = None) -> None:
        self._notice_at = notice_at or self._notice_at  # a machine that is gone has been told so still
        note = {"pid": os.getpid(), "state": state, "at": time.time(), "message": message, "notice_at": self._notice_at}
        draft = self._place / f"{NOTE}.{os.getpid()}"
        draft.write_text(json.dumps(note))
        draft.replace(self._place / NOTE)


class _Watch:
    """Everything that happens to a node that runs, in order of time."""

    def __init__(self, node: int, order: dict[str, Any], note: Any, notice: Path) -> None:
        self._node = node
        self._order = order
        self._note = note
        self._notice = notice
        self._taken_at = time.time() + order["life_s"] if order["life_s"] is not None else math.inf
        self._notice_at = self._taken_at - order["notice_s"] if order["notice_s"] > 0 else math.inf
        self._kill_at = math.inf
        self._turn_at = time.time() if order["speed"] < 1 else math.inf
        self._is_still = False
        self._reason = ""

    def until_it_ends(self) -> str:
        """Returns why it did."""
        while True:
            due = min(self._taken_at, self._notice_at, self._kill_at, self._turn_at)
            wait_s = min(max(0.0, due - time.time()), 3600.0)
            heard = signal.sigtimedwait(set(_SIGNALS), wait_s)
            ended, status = os.waitpid(self._node, os.WNOHANG)
            if ended:
                return self._reason or f"the node ended with {_ending(status)}"
            if heard is not None and heard.si_signo == signal.SIGTERM:
                self._end()
            self._do_what_is_due(time.time())

    def _end(self) -> None:
        self._reason = "retired"
        self._turn_at = math.inf
        os.kill(self._node, signal.SIGCONT)
        os.kill(self._node, signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.time() + self._order["grace_s"])
        self._note("going", "retired")

    def _do_what_is_due(self, now: float) -> None:
        if now >= self._notice_at:
            self._notice_at = math.inf
            self._notice.write_text(json.dumps({"deadline_s": max(0.0, self._taken_at - now)}))
            self._note("going", "is taken away (simulated)", notice_at=self._taken_at)
        if now >= self._taken_at:
            self._taken_at, self._kill_at = math.inf, now
            self._reason = "taken away (simulated)"
        if now >= self._kill_at:
            self._kill_at = math.inf
            os.kill(self._node, signal.SIGKILL)
        if now >= self._turn_at:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """Stand still, or go on: over a stride the node runs for its share of the time."""
        self._is_still = not self._is_still
        os.kill(self._node, signal.SIGSTOP if self._is_still else signal.SIGCONT)
        speed = self._order["speed"]
        self._turn_at = now + _STRIDE_S * ((1 - speed) if self._is_still else speed)


def _claimed(path: Path) -> int | None:
    """A descriptor that holds the lock and that children inherit; None when somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    give_up_at = time.monotonic() + _CLAIM_S
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
