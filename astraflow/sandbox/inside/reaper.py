"""Code of the processes that the fork server forks for a job.

    fork server ──► job reaper, first process of the namespace ──► job
                    reads what the job consists of,                limits itself, runs the program
                    makes a working directory, waits,
                    reports how the job ended

None of these functions returns, because the code below them is the fork server's loop.
"""

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from . import folders, kernel, programs
from .confinement import SHARED_MEMORY, SHARED_MEMORY_BYTES, Confinement, Limits

REMOVAL_S = 8.0
"""Timeout for the removal of a working directory. What is left is removed with the fork server."""

_REPORT = 100
"""Descriptor of the reaper's pipe in the job until it is limited; above all others that are open then."""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Launch:
    """A program to start, with what its process needs."""

    program: Callable[[str], NoReturn]
    """Gets the first text of the content."""
    content: int | None
    """Descriptor of a file with texts, which the fork server does not read: of the program, then path and text of each
    file. None: without."""
    limits: Limits
    tasks: int
    """Processes and threads of the job's user without the job."""
    folder: str
    """Working directory."""
    is_session: bool
    """The working directory is the fork server's, and lasts."""
    stdio: tuple[int, int, int]
    report: int
    control: socket.socket | None


def reap(confinement: Confinement, launch: Launch) -> NoReturn:
    """Starts a job, waits for its end and reports it: JSON objects, one per line."""
    has_own_folder = not launch.is_session and not confinement.has_namespaces
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if not confinement.has_namespaces:
            kernel.adopt_orphans()
        else:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("proc", "/proc", is_executable=False)
            if not launch.is_session:
                mount_folder(confinement)
        text, files = _content(launch)
        if _has_files(confinement, launch, files):
            job = os.fork()
            if job == 0:
                _become_job(confinement, launch, text)
            if not confinement.has_namespaces:
                _report(launch.report, {"group": job})
            for descriptor in launch.stdio:
                os.close(descriptor)
            if launch.control:
                launch.control.close()
            code, cpu_s = _wait_for(job, has_namespaces=confinement.has_namespaces)
            _report(launch.report, {"status": code, "cpu_s": cpu_s})
    except BaseException as problem:  # becomes the report
        _report(launch.report, {"broken": _cause(problem)})
    finally:
        if has_own_folder:
            _report(launch.report, {"is_emptied": folders.empty(launch.folder, limit_s=REMOVAL_S)})
        os._exit(0)


def mount_folder(confinement: Confinement) -> None:
    """Mounts an empty folder of limited size, and one for shared memory and semaphores. Raises: OSError."""
    options = f"size={confinement.disk_bytes},nr_inodes=65536,mode=0700"
    kernel.mount("tmpfs", confinement.folder, options)
    size = min(confinement.disk_bytes, SHARED_MEMORY_BYTES)
    kernel.mount("tmpfs", SHARED_MEMORY, f"size={size},nr_inodes=1024,mode=0700", is_executable=False)


def _content(launch: Launch) -> tuple[str, list[tuple[str, bytes]]]:
    """Returns the text of the program, and its files. The first line of the content has the sizes of its texts."""
    if launch.content is None:
        return "", []
    content = os.read(launch.content, os.fstat(launch.content).st_size)
    line, _, _ = content.partition(b"\n")
    texts, begin = [], len(line) + 1
    for size in map(int, line.split()):
        texts.append(content[begin : begin + size])
        begin += size
    paths = [path.decode() for path in texts[1::2]]
    return texts[0].decode(), list(zip(paths, texts[2::2], strict=True))


def _has_files(confinement: Confinement, launch: Launch, files: list[tuple[str, bytes]]) -> bool:
    """Writes the files of a job; returns False, and reports a full working directory, where a program prevents it.

    Raises: OSError for a failure of the disk.
    """
    try:
        for path, content in files:
            folders.write(launch.folder, path, content)
    except OSError as problem:
        is_of_disk = problem.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}
        if not confinement.has_namespaces and (is_of_disk or not launch.is_session):
            raise
        _report(launch.report, {"limit": "disk"})
        return False
    return True


def _become_job(confinement: Confinement, launch: Launch, text: str) -> NoReturn:
    report = launch.report
    try:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the kernel kills the job first when memory runs out
        os.chdir(launch.folder)
        os.environ.clear()
        os.environ.update(_ENVIRONMENT, HOME=launch.folder, TMPDIR=launch.folder)
        report = os.dup2(report, _REPORT, inheritable=False)
        if launch.control:
            os.dup2(launch.control.fileno(), _REPORT + 1, inheritable=False)
        for target, descriptor in enumerate(launch.stdio):
            os.dup2(descriptor, target)
        os.closerange(3, _REPORT)
        os.closerange(_REPORT + 2, 2**20)
        if launch.control:
            os.dup2(_REPORT + 1, programs.CONTROL, inheritable=False)
        confinement.apply(launch.limits, folder=launch.folder, tasks=launch.tasks, is_session=launch.is_session)
    except BaseException as problem:  # becomes the report
        _report(report, {"broken": _cause(problem)})
        os._exit(1)
    try:
        os.closerange(_REPORT, _REPORT + 2)
        launch.program(text)
    finally:
        os._exit(1)


def _wait_for(job: int, *, has_namespaces: bool) -> tuple[int, float]:
    """Waits for a process, also as the parent of orphans, and ends and awaits the rest of its process group, which ends
    with this process in a namespace.

    Returns its exit status or negative signal, and CPU seconds.
    """
    while has_namespaces:
        ended, status, usage = os.wait4(-1, 0)
        if ended == job:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    while (process := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is None or process.si_pid != job:
        os.waitpid(process.si_pid if process else -1, 0)
    with suppress(ProcessLookupError):
        os.killpg(job, signal.SIGKILL)  # before the wait below frees the number of the group
    _, status, usage = os.wait4(job, 0)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-job, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _cause(problem: BaseException) -> str:
    """Returns a failure without the texts of a job, because the fork server reads it."""
    return f"{type(problem).__name__}: {problem.strerror if isinstance(problem, OSError) else ''}"


def _report(descriptor: int, content: Mapping[str, object]) -> None:
    os.write(descriptor, json.dumps(content).encode() + b"\n")
