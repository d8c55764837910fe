"""System calls that the standard library of Python 3.11 lacks."""

import ctypes
import os
import struct
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_RULE_PATH_BENEATH = 1
_LANDLOCK_TCP = 0b11
_LANDLOCK_SCOPES = 0b11
"""Signals and abstract sockets."""

READ_EXECUTE = 0b1101
"""Landlock rights: execute and read files, list directories."""
READ_WRITE_FILES = 0b0111
"""Landlock rights: execute, write and read files."""
ALL_BUT_DEVICES = 0b1111111111111 & ~(1 << 6) & ~(1 << 11)
"""Landlock rights of the first version, without creating devices."""
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15


def unshare(flags: int) -> None:
    """Moves this process, or its later children for `CLONE_NEWPID`, to new namespaces. Raises: OSError."""
    _call("unshare", ctypes.c_int(flags))


def enter_namespace(descriptor: int, flags: int) -> None:
    """Moves this process, or its later children for `CLONE_NEWPID`, to a namespace. Raises: OSError."""
    _call("setns", ctypes.c_int(descriptor), ctypes.c_int(flags))


def mount(kind: str, target: str, options: str = "", *, is_executable: bool = True) -> None:
    """Mounts a new file system of a kind. Raises: OSError."""
    flags = _MS_NOSUID | _MS_NODEV | (0 if is_executable else _MS_NOEXEC)
    _call("mount", kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def die_with_parent(signal: int) -> None:
    """Lets the kernel send `signal` to this process when its parent ends. Raises: OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants. Raises: OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def renounce_privileges() -> None:
    """Drops all capabilities for good. Raises: OSError."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", header, bytes(24))


def install_filter(program: bytes) -> None:
    """Installs a system call filter, a program of 8-byte BPF instructions. Raises: OSError."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)


def landlock_version() -> int:
    """Returns the version of the kernel's Landlock interface; 0 without Landlock."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def restrict_paths(rules: Sequence[tuple[str, int]], *, with_network: bool) -> None:
    """Limits this process and its descendants with Landlock to the given rights per path; absent paths are skipped.

    Signals and abstract sockets reach only processes with the same limits, from version 6 on. with_network: also
    refuses TCP, from version 4 on. Raises: OSError.
    """
    version = landlock_version()
    handled = 0b1111111111111 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled |= _IOCTL_DEVICE if version >= 5 else 0
    tcp = _LANDLOCK_TCP if with_network and version >= 4 else 0
    scopes = _LANDLOCK_SCOPES if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", handled, tcp, scopes)[:size]
    ruleset = _syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights, handled)
        _syscall(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int, handled: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if rights & 0b10:
            rights |= _REFER | _TRUNCATE | _IOCTL_DEVICE
        if not os.path.isdir(path):
            rights &= READ_WRITE_FILES | _TRUNCATE | _IOCTL_DEVICE
        rule = struct.pack("=Qi", rights & handled, descriptor)
        _syscall(
            _LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
            rule,
            ctypes.c_uint(0),
        )
    finally:
        os.close(descriptor)


def _prctl(option: int, *arguments: int | bytes) -> None:
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    _call("prctl", ctypes.c_int(option), *values, *[ctypes.c_ulong(0)] * (4 - len(values)))


def _syscall(number: int, *arguments: object) -> int:
    return _call("syscall", ctypes.c_long(number), *arguments)


def _call(name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
