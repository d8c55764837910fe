"""Ends processes with their parent. Run as a program, it is the process supervisor of another program's whole tree.

    python -I -S supervised.py PARENT_PID TEMPORARY_FOLDER PROGRAM [ARGUMENT ...]

A parent that is killed closes nothing, and engine servers leave processes behind: vLLM's core and workers serve on when
the process above them is gone. The supervisor is the subreaper of the tree: the kernel makes it the parent of every
process below it whose own parent has ended, so none can escape it. It runs as a file, with the standard library only,
because a start of AstraFlow's packages takes seconds.

When the program ends, or the supervisor gets SIGTERM, the others are killed at once, and the supervisor ends with the
status of the program; its parent then removes what the program has left in shared memory. When the parent ends, all
processes get SIGTERM and `GRACE_S` seconds, and are then killed. The supervisor removes what the processes that it ends
have left, and TEMPORARY_FOLDER, the program's own: servers leave sockets and files there.
The kernel kills the program if the supervisor itself is killed.
"""

import ctypes
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

PARENT = "ASTRAFLOW_PARENT"
"""Environment variable: id of the process whose end the kernel makes that of this one."""
GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL after the end of the parent."""
NOT_STARTED = 127
"""Exit code when the program cannot be started."""
_POLL_S = 0.02
_SHARED_FOLDER = "/dev/shm/"  # noqa: S108 (shared memory of Linux)
_END_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


def parent_variable() -> dict[str, str]:
    """Returns the environment variable with which a child process calls `end_with_parent`."""
    return {PARENT: str(os.getpid())}


def end_with_parent(parent: int | None = None) -> None:
    """Makes the kernel kill this process when its parent ends, also while it is stopped or in an endless loop.

    parent: process id; None: that of the environment, without which nothing happens.
    """
    parent = int(os.environ.pop(PARENT, "0")) if parent is None else parent
    if parent and sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:  # it ended before the call
        os._exit(NOT_STARTED)


def kill_group(process: int) -> None:
    """Kills the processes of a group, and its first process, which may have no group of its own yet.

    Idempotent, as long as the process was not waited for.
    """
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)


def main() -> None:
    """Runs the program; ends as it ended, or by SIGTERM when the tree was ended before."""
    parent_pid, temporary_folder, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    # A descriptor of the process, not a pipe: processes that the parent forks would hold a pipe open.
    parent = os.pidfd_open(parent_pid)
    if os.getppid() != parent_pid:  # it ended before, and the id may be another process by now
        sys.exit(NOT_STARTED)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_END_SIGNALS):
        signal.signal(number, lambda *_: None)  # the number is written into the pipe
    program = _start(argv)
    status = _wait(program, parent=parent, signals=signals)
    has_parent_ended = bool(select.select([parent], [], [], 0)[0])
    files = {path for pid in _descendants() for path in mapped_shared_memory(pid)}
    _end_tree(grace_s=GRACE_S if has_parent_ended else 0.0)
    remove(files)  # a parent that ends the program may be killed before it has removed them
    shutil.rmtree(temporary_folder, ignore_errors=True)
    _end_as(signal.SIGTERM if status is None else status)


def _start(argv: list[str]) -> int:
    """Starts the program; returns its process id."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        end_with_parent(supervisor)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and ignored signals are inherited
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)  # noqa: S606 (the program and its arguments are those of the parent)
    except OSError as problem:
        os.write(2, f"cannot start {argv[0]!r}: {problem.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _wait(program: int, *, parent: int, signals: int) -> int | None:
    """Returns the wait status of the program when it has ended; None when the tree is to be ended before.

    parent: descriptor that is readable when the parent has ended. signals: descriptor of the numbers of received
    signals.
    """
    while True:
        ready, _, _ = select.select([parent, signals], [], [])
        if parent in ready or set(os.read(signals, 4096)) & _END_SIGNALS:
            return None
        statuses, _ = _collect()
        if program in statuses:
            return statuses[program]


def _collect() -> tuple[dict[int, int], bool]:
    """Returns the wait statuses of the child processes that have ended, and whether any is left.

    Those whose parent has ended before are among them.
    """
    statuses: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses, False
        if not pid:
            return statuses, True
        statuses[pid] = status


def _end_tree(*, grace_s: float) -> None:
    """Ends all processes below this one; returns when none is left."""
    kill_at = time.monotonic() + grace_s
    if grace_s:
        _signal_descendants(signal.SIGTERM)
    while _collect()[1]:
        if time.monotonic() >= kill_at:
            _signal_descendants(signal.SIGKILL)  # repeated, since a process may have forked meanwhile
        time.sleep(_POLL_S)


def _signal_descendants(number: int) -> None:
    for pid in _descendants():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """Returns the processes below this one, at any depth."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 (pathlib takes longer to import than the rest)
        if entry.isdecimal():
            with suppress(OSError), open(f"/proc/{entry}/stat", errors="replace") as file:  # noqa: PTH123 (pathlib is slower, and this runs for every process)
                # The name, in parentheses, may contain blanks; the state and the parent follow it.
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    descendants = list(children.get(os.getpid(), ()))
    for pid in descendants:  # grows meanwhile
        descendants += children.get(pid, ())
    return descendants


def mapped_shared_memory(pid: int) -> set[str]:
    """Returns the files in shared memory that a process maps, without those of AstraFlow.

    They are found by inode: a semaphore is mapped under a temporary name, and then linked to its own.
    """
    inodes = set()
    with suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as file:  # noqa: PTH123 (the same)
        for line in file:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith(_SHARED_FOLDER):
                inodes.add(int(fields[4]))
    if not inodes:
        return set()
    with os.scandir(_SHARED_FOLDER) as entries:
        return {entry.path for entry in entries if entry.inode() in inodes and not entry.name.startswith("astraflow")}


def remove(paths: Iterable[str]) -> None:
    """Removes files, except those that are gone or of another user."""
    for path in paths:
        with suppress(FileNotFoundError, PermissionError):
            os.unlink(path)  # noqa: PTH108 (the same)


def _end_as(status: int) -> None:
    """Ends this process as the wait status says, with the same exit code or by the same signal."""
    if not os.WIFSIGNALED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
