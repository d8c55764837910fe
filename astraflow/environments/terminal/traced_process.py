"""Registers, memory and system calls of a process that this one traces.

Sent as source with the supervisor: standard library of Python 3.10, and nothing else.
"""

import ctypes
import os
import signal
import struct
from collections.abc import Sequence
from dataclasses import dataclass

WAIT_ALL = 0x40000000
"""Flag of `waitpid` for threads, too."""
CREATE_RULESET = 444
_PEEK, _POKE, _CONTINUE, _GET_REGISTERS, _SET_REGISTERS = 1, 4, 7, 0x4204, 0x4205


@dataclass(frozen=True)
class Machine:
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


MACHINES = {
    "x86_64": Machine(
        size=27, calls=(257, 3, 157, 292), number=10, result=10, arguments=(14, 13, 12, 7, 9), at=16, stack=19,
        repeated=15, call=b"\x0f\x05", trap=b"\xcc",
    ),
    "aarch64": Machine(
        size=34, calls=(56, 57, 167, 24), number=8, result=0, arguments=(0, 1, 2, 3, 4), at=32, stack=31, repeated=None,
        call=b"\x01\x00\x00\xd4", trap=b"\x00\x00\x20\xd4",
    ),
}  # fmt: skip


class Ended(Exception):
    """A process ended while it was being confined."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def checked(result: int) -> int:
    """Returns the result of a system call. Raises: OSError for that of a failure."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def called(task: int, machine: Machine, registers: Sequence[int]) -> int:
    """Runs a process until a breakpoint, with registers for a system call before it; returns the result of the call.
    Signals of other processes meanwhile are lost. Raises: Ended; OSError."""
    set_registers(task, registers)
    while True:
        ptrace(_CONTINUE, task, 0, 0)
        _, status = os.waitpid(task, WAIT_ALL)
        if not os.WIFSTOPPED(status):
            raise Ended(status)
        if os.WSTOPSIG(status) == signal.SIGTRAP and not status >> 16:
            value = registers_of(task, machine)[machine.result]
            return value - 2**64 if value >= 2**63 else value


def arrive(task: int, machine: Machine, registers: Sequence[int]) -> None:
    """Runs a process to the breakpoint: the end of the call that executed its program writes into a register."""
    changed = list(registers)
    changed[machine.at] += len(machine.call)
    called(task, machine, changed)


def exchanged(task: int, address: int, content: bytes) -> bytes:
    """Writes into the memory of a stopped process; returns what was there."""
    padded_bytes = (len(content) + 7) // 8 * 8
    words = [_peek(task, address + offset) for offset in range(0, padded_bytes, 8)]
    before = struct.pack(f"={len(words)}Q", *words)
    after = content + before[len(content) :]
    for offset, (word,) in zip(range(0, padded_bytes, 8), struct.iter_unpack("=Q", after), strict=True):
        ptrace(_POKE, task, address + offset, word)
    return before


def _peek(task: int, address: int) -> int:
    ctypes.set_errno(0)
    value = int(_libc.ptrace(_PEEK, task, address, 0))
    if value == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), "ptrace")
    return value & (2**64 - 1)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def registers_of(task: int, machine: Machine) -> list[int]:
    """Returns the registers of a stopped process. Raises: OSError."""
    values = (ctypes.c_uint64 * machine.size)()
    vector = _Vector(ctypes.addressof(values), ctypes.sizeof(values))
    ptrace(_GET_REGISTERS, task, 1, ctypes.addressof(vector))
    return list(values)


def set_registers(task: int, registers: Sequence[int]) -> None:
    """Writes the registers of a stopped process. Raises: OSError."""
    values = (ctypes.c_uint64 * len(registers))(*registers)
    vector = _Vector(ctypes.addressof(values), ctypes.sizeof(values))
    ptrace(_SET_REGISTERS, task, 1, ctypes.addressof(vector))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def ptrace(request: int, task: int, address: int, data: int) -> None:
    """Makes a request that returns nothing. Raises: OSError."""
    if _libc.ptrace(request, task, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def landlock_version() -> int:
    """Returns the version of the kernel's Landlock interface; 0 without Landlock."""
    return max(0, int(_libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))))
