"""Code of the processes that the fork server forks for a job.

    fork server ──► guardian, first process of the namespace ──► job
                    mounts a working directory, waits,           limits itself, runs the program
                    reports how the job ended

None of these functions returns, because the code below them is the fork server's loop.
"""

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from . import kernel, programs
from .confinement import Confinement, Limits

_REPORT = 100
"""Descriptor of the guardian's pipe in the job until it is limited; above all others that are open then."""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Launch:
    """A program to start, with what its process needs."""

    program: Callable[[], NoReturn]
    limits: Limits
    tasks: int
    """Processes and threads of the job's user without the job."""
    files: Mapping[str, str]
    is_session: bool
    """The working directory is the fork server's, and lasts."""
    stdio: tuple[int, int, int]
    report: int
    control: socket.socket | None


def guard(confinement: Confinement, launch: Launch) -> NoReturn:
    """Starts a job, waits for its end and reports it: JSON objects, one per line."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if confinement.has_namespaces:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("proc", "/proc", is_executable=False)
            if not launch.is_session:
                mount_folder(confinement)
        _write_files(confinement.folder, launch.files)
        job = os.fork()
        if job == 0:
            _become_job(confinement, launch)
        _report(launch.report, {"group": job})
        for descriptor in launch.stdio:
            os.close(descriptor)
        if launch.control:
            launch.control.close()
        code, cpu_s = _wait_for(job)
        _report(launch.report, {"status": code, "cpu_s": cpu_s})
    except BaseException as problem:  # becomes the report
        _report(launch.report, {"broken": repr(problem)[:500]})
    finally:
        os._exit(0)


def mount_folder(confinement: Confinement) -> None:
    """Mounts an empty folder of limited size. Raises: OSError."""
    options = f"size={confinement.disk_bytes},nr_inodes=65536,mode=0700"
    kernel.mount("tmpfs", confinement.folder, options)


def _become_job(confinement: Confinement, launch: Launch) -> NoReturn:
    report = launch.report
    try:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the kernel kills the job first when memory runs out
        os.chdir(confinement.folder)
        os.environ.clear()
        os.environ.update(_ENVIRONMENT, HOME=confinement.folder, TMPDIR=confinement.folder)
        report = os.dup2(report, _REPORT, inheritable=False)
        if launch.control:
            os.dup2(launch.control.fileno(), _REPORT + 1, inheritable=False)
        for target, descriptor in enumerate(launch.stdio):
            os.dup2(descriptor, target)
        os.closerange(3, _REPORT)
        os.closerange(_REPORT + 2, 2**20)
        if launch.control:
            os.dup2(_REPORT + 1, programs.CONTROL, inheritable=False)
        confinement.apply(launch.limits, tasks=launch.tasks, is_session=launch.is_session)
    except BaseException as problem:  # becomes the report
        _report(report, {"broken": repr(problem)[:500]})
        os._exit(1)
    try:
        os.closerange(_REPORT, _REPORT + 2)
        launch.program()
    finally:
        os._exit(1)


def _wait_for(job: int) -> tuple[int, float]:
    """Waits for a process, also as the parent of orphans, and ends the rest of its process group.

    Returns its exit status or negative signal, and CPU seconds.
    """
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid == job:
            with suppress(ProcessLookupError):
                os.killpg(job, signal.SIGKILL)  # before the wait below frees the number of the group
            _, status, usage = os.wait4(job, 0)
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        os.waitpid(ended.si_pid if ended else -1, 0)


def _write_files(folder: str, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


def _report(descriptor: int, content: Mapping[str, object]) -> None:
    os.write(descriptor, json.dumps(content).encode() + b"\n")
