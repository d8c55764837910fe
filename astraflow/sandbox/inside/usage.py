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


def folder_bytes(folder: str) -> int:
    """Returns the size of the files below a folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue  # removed meanwhile
    return total


def tasks_of_user() -> int:
    """Returns the number of processes and threads of this process's user."""
    user = os.getuid()
    return sum(int(_status_fields(pid)[17]) for pid in processes() if _owner(pid) == user)


def processes_of_group(group: int) -> Iterator[int]:
    """Returns the processes of a process group."""
    return (pid for pid in processes() if int(_status_fields(pid)[2]) == group)


def processes() -> Iterator[int]:
    """Returns the processes that this one sees."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _status_fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third on; zeros when the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20
