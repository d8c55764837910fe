"""Supervisor of the tests of a terminal task: programs of the policy that the tests start are confined.

    supervisor ──► bash test.sh ──► program of the policy: Landlock hides the tests and the logs from it
      traces all processes, and confines each one that executes a file of the working directory

Tests run programs of the policy by name, as the same user and beside the file with the reward. The supervisor stops
each process when it executes a program, and lets one that runs a file of the policy call Landlock before its first
instruction: it and its descendants then cannot read the protected folders, except what its arguments name, write
outside of the policy's folders and those for temporary files, trace or read the processes of the tests, or send them
signals (from Linux 6.12 on; before, a signal can only end the tests, which gives 0). After the tests, all processes
that are left are killed. Without Landlock (Linux 5.13) the tests run unsupervised, and say so.

The module is sent as source to sandboxes and containers: standard library of Python 3.10, and nothing else.
"""

import ctypes
import os
import platform
import signal
import struct
import traceback
from collections.abc import Sequence
from contextlib import suppress

from astraflow.environments.terminal.policy_programs import ProgramStart, is_of_policy, named_files
from astraflow.environments.terminal.traced_process import (
    CREATE_RULESET,
    MACHINES,
    WAIT_ALL,
    Ended,
    Machine,
    arrive,
    called,
    checked,
    exchanged,
    landlock_version,
    ptrace,
    registers_of,
    set_registers,
)

_EVENT_FORK, _EVENT_VFORK, _EVENT_CLONE, _EVENT_EXEC, _EVENT_STOP = 1, 2, 3, 4, 128
_OPTIONS = 0b11110 | 1 << 20
"""Stops at forks, clones and executions; the end of the supervisor kills what it traces."""
_CONTINUE = 7
_EVENT_MESSAGE, _SEIZE, _LISTEN = 0x4201, 0x4206, 0x4208
_USUAL_FOLDERS = (
    "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt", "root", "run", "sbin", "srv",
    "sys", "tmp", "usr", "var",
)  # fmt: skip
_BROKEN = 70
"""Exit status of a supervisor that failed itself."""
_AT_EXECFN = 31
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

_ADD_RULE, _RESTRICT_SELF = 445, 446
_ALL_RIGHTS, _READ_RIGHTS = 0xFFFF, 0b1101 | 1 << 15
"""Landlock rights: all; execute and read files, list folders, ioctl."""
_FILE_RIGHTS = 0b111 | 1 << 14 | 1 << 15
"""Landlock rights that files have: execute, write, read, truncate, ioctl."""


def main(trees: Sequence[str], protected: Sequence[str], command: Sequence[str]) -> int:
    """Runs the tests; returns their exit status, or 128 plus the signal that ended them. trees: folders with files of
    the policy. protected: folders that its programs do not reach."""
    supervisor = os.fork()
    if supervisor == 0:
        status = _BROKEN
        try:
            real_trees, real_protected = ([os.path.realpath(path) for path in paths] for paths in (trees, protected))
            status = _supervised(real_trees, real_protected, command)
        except BaseException:  # the process must not return
            traceback.print_exc()
        finally:
            os._exit(status)  # the kernel then kills what is left
    code = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    return code if code >= 0 else 128 - code


def _supervised(trees: Sequence[str], protected: Sequence[str], command: Sequence[str]) -> int:
    machine, version = MACHINES.get(platform.machine()), landlock_version()
    if any(f"{os.path.realpath(os.path.expanduser('~'))}/".startswith(f"{tree}/") for tree in trees):
        os.environ["PYTHONNOUSERSITE"] = "1"  # the policy may have written modules there
    begin, start = os.pipe()
    tests = os.fork()
    if tests == 0:
        try:
            os.close(start)
            os.read(begin, 1)
            os.execvp(command[0], list(command))  # noqa: S606 (the tests)
        finally:
            os._exit(127)
    tracer = None
    try:
        if machine is not None and version:
            tracer = _Tracer(trees, protected, machine, version)
            tracer.seize(tests)
    except OSError:
        tracer = None
    if tracer is None:
        os.write(2, b"[programs of the policy are not confined: this machine lacks Landlock or ptrace]\n")
    os.close(start)
    os.close(begin)
    code = tracer.follow(tests) if tracer else os.waitstatus_to_exitcode(os.waitpid(tests, 0)[1])
    return code if code >= 0 else 128 - code


def _allowed_paths(trees: Sequence[str], protected: Sequence[str]) -> list[tuple[str, bool]]:
    """Returns the paths that programs of the policy reach, each with whether they may write there: they read everything
    but the protected folders, and write to the policy's folders and those for temporary files. What they wrote
    elsewhere, such as a module of Python, would become a part of the tests."""
    temporary = [os.path.realpath(path) for path in (os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp", "/dev")]  # noqa: S108 (compared with paths, not written to)
    writable = [path for path in (*trees, *temporary) if not _touches(path, protected)]
    return [*((path, False) for path in _readable_paths(protected)), *((path, True) for path in writable)]


def _touches(path: str, protected: Sequence[str]) -> bool:
    """Returns whether a path is in a protected folder or above one."""
    return any(f"{path}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{path}/") for folder in protected)


def _readable_paths(protected: Sequence[str]) -> list[str]:
    """Returns the paths which together are everything but the protected folders."""
    allowed, pending = [], [""]
    while pending:
        folder = pending.pop()
        towards = {path[len(folder) + 1 :].partition("/")[0] for path in protected if path.startswith(f"{folder}/")}
        for name in {*_names_in(folder), *towards}:
            path = f"{folder}/{name}"
            if name in towards and path not in protected:
                pending.append(path)
            elif not _touches(os.path.realpath(path), protected):  # of a link to a folder above them, too
                allowed.append(path)
    return allowed


def _names_in(folder: str) -> Sequence[str]:
    """Returns the names in a folder; those that are usual in the root where no program may list it."""
    try:
        return os.listdir(folder or "/")
    except OSError:
        return () if folder else _USUAL_FOLDERS


class _Tracer:
    """Follows a process and its descendants."""

    def __init__(self, trees: Sequence[str], protected: Sequence[str], machine: Machine, version: int) -> None:
        self._trees = trees
        self._protected = protected
        self._allowed = _allowed_paths(trees, protected)
        self._machine = machine
        self._version = version
        self._tasks: set[int] = set()
        self._confined: set[int] = set()

    def seize(self, process: int) -> None:
        """Begins to trace a process. Raises: OSError."""
        ptrace(_SEIZE, process, 0, _OPTIONS)
        self._tasks.add(process)

    def follow(self, tests: int) -> int:
        """Waits until the tests have ended, then kills the rest; returns their exit code."""
        code = None
        while code is None:
            task, status = os.waitpid(-1, WAIT_ALL)
            try:
                if os.WIFSTOPPED(status):
                    self._continue(task, status)
                    continue
            except Ended as end:
                status = end.status
            self._tasks.discard(task)
            self._confined.discard(task)
            if task == tests:
                code = os.waitstatus_to_exitcode(status)
        self._kill_rest()
        return code

    def _continue(self, task: int, status: int) -> None:
        self._tasks.add(task)
        event, number = status >> 16, os.WSTOPSIG(status)
        with suppress(ProcessLookupError, FileNotFoundError):  # it was killed meanwhile
            if event == _EVENT_EXEC:
                self._confine_program(task)
            elif event in (_EVENT_FORK, _EVENT_VFORK, _EVENT_CLONE) and task in self._confined:
                child = ctypes.c_ulong()
                ptrace(_EVENT_MESSAGE, task, 0, ctypes.addressof(child))
                self._confined.add(child.value)
            if event == _EVENT_STOP and number in _STOPS:
                ptrace(_LISTEN, task, 0, 0)
            else:
                ptrace(_CONTINUE, task, 0, 0 if event else number)

    def _kill_rest(self) -> None:
        for task in self._tasks:
            with suppress(OSError):  # it has ended, or the filter of the sandbox leaves it to the end of this process
                os.kill(task, signal.SIGKILL)
        with suppress(ChildProcessError):
            while self._tasks:
                task, status = os.waitpid(-1, WAIT_ALL)
                if os.WIFSTOPPED(status):
                    with suppress(ProcessLookupError):
                        ptrace(_CONTINUE, task, 0, signal.SIGKILL)
                self._tasks.discard(task)

    def _confine_program(self, task: int) -> None:
        if task in self._confined:
            return
        try:
            start = _start_of(task)
            is_confined, inputs = is_of_policy(self._trees, start), named_files(self._protected, start)
        except OSError:  # it was killed, or the policy withdrew the permission to look
            is_confined, inputs = True, []
        if is_confined:
            self._confined.add(task)
            rewards = [number for number, path in _descriptors(task).items() if self._is_reward(path)]
            allowed = [*self._allowed, *((path, False) for path in inputs)]
            _confine(task, self._machine, allowed, self._version, hidden=rewards)

    def _is_reward(self, path: str) -> bool:
        """Returns whether a file has the reward; a test may redirect its own output there while it runs a program."""
        is_protected = any(path.startswith(f"{folder}/") for folder in self._protected)
        return is_protected and os.path.basename(path).startswith("reward")


def _start_of(task: int) -> ProgramStart:
    """Returns what a stopped process executes. Raises: OSError."""
    program, folder = os.readlink(f"/proc/{task}/exe"), os.readlink(f"/proc/{task}/cwd")
    with open(f"/proc/{task}/cmdline", "rb") as file:
        arguments = [os.fsdecode(word) for word in file.read(2**18).split(b"\0")]
    return ProgramStart(program, arguments, folder, _descriptors(task).get(0, ""), _called_path(task))


def _called_path(task: int) -> str:
    """Returns the path by which a program was executed: that of the script where the first line of one names the
    program. Raises: OSError."""
    with open(f"/proc/{task}/auxv", "rb") as file:
        entries = dict(struct.iter_unpack("=QQ", file.read()))
    with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
        memory.seek(entries[_AT_EXECFN])
        return os.fsdecode(memory.read(4096).partition(b"\0")[0])


def _descriptors(task: int) -> dict[int, str]:
    """Returns the paths of the files that a process has open. Raises: OSError."""
    folder = f"/proc/{task}/fd"
    links = {int(name): os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    return {number: path for number, path in links.items() if path.startswith("/")}


def _confine(
    task: int, machine: Machine, allowed: Sequence[tuple[str, bool]], version: int, *, hidden: Sequence[int]
) -> None:
    """Lets a stopped process restrict itself before its first instruction. hidden: descriptors that lead nowhere
    afterwards. Ends the process where that fails. Raises: Ended."""
    before = registers_of(task, machine)
    address = before[machine.at]
    saved = exchanged(task, address, machine.call + machine.trap)
    open_number, close_number, prctl_number, dup_number = machine.calls
    data = (before[machine.stack] - 8192) & ~15

    def call(number: int, *arguments: int) -> int:
        registers = list(before)
        registers[machine.number], registers[machine.at] = number, address
        if machine.repeated is not None:
            registers[machine.repeated] = 2**64 - 1
        for position, value in zip(machine.arguments, (*arguments, *[0] * 5), strict=False):
            registers[position] = value & (2**64 - 1)
        return called(task, machine, registers)

    def stored(content: bytes) -> int:
        exchanged(task, data, content)
        return data

    try:
        arrive(task, machine, before)
        handled = 0x1FFF | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
        size = 24 if version >= 6 else 8
        attributes = struct.pack("=QQQ", handled, 0, 0b11)[:size]
        if hidden:
            null = checked(call(open_number, -100, stored(b"/dev/null\0"), os.O_RDWR | os.O_CLOEXEC))
            for descriptor in hidden:
                checked(call(dup_number, null, descriptor, 0))
            call(close_number, null)
        checked(call(prctl_number, 38, 1))
        ruleset = checked(call(CREATE_RULESET, stored(attributes), size, 0))
        for path, may_write in allowed:
            descriptor = call(open_number, -100, stored(os.fsencode(path) + b"\0"), os.O_PATH | os.O_CLOEXEC)
            if descriptor >= 0:
                rights = handled & (_ALL_RIGHTS if may_write else _READ_RIGHTS)
                rights &= _ALL_RIGHTS if os.path.isdir(path) else _FILE_RIGHTS
                checked(call(_ADD_RULE, ruleset, 1, stored(struct.pack("=Qi", rights, descriptor))))
                call(close_number, descriptor)
        checked(call(_RESTRICT_SELF, ruleset, 0))
        call(close_number, ruleset)
    except OSError:
        os.kill(task, signal.SIGKILL)
        return
    exchanged(task, address, saved)
    set_registers(task, before)
