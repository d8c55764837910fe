"""Start and supervision of the processes of a job.

fork server ──► guardian, first process of the namespace ──► job
                mounts a working directory, waits,           limits itself, runs the program
                reports how the job ended
"""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import kernel, programs
from .confinement import Confinement, Limits

_TICK_S = 0.05
_AUDIT_S = 0.25
"""Interval at which memory and disk of a running job are measured."""
_COMMAND_S = 5.0
"""Timeout for an interpreter to take a command."""
_CHUNK_BYTES = 2**16
_REPORT = 100
"""Descriptor of the guardian's pipe in the job until it is limited; above all others that are open then."""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}


class HostLeft(Exception):
    """The process that started this fork server is gone."""


class Broken(Exception):
    """The sandbox itself failed."""


@dataclass
class Output:
    """Collected output of a stream."""

    descriptor: int
    limit: int
    content: bytearray = field(default_factory=bytearray)
    is_cut: bool = False
    is_open: bool = True

    def read(self) -> None:
        """Reads what is there; discards what exceeds the limit."""
        try:
            chunk = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self.is_open = bool(chunk)
        kept = chunk[: max(0, self.limit - len(self.content))]
        self.content += kept
        self.is_cut = self.is_cut or len(kept) < len(chunk)


@dataclass
class Child:
    """Processes of a job, and this side of their pipes."""

    guardian: int
    status: int
    """Descriptor with the reports of the guardian, one JSON object per line."""
    out: int
    err: int
    control: socket.socket | None
    reports: bytearray = field(default_factory=bytearray)
    group: int = 0
    """Process group of the job, as seen from its own namespace; 0 before it is known."""

    def report(self) -> Mapping[str, Any]:
        """Returns everything that the guardian reported."""
        lines = bytes(self.reports).splitlines()
        return {key: value for line in lines for key, value in json.loads(line).items()}


class Children:
    """Starts jobs and ends them, with all their processes."""

    def __init__(self, confinement: Confinement, host: socket.socket) -> None:
        """host: connection whose end means that nobody wants results any more."""
        self._confinement = confinement
        self._host = host
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if confinement.has_namespaces else -1

    def start(
        self,
        program: Callable[[], NoReturn],
        *,
        limits: Limits,
        stdin: str | None,
        files: Mapping[str, str],
        is_session: bool = False,
    ) -> Child:
        """Starts a program. stdin: its input; None: nothing. A session keeps its working directory and gets a control
        socket. Raises: OSError."""
        tasks = self._confinement.expected_tasks()
        input_file = os.open("/dev/null", os.O_RDONLY) if stdin is None else _file_of(stdin)
        pipes = [os.pipe() for _ in range(3)]
        control = socket.socketpair() if is_session else None
        ours, theirs = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
        if self._confinement.has_namespaces:
            kernel.unshare(kernel.CLONE_NEWPID)
        guardian = os.fork()
        if guardian == 0:
            self._guard(program, limits, tasks, files, is_session, (input_file, *theirs), control and control[1])
        if self._confinement.has_namespaces:
            kernel.enter_namespace(self._own_namespace, kernel.CLONE_NEWPID)
        for descriptor in (input_file, *theirs):
            os.close(descriptor)
        if control:
            control[1].close()
            control[0].settimeout(_COMMAND_S)
        for descriptor in ours:
            os.set_blocking(descriptor, False)
        return Child(guardian, status=ours[2], out=ours[0], err=ours[1], control=control[0] if control else None)

    def wait(self, child: Child, *, limits: Limits, for_reply: bool = False) -> tuple[dict[str, Any], bool]:
        """Collects output until the job ends, or replies; stops it at a limit. Returns the fields of a result, and
        whether the job has ended.

        Raises: HostLeft; Broken when the guardian died without a report.
        """
        started_at = time.monotonic()
        outputs = [Output(child.out, limits.output_bytes), Output(child.err, limits.output_bytes)]
        reply, limit = self._collect(child, outputs, limits, started_at + limits.wall_s, for_reply=for_reply)
        wall_taken_s = time.monotonic() - started_at
        if reply is None:
            self.kill(child)
        _drain(outputs)
        if reply is None:
            self.release(child)
        outcome, status = ("", reply) if reply is not None else _ending(child.report(), limit, limits)
        if not outcome:
            outcome = "passed" if status == 0 else "memory" if status == programs.MEMORY_STATUS else "failed"
        result = {
            "outcome": outcome,
            "exit_status": status if outcome in {"passed", "failed"} else None,
            "stdout": outputs[0].content.decode(errors="replace"),
            "stderr": outputs[1].content.decode(errors="replace"),
            "wall_s": wall_taken_s,
            "is_output_cut": any(output.is_cut for output in outputs),
        }
        return result, reply is None

    def kill(self, child: Child) -> None:
        """Ends all processes of a job."""
        _read_reports(child)
        if not self._confinement.has_namespaces:
            child.group = child.group or int(child.report().get("group", 0))
            if child.group and "status" not in child.report():
                _kill(os.killpg, child.group)
        _kill(os.kill, child.guardian)  # its death ends its namespace
        os.waitpid(child.guardian, 0)
        if not self._confinement.has_namespaces and child.group:
            _reap(child.group)
        _read_reports(child)

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
        while True:
            for descriptor in self._readable(child, outputs, for_reply=for_reply):
                if child.control and descriptor == child.control.fileno():
                    reply = _reply(child)
                    if reply.strip().isdigit():
                        return int(reply), ""
                elif descriptor == child.status and not _read_reports(child):
                    return None, ""
                elif descriptor == self._host.fileno():
                    self.kill(child)
                    raise HostLeft
                for output in outputs:
                    if descriptor == output.descriptor:
                        output.read()
            if "status" in child.report():
                return None, ""
            now = time.monotonic()
            if now > deadline:
                return None, "timeout"
            if now > audit_at:
                audit_at = now + _AUDIT_S
                limit = self._exceeded(child, limits)
                if limit:
                    return None, limit

    def _readable(self, child: Child, outputs: list[Output], *, for_reply: bool) -> list[int]:
        poller = select.poll()
        poller.register(child.status, select.POLLIN)
        poller.register(self._host, select.POLLRDHUP)
        for output in outputs:
            if output.is_open:
                poller.register(output.descriptor, select.POLLIN)
        if for_reply and child.control:
            poller.register(child.control, select.POLLIN)
        if not child.group and not self._confinement.has_namespaces:
            self._announce(child)
        return [descriptor for descriptor, _ in poller.poll(_TICK_S * 1000)]

    def _announce(self, child: Child) -> None:
        """Tells the host the process group, so that it can end the job when this fork server dies."""
        child.group = int(child.report().get("group", 0))
        if child.group:
            send(self._host, {"group": child.group})

    def _exceeded(self, child: Child, limits: Limits) -> str:
        used_bytes = sum(_own_memory(pid) for pid in self._processes(child))
        if used_bytes > limits.memory_bytes + _own_memory(os.getpid()):
            return "memory"
        is_disk_full = not self._confinement.has_namespaces and _folder_bytes(self._confinement.folder) > (
            self._confinement.disk_bytes
        )
        return "disk" if is_disk_full else ""

    def _processes(self, child: Child) -> Iterator[int]:
        for name in os.listdir("/proc"):
            if name.isdigit() and (
                int(name) not in {1, os.getpid()}
                if self._confinement.has_namespaces
                else _group_of(int(name)) == child.group
            ):
                yield int(name)

    def _guard(
        self,
        program: Callable[[], NoReturn],
        limits: Limits,
        tasks: int,
        files: Mapping[str, str],
        is_session: bool,
        descriptors: tuple[int, int, int, int],
        control: socket.socket | None,
    ) -> NoReturn:
        """First process of a job; never returns, because the code below it is the fork server's loop."""
        status = descriptors[3]
        try:
            kernel.die_with_parent(signal.SIGKILL)
            if self._confinement.has_namespaces:
                self._mount(is_session=is_session)
            _write_files(self._confinement.folder, files)
            job = os.fork()
            if job == 0:
                _become_job(self._confinement, program, limits, tasks, is_session, descriptors, control)
            os.write(status, b'{"group": %d}\n' % job)
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            if control:
                control.close()
            code, cpu_s = _wait_for(job)
            os.write(status, json.dumps({"status": code, "cpu_s": cpu_s}).encode() + b"\n")
        except BaseException as problem:  # becomes the report
            os.write(status, json.dumps({"broken": repr(problem)[:500]}).encode() + b"\n")
        finally:
            os._exit(0)

    def _mount(self, *, is_session: bool) -> None:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("proc", "/proc", is_executable=False)
        if not is_session:
            mount_folder(self._confinement)


def mount_folder(confinement: Confinement) -> None:
    """Mounts an empty folder of limited size. Raises: OSError."""
    options = f"size={confinement.disk_bytes},nr_inodes=65536,mode=0700"
    kernel.mount("tmpfs", confinement.folder, options)


def send(host: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends a message: its length in 4 bytes, then JSON. Raises: OSError."""
    content = json.dumps(message).encode()
    host.sendall(len(content).to_bytes(4, "big") + content)


def _become_job(
    confinement: Confinement,
    program: Callable[[], NoReturn],
    limits: Limits,
    tasks: int,
    is_session: bool,
    descriptors: tuple[int, int, int, int],
    control: socket.socket | None,
) -> NoReturn:
    """Limits this process, then runs the program. Never returns."""
    report = descriptors[3]
    try:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the kernel kills the job first when memory runs out
        os.chdir(confinement.folder)
        os.environ.clear()
        os.environ.update(_ENVIRONMENT, HOME=confinement.folder, TMPDIR=confinement.folder)
        report = os.dup2(report, _REPORT, inheritable=False)
        if control:
            os.dup2(control.fileno(), _REPORT + 1, inheritable=False)
        for target in range(3):
            os.dup2(descriptors[target], target)
        os.closerange(3, _REPORT)
        os.closerange(_REPORT + 2, 2**20)
        if control:
            os.dup2(_REPORT + 1, programs.CONTROL, inheritable=False)
        confinement.apply(limits, tasks=tasks, is_session=is_session)
    except BaseException as problem:  # becomes the report
        os.write(report, json.dumps({"broken": repr(problem)[:500]}).encode() + b"\n")
        os._exit(1)
    try:
        os.closerange(_REPORT, _REPORT + 2)
        program()
    finally:
        os._exit(1)


def _reply(child: Child) -> bytes:
    """Returns what the interpreter says; empty, and without further polling, when it ended."""
    assert child.control is not None  # noqa: S101 (polled)
    try:
        reply = child.control.recv(64)
    except ConnectionError:
        reply = b""
    if not reply:
        child.control.close()
        child.control = None
    return reply


def _ending(report: Mapping[str, Any], limit: str, limits: Limits) -> tuple[str, int | None]:
    """Returns outcome and exit status of a job that ended; the outcome is empty when the exit status decides."""
    if "broken" in report:
        raise Broken(str(report["broken"]))
    if limit:
        return ("crashed" if limit == "disk" else limit), None
    if "status" not in report:
        raise Broken("the first process of the job died")
    code = int(report["status"])
    if code >= 0:
        return "", code
    is_limit_of_cpu = -code in (signal.SIGXCPU, signal.SIGKILL) and report["cpu_s"] >= limits.cpu_s - 0.2
    return ("timeout" if is_limit_of_cpu else "crashed"), None


def _wait_for(job: int) -> tuple[int, float]:
    """Waits for a process, also as the parent of orphans, and ends the rest of its process group.

    Returns its exit status or negative signal, and CPU seconds.
    """
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid == job:
            _kill(os.killpg, job)  # before the wait below frees the number of the group
            _, status, usage = os.wait4(job, 0)
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        os.waitpid(ended.si_pid if ended else -1, 0)


def _file_of(text: str) -> int:
    descriptor = os.memfd_create("stdin")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode(errors="replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write_files(folder: str, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)


def _read_reports(child: Child) -> bool:
    """Returns whether there was anything to read."""
    try:
        chunk = os.read(child.status, _CHUNK_BYTES)
    except BlockingIOError:
        return True
    child.reports += chunk
    return bool(chunk)


def _drain(outputs: list[Output]) -> None:
    """Reads what is left in the pipes, at most about as much as a pipe holds."""
    for output in outputs:
        for _ in range(32):
            before = len(output.content)
            if not output.is_open:
                break
            output.read()
            if len(output.content) == before:
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


def _own_memory(pid: int) -> int:
    """Returns the memory of a process, its part of shared pages included. Bytes; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = [line.split()[1] for line in file if line.startswith("Pss:")]
    except OSError:
        return 0
    return sum(int(size) for size in sizes) * 1024


def _group_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[2])
    except OSError:
        return 0


def _folder_bytes(folder: str) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue  # removed meanwhile
    return total
