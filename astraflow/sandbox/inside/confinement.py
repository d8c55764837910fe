"""Limits that a job's process puts on itself before it runs the program."""

import math
import os
import resource
import time
from dataclasses import dataclass

from . import filters, kernel, usage

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (of a namespace)
"""Folder of shared memory and semaphores, in a namespace: those of the host are not a job's."""
SHARED_MEMORY_BYTES = 64 << 20
_OPEN_FILES = 256
_PIPES_AND_NULL = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Limits:
    """Resources of a job; units as in `astraflow.sandbox.base.JobLimits`."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    output_bytes: int
    processes: int
    may_trace: bool = False


class Confinement:
    """Isolation of the jobs of one fork server."""

    def __init__(self, *, level: str, folder: str, readable: list[str], disk_bytes: int) -> None:
        """level: `namespaces`, `restricted` or `none`. folder: of all jobs, each of which may write only there; without
        namespaces each has a folder of its own in it. readable: paths that jobs may read without namespaces."""
        self.has_namespaces = level == "namespaces"
        self.folder = folder
        self.disk_bytes = disk_bytes
        self._is_filtered = level != "none"
        self._readable = readable
        self._landlock_version = kernel.landlock_version()
        self._users_tasks = (0, 0.0)
        self._filter = b""
        """Filter of every job; empty where each needs one of its own, because only the filter limits signals."""

    def check(self) -> None:
        """Prepares the limits. Raises: OSError when the kernel lacks what the level needs."""
        if self._is_filtered and not filters.is_known_machine():
            raise OSError("system call filters are not available for this processor")
        if self._is_filtered and not self.has_namespaces and not self._landlock_version:
            raise OSError("the kernel has no Landlock")
        if self._is_filtered and (self.has_namespaces or self._landlock_version >= 6):
            self._filter = self._filter_program()

    def expected_tasks(self) -> int:
        """Returns the number of processes and threads that the kernel counts for the job's user without the job."""
        if self.has_namespaces:
            return 2  # the fork server and the first process of the job's namespace
        count, counted_at = self._users_tasks
        if time.monotonic() - counted_at > 1.0:
            count = usage.tasks_of_user()
            self._users_tasks = (count, time.monotonic())
        return count + 1

    def apply(self, limits: Limits, *, folder: str, tasks: int, is_session: bool) -> None:
        """Limits this process for good. folder: the only place where it may write. tasks: result of `expected_tasks`. A
        session has no limit of processor time, because its interpreters outlive many commands. Raises: OSError."""
        _limit_resources(limits, tasks=tasks, disk_bytes=self.disk_bytes, has_cpu_limit=not is_session)
        kernel.renounce_privileges()
        if not self._is_filtered:
            return
        if self._landlock_version:
            kernel.restrict_paths(self._path_rules(folder, limits), with_network=not self.has_namespaces)
        kernel.install_filter(self._filter_of(limits))

    def _filter_of(self, limits: Limits) -> bytes:
        if self._filter:
            return self._filter_program(may_trace=True) if limits.may_trace else self._filter
        return self._filter_program(own_pid=os.getpid(), may_trace=limits.may_trace)

    def _filter_program(self, *, own_pid: int | None = None, may_trace: bool = False) -> bytes:
        families = filters.LOCAL_SOCKETS if self.has_namespaces else ()
        return filters.filter_program(
            socket_families=families, has_namespaces=self.has_namespaces, own_pid=own_pid, may_trace=may_trace
        )

    def _path_rules(self, folder: str, limits: Limits) -> list[tuple[str, int]]:
        devices = [(path, kernel.READ_WRITE_FILES) for path in _PIPES_AND_NULL]
        readable = ["/"] if self.has_namespaces else [*self._readable, *(["/proc"] if limits.may_trace else [])]
        writable = [folder, SHARED_MEMORY] if self.has_namespaces else [folder]
        writes = [(path, kernel.ALL_BUT_DEVICES) for path in writable]
        return [*((path, kernel.READ_EXECUTE) for path in readable), *devices, *writes]


def _limit_resources(limits: Limits, *, tasks: int, disk_bytes: int, has_cpu_limit: bool) -> None:
    with open("/proc/self/statm") as file:
        mapped_bytes = int(file.read().split()[0]) * resource.getpagesize()
    cpu_s = math.ceil(limits.cpu_s)
    hard = {
        resource.RLIMIT_AS: mapped_bytes + limits.memory_bytes,
        resource.RLIMIT_FSIZE: disk_bytes,
        resource.RLIMIT_NPROC: tasks + limits.processes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for kind, value in hard.items():
        maximum = resource.getrlimit(kind)[1]
        value = value if maximum == resource.RLIM_INFINITY else min(value, maximum)
        resource.setrlimit(kind, (value, value))
    if has_cpu_limit:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
