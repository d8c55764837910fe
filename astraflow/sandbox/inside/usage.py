"""Resources that the processes of a job use."""

import os
from collections.abc import Iterator


def memory_bytes(pid: int) -> int:
    """Returns the memory of a process, its part of shared pages included; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = [line.split()[1] for line in file if line.startswith("Pss:")]
    except OSError:
        return 0
    return sum(int(size) for size in sizes) * 1024


def tasks_of_user() -> int:
    """Returns the number of processes and threads of this process's user."""
    user = os.getuid()
    return sum(_threads(pid) for pid in processes() if _owner(pid) == user)


def processes_of_group(group: int) -> Iterator[int]:
    """Returns the processes of a process group."""
    return (pid for pid in processes() if _group(pid) == group)


def processes() -> Iterator[int]:
    """Returns the processes that this one sees."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _threads(pid: int) -> int:
    """Returns the number of threads of a process; 0 when it has ended. `/proc/PID/stat` has it too, beside a name that
    a program gave itself, which must not stay in memory of the fork server."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
