"""Supervisor of the tests of a terminal task: programs of the policy that the tests start are confined.

    supervisor ──► bash test.sh ──► program of the policy: Landlock hides the tests and the logs from it
      traces all processes, and confines each one that executes a file of the working directory

Tests run programs of the policy by name, as the same user and beside the file with the reward. The supervisor stops
each process when it executes a program, and lets one that runs a file of the policy call Landlock before its first
instruction: it and its descendants then cannot read the protected folders, write outside of the policy's folders and
those for temporary files, trace or read the processes of the tests, or send them signals (from Linux 6.12 on; before, a
signal can only end the tests, which gives 0). After the tests, all processes that are left are killed. Without Landlock
(Linux 5.13) the tests run unsupervised, and say so.

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
from dataclasses import dataclass

from astraflow.environments.terminal.policy_programs import ProgramStart, is_of_policy

_WALL = 0x40000000
_EVENT_FORK, _EVENT_VFORK, _EVENT_CLONE, _EVENT_EXEC, _EVENT_STOP = 1, 2, 3, 4, 128
_OPTIONS = 0b11110 | 1 << 20
"""Stops at forks, clones and executions; the end of the supervisor kills what it traces."""
_PEEK, _POKE, _CONTINUE = 1, 4, 7
_EVENT_MESSAGE, _GET_REGISTERS, _SET_REGISTERS, _SEIZE, _LISTEN = 0x4201, 0x4204, 0x4205, 0x4206, 0x4208
_USUAL_FOLDERS = (
    "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "media", "mnt", "opt", "root", "run", "sbin", "srv",
    "sys", "tmp", "usr", "var",
)  # fmt: skip
_BROKEN = 70
"""Exit status of a supervisor that failed itself."""
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
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
    machine, version = _MACHINES.get(platform.machine()), landlock_version()
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
    temporary = [os.path.realpath(path) for path in (os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp", "/dev")]  # noqa: S108
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


@dataclass(frozen=True)
class _Machine:
    """Registers and instructions of a processor."""

    size: int
    """Registers, of 8 bytes. Count."""
    calls: tuple[int, int, int, int]
    """Numbers of the system calls openat, close, prctl and dup3."""
    number: int
    """Position of the register with the number of a system call; so the others."""
    result: int
    arguments: tuple[int, ...]
    at: int
    stack: int
    repeated: int | None
    """Register with which the kernel would repeat a call. None: it has none."""
    call: bytes
    """Instruction for a system call, and that of a breakpoint."""
    trap: bytes


_MACHINES = {
    "x86_64": _Machine(
        size=27, calls=(257, 3, 157, 292), number=10, result=10, arguments=(14, 13, 12, 7, 9), at=16, stack=19,
        repeated=15, call=b"\x0f\x05", trap=b"\xcc",
    ),
    "aarch64": _Machine(
        size=34, calls=(56, 57, 167, 24), number=8, result=0, arguments=(0, 1, 2, 3, 4), at=32, stack=31, repeated=None,
        call=b"\x01\x00\x00\xd4", trap=b"\x00\x00\x20\xd4",
    ),
}  # fmt: skip


class _Tracer:
    """Follows a process and its descendants."""

    def __init__(self, trees: Sequence[str], protected: Sequence[str], machine: _Machine, version: int) -> None:
        self._trees = trees
        self._protected = protected
        self._allowed = _allowed_paths(trees, protected)
        self._machine = machine
        self._version = version
        self._tasks: set[int] = set()
        self._confined: set[int] = set()

    def seize(self, process: int) -> None:
        """Begins to trace a process. Raises: OSError."""
        _ptrace(_SEIZE, process, 0, _OPTIONS)
        self._tasks.add(process)

    def follow(self, tests: int) -> int:
        """Waits until the tests have ended, then kills the rest; returns their exit code."""
        code = None
        while code is None:
            task, status = os.waitpid(-1, _WALL)
            try:
                if os.WIFSTOPPED(status):
                    self._continue(task, status)
                    continue
            except _Ended as end:
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
                _ptrace(_EVENT_MESSAGE, task, 0, ctypes.addressof(child))
                self._confined.add(child.value)
            if event == _EVENT_STOP and number in _STOPS:
                _ptrace(_LISTEN, task, 0, 0)
            else:
                _ptrace(_CONTINUE, task, 0, 0 if event else number)

    def _kill_rest(self) -> None:
        for task in self._tasks:
            with suppress(OSError):  # it has ended, or the filter of the sandbox leaves it to the end of this process
                os.kill(task, signal.SIGKILL)
        with suppress(ChildProcessError):
            while self._tasks:
                task, status = os.waitpid(-1, _WALL)
                if os.WIFSTOPPED(status):
                    with suppress(ProcessLookupError):
                        _ptrace(_CONTINUE, task, 0, signal.SIGKILL)
                self._tasks.discard(task)

    def _confine_program(self, task: int) -> None:
        if task not in self._confined and self._is_of_policy(task):
            self._confined.add(task)
            rewards = [number for number, path in _descriptors(task).items() if self._is_reward(path)]
            _confine(task, self._machine, self._allowed, self._version, hidden=rewards)

    def _is_of_policy(self, task: int) -> bool:
        try:
            return is_of_policy(self._trees, _start_of(task))
        except OSError:  # it was killed, or the policy withdrew the permission to look
            return True

    def _is_reward(self, path: str) -> bool:
        """Returns whether a file has the reward; a test may redirect its own output there while it runs a program."""
        is_protected = any(path.startswith(f"{folder}/") for folder in self._protected)
        return is_protected and os.path.basename(path).startswith("reward")


def _start_of(task: int) -> ProgramStart:
    """Returns what a stopped process executes. Raises: OSError."""
    program, folder = os.readlink(f"/proc/{task}/exe"), os.readlink(f"/proc/{task}/cwd")
    with open(f"/proc/{task}/cmdline", "rb") as file:
        arguments = [os.fsdecode(word) for word in file.read(2**18).split(b"\0")]
    return ProgramStart(program, arguments, folder, _descriptors(task).get(0, ""))


def _descriptors(task: int) -> dict[int, str]:
    """Returns the paths of the files that a process has open. Raises: OSError."""
    folder = f"/proc/{task}/fd"
    links = {int(name): os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    return {number: path for number, path in links.items() if path.startswith("/")}


class _Ended(Exception):
    """A process ended while it was being confined."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _confine(
    task: int, machine: _Machine, allowed: Sequence[tuple[str, bool]], version: int, *, hidden: Sequence[int]
) -> None:
    """Lets a stopped process restrict itself before its first instruction. hidden: descriptors that lead nowhere
    afterwards. Ends the process where that fails. Raises: _Ended."""
    before = _registers(task, machine)
    place = before[machine.at]
    saved = _exchanged(task, place, machine.call + machine.trap)
    open_number, close_number, prctl_number, dup_number = machine.calls
    data = (before[machine.stack] - 8192) & ~15

    def call(number: int, *arguments: int) -> int:
        registers = list(before)
        registers[machine.number], registers[machine.at] = number, place
        if machine.repeated is not None:
            registers[machine.repeated] = 2**64 - 1
        for position, value in zip(machine.arguments, (*arguments, *[0] * 5), strict=False):
            registers[position] = value & (2**64 - 1)
        return _called(task, machine, registers)

    def stored(content: bytes) -> int:
        _exchanged(task, data, content)
        return data

    try:
        _arrive(task, machine, before)
        handled = 0x1FFF | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
        size = 24 if version >= 6 else 8
        attributes = struct.pack("=QQQ", handled, 0, 0b11)[:size]
        if hidden:
            null = _checked(call(open_number, -100, stored(b"/dev/null\0"), os.O_RDWR | os.O_CLOEXEC))
            for descriptor in hidden:
                _checked(call(dup_number, null, descriptor, 0))
            call(close_number, null)
        _checked(call(prctl_number, 38, 1))
        ruleset = _checked(call(_CREATE_RULESET, stored(attributes), size, 0))
        for path, may_write in allowed:
            descriptor = call(open_number, -100, stored(os.fsencode(path) + b"\0"), os.O_PATH | os.O_CLOEXEC)
            if descriptor >= 0:
                rights = handled & (_ALL_RIGHTS if may_write else _READ_RIGHTS)
                rights &= _ALL_RIGHTS if os.path.isdir(path) else _FILE_RIGHTS
                _checked(call(_ADD_RULE, ruleset, 1, stored(struct.pack("=Qi", rights, descriptor))))
                call(close_number, descriptor)
        _checked(call(_RESTRICT_SELF, ruleset, 0))
        call(close_number, ruleset)
    except OSError:
        os.kill(task, signal.SIGKILL)
        return
    _exchanged(task, place, saved)
    _set_registers(task, before)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def _called(task: int, machine: _Machine, registers: Sequence[int]) -> int:
    """Runs a process until a breakpoint, with registers for a system call before it; returns the result of the call.
    Signals of other processes meanwhile are lost. Raises: _Ended; OSError."""
    _set_registers(task, registers)
    while True:
        _ptrace(_CONTINUE, task, 0, 0)
        _, status = os.waitpid(task, _WALL)
        if not os.WIFSTOPPED(status):
            raise _Ended(status)
        if os.WSTOPSIG(status) == signal.SIGTRAP and not status >> 16:
            value = _registers(task, machine)[machine.result]
            return value - 2**64 if value >= 2**63 else value


def _arrive(task: int, machine: _Machine, registers: Sequence[int]) -> None:
    """Runs a process to the breakpoint: the end of the call that executed its program writes into a register."""
    changed = list(registers)
    changed[machine.at] += len(machine.call)
    _called(task, machine, changed)


def _exchanged(task: int, address: int, content: bytes) -> bytes:
    """Writes into the memory of a stopped process; returns what was there."""
    padded_bytes = (len(content) + 7) // 8 * 8
    words = [_peek(task, address + offset) for offset in range(0, padded_bytes, 8)]
    before = struct.pack(f"={len(words)}Q", *words)
    after = content + before[len(content) :]
    for offset, (word,) in zip(range(0, padded_bytes, 8), struct.iter_unpack("=Q", after), strict=True):
        _ptrace(_POKE, task, address + offset, word)
    return before


def _peek(task: int, address: int) -> int:
    ctypes.set_errno(0)
    value = int(_libc.ptrace(_PEEK, task, address, 0))
    if value == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), "ptrace")
    return value & (2**64 - 1)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _registers(task: int, machine: _Machine) -> list[int]:
    values = (ctypes.c_uint64 * machine.size)()
    vector = _Vector(ctypes.addressof(values), ctypes.sizeof(values))
    _ptrace(_GET_REGISTERS, task, 1, ctypes.addressof(vector))
    return list(values)


def _set_registers(task: int, registers: Sequence[int]) -> None:
    values = (ctypes.c_uint64 * len(registers))(*registers)
    vector = _Vector(ctypes.addressof(values), ctypes.sizeof(values))
    _ptrace(_SET_REGISTERS, task, 1, ctypes.addressof(vector))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def _ptrace(request: int, task: int, address: int, data: int) -> None:
    if _libc.ptrace(request, task, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def landlock_version() -> int:
    """Returns the version of the kernel's Landlock interface; 0 without Landlock."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))))
