"""Start and supervision of jobs, on the side of the fork server."""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import kernel, programs, usage
from .buffers import CHUNK_BYTES, Buffer, Output
from .confinement import Confinement, Limits
from .folders import exceeds
from .reaper import REMOVAL_S, Launch, reap

_TICK_S = 0.05
_AUDIT_S = 0.25
"""Interval at which memory and disk of a running job are measured."""
_COMMAND_S = 5.0
"""Timeout for an interpreter to take a command."""


class HostLeft(Exception):
    """The process that started this fork server is gone."""


class Broken(Exception):
    """The sandbox itself failed."""


@dataclass
class Child:
    """Processes of a job, and this side of their pipes."""

    reaper: int
    status: int
    """Descriptor with the reports of the job reaper, one JSON object per line."""
    out: int
    err: int
    control: socket.socket | None
    folder: str
    """Working directory."""
    report: dict[str, Any] = field(default_factory=dict)
    """Everything that the job reaper reported."""
    group: int = 0
    """Process group of the job without a namespace; 0 before it is known."""


class Children:
    """Starts jobs and ends them, with all their processes."""

    def __init__(self, confinement: Confinement, host: socket.socket) -> None:
        """host: connection to the process that receives the results; when it closes, results are discarded."""
        self._confinement = confinement
        self._host = host
        self._buffers = [Buffer(CHUNK_BYTES) for _ in range(2)]
        self._folders = 0
        self._empty_folder = ""
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if confinement.has_namespaces else -1

    def start(
        self,
        program: Callable[[str], NoReturn],
        *,
        limits: Limits,
        content: int | None = None,
        stdin: int | None = None,
        is_session: bool = False,
    ) -> Child:
        """Starts a program. content: descriptor of a file with what it consists of, stdin: of its input, both of which
        this closes; None: nothing. A session keeps its working directory and gets a control socket. Raises: OSError."""
        input_file = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        (out, job_out), (err, job_err), (status, report) = os.pipe(), os.pipe(), os.pipe()
        control, job_control = socket.socketpair() if is_session else (None, None)
        launch = Launch(
            program=program,
            content=content,
            limits=limits,
            tasks=self._confinement.expected_tasks(),
            folder=self._folder_for(is_session=is_session),
            is_session=is_session,
            stdio=(input_file, job_out, job_err),
            report=report,
            control=job_control,
        )
        reaper = self._forked(launch)
        for descriptor in (*launch.stdio, report, *([] if content is None else [content])):
            os.close(descriptor)
        for descriptor in (out, err, status):
            os.set_blocking(descriptor, False)
        if control and job_control:
            job_control.close()
            control.settimeout(_COMMAND_S)
        return Child(reaper, status=status, out=out, err=err, control=control, folder=launch.folder)

    def wait(self, child: Child, *, limits: Limits, for_reply: bool = False) -> tuple["Result", bool]:
        """Collects output until the job ends, or replies; stops it at a limit. Returns the result, and whether the job
        has ended.

        Raises: HostLeft; Broken when the job reaper died without a report.
        """
        started_at = time.monotonic()
        for buffer in self._buffers:
            buffer.hold(limits.output_bytes + CHUNK_BYTES)
        pipes = zip((child.out, child.err), self._buffers, strict=True)
        outputs = [Output(pipe, limits.output_bytes, buffer) for pipe, buffer in pipes]
        reply, limit = self._collect(child, outputs, limits, started_at + limits.wall_s, for_reply=for_reply)
        wall_taken_s = time.monotonic() - started_at
        if reply is None:
            self.kill(child)
        _drain(outputs)
        if reply is None:
            self.release(child)
        outcome, status = ("", reply) if reply is not None else _ending(child.report, limit, limits)
        if not outcome:
            outcome = "passed" if status == 0 else "memory" if status == programs.MEMORY_STATUS else "failed"
        fields = {
            "outcome": outcome,
            "exit_status": status if outcome in {"passed", "failed"} else None,
            "wall_s": wall_taken_s,
            "is_output_cut": any(output.is_cut for output in outputs),
        }
        return Result(fields, [output.content for output in outputs]), reply is None

    def kill(self, child: Child) -> None:
        """Ends all processes of a job, after its job reaper has emptied its working directory."""
        _read_reports(child)
        if not self._confinement.has_namespaces:
            self._await_reaper(child)
            if child.report.get("is_emptied"):
                self._empty_folder = child.folder
        _kill(os.kill, child.reaper)  # its death ends its namespace
        os.waitpid(child.reaper, 0)
        if not self._confinement.has_namespaces and child.group:
            _reap(child.group)
        _read_reports(child)

    def _await_reaper(self, child: Child) -> None:
        """Ends the program, and waits for the end of its job reaper, which closes its reports."""
        deadline = time.monotonic() + REMOVAL_S + _TICK_S
        poller = select.poll()
        poller.register(child.status, select.POLLIN)
        is_killed = False
        while (left_s := deadline - time.monotonic()) > 0:
            child.group = child.group or int(child.report.get("group", 0))
            if child.group and not is_killed and "status" not in child.report:
                _kill(os.killpg, child.group)
                is_killed = True
            if poller.poll(left_s * 1000) and not _read_reports(child):
                return

    def release(self, child: Child) -> None:
        """Closes the pipes of a job that has ended."""
        for descriptor in (child.status, child.out, child.err):
            os.close(descriptor)
        if child.control:
            child.control.close()

    def _collect(
        self, child: Child, outputs: list[Output], limits: Limits, deadline: float, *, for_reply: bool
    ) -> tuple[int | None, str]:
        """Returns the exit status that an interpreter replied, else None, and the limit that was reached, else ""."""
        audit_at = time.monotonic() + _AUDIT_S
        poller, output_of = self._poller(child, outputs, for_reply=for_reply)
        while True:
            for descriptor, _ in poller.poll(_TICK_S * 1000):
                if descriptor in output_of:
                    output_of[descriptor].read()
                    if not output_of[descriptor].is_open:
                        poller.unregister(descriptor)
                elif descriptor == child.status:
                    if not _read_reports(child) or not {"status", "limit"}.isdisjoint(child.report):
                        return None, ""
                    self._announce(child)
                elif descriptor == self._host.fileno():
                    self.kill(child)
                    raise HostLeft
                else:
                    reply = _reply(child, poller)
                    if reply.strip().isdigit():
                        return int(reply), ""
            now = time.monotonic()
            if now > deadline:
                return None, "timeout"
            if now > audit_at:
                audit_at = now + _AUDIT_S
                limit = self._exceeded(child, limits)
                if limit:
                    return None, limit

    def _poller(self, child: Child, outputs: list[Output], *, for_reply: bool) -> tuple[select.poll, dict[int, Output]]:
        poller = select.poll()
        poller.register(child.status, select.POLLIN)
        poller.register(self._host, select.POLLRDHUP)
        if for_reply and child.control:
            poller.register(child.control, select.POLLIN)
        for output in outputs:
            poller.register(output.descriptor, select.POLLIN)
        return poller, {output.descriptor: output for output in outputs}

    def _announce(self, child: Child) -> None:
        """Tells the host the process group, so that it can end the job when this fork server dies."""
        if not child.group and "group" in child.report:
            child.group = child.report["group"]
            send(self._host, {"group": child.group})

    def _exceeded(self, child: Child, limits: Limits) -> str:
        used_bytes = sum(usage.memory_bytes(pid) for pid in self._processes(child))
        if used_bytes > limits.memory_bytes + usage.memory_bytes(os.getpid()):
            return "memory"
        if self._confinement.has_namespaces:
            return ""  # the file system has a size
        return "disk" if self._is_full(child.folder) else ""

    def _is_full(self, folder: str) -> bool:
        """Measures a working directory, in another process: names of files are texts of the program, too."""
        try:
            measuring = os.fork()
        except OSError:  # too many processes at the moment: the next measurement tells
            return False
        if measuring == 0:
            status = 1
            try:
                status = int(exceeds(folder, size_bytes=self._confinement.disk_bytes))
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(measuring, 0)[1]) == 1

    def _folder_for(self, *, is_session: bool) -> str:
        """Returns a working directory: of a job without namespaces an empty one, which its reaper empties again."""
        if is_session or self._confinement.has_namespaces:
            return self._confinement.folder
        folder, self._empty_folder = self._empty_folder, ""
        if not folder:
            self._folders += 1
            folder = f"{self._confinement.folder}/{self._folders}"
            os.mkdir(folder, 0o700)
        return folder

    def _processes(self, child: Child) -> Iterator[int]:
        if self._confinement.has_namespaces:
            return (pid for pid in usage.processes() if pid not in {1, os.getpid()})
        return usage.processes_of_group(child.group)

    def _forked(self, launch: Launch) -> int:
        """Forks the job reaper, into a process namespace of its own; returns its number."""
        if self._confinement.has_namespaces:
            kernel.unshare(kernel.CLONE_NEWPID)
        reaper = os.fork()
        if reaper == 0:
            reap(self._confinement, launch)
        if self._confinement.has_namespaces:
            kernel.enter_namespace(self._own_namespace, kernel.CLONE_NEWPID)
        return reaper


@dataclass(frozen=True)
class Result:
    """Result of a job, without its outputs, and these."""

    fields: Mapping[str, Any]
    outputs: list[memoryview]


def send(host: socket.socket, message: Mapping[str, Any], outputs: Sequence[memoryview] = ()) -> None:
    """Sends a message: its length in 4 bytes, JSON, then the outputs, which it names the sizes of. Raises: OSError."""
    sizes = {"output_bytes": [len(output) for output in outputs]} if outputs else {}
    content = json.dumps({**message, **sizes}).encode()
    parts = [memoryview(len(content).to_bytes(4, "big") + content), *outputs]
    while parts:
        sent = host.sendmsg(parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][sent:]


def _reply(child: Child, poller: select.poll) -> bytes:
    """Returns what the interpreter says; empty, and without further polling, when it ended."""
    assert child.control is not None  # noqa: S101 (polled)
    try:
        reply = child.control.recv(64)
    except ConnectionError:
        reply = b""
    if not reply:
        poller.unregister(child.control)
        child.control.close()
        child.control = None
    return reply


def _ending(report: Mapping[str, Any], limit: str, limits: Limits) -> tuple[str, int | None]:
    """Returns outcome and exit status of a job that ended; the outcome is empty when the exit status decides."""
    if "broken" in report:
        raise Broken(str(report["broken"]))
    limit = limit or report.get("limit", "")
    if limit:
        return ("crashed" if limit == "disk" else limit), None
    if "status" not in report:
        raise Broken("the first process of the job died")
    code = int(report["status"])
    if code >= 0:
        return "", code
    is_limit_of_cpu = -code in (signal.SIGXCPU, signal.SIGKILL) and report["cpu_s"] >= limits.cpu_s - 0.2
    return ("timeout" if is_limit_of_cpu else "crashed"), None


def _read_reports(child: Child) -> bool:
    """Returns whether there was anything to read."""
    try:
        chunk = os.read(child.status, CHUNK_BYTES)
    except BlockingIOError:
        return True
    for line in chunk.splitlines():
        child.report.update(json.loads(line))
    return bool(chunk)


def _drain(outputs: list[Output]) -> None:
    """Reads what is left in the pipes, at most about as much as a pipe holds."""
    for output in outputs:
        for _ in range(32):
            if not output.is_open or not output.read():
                break


def _kill(function: Callable[[int, int], None], target: int) -> None:
    try:
        function(target, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap(group: int) -> None:
    """Collects orphans of a job that has ended, which this process adopted."""
    try:
        while os.waitpid(-group, 0):
            pass
    except ChildProcessError:
        return
