"""System call filter of jobs: a BPF program that refuses what no program under test needs."""

import errno
import platform
import struct
from collections.abc import Iterable

# Numbers on x86_64 and aarch64; -1: the call does not exist there.
_REFUSED = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # keys of the kernel
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # large parts of the kernel that are often attacked
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "modify_ldt": (154, -1), "personality": (135, 92),
    "fanotify_init": (300, 262), "lookup_dcookie": (212, 18), "uselib": (134, -1),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "vhangup": (153, 58), "iopl": (172, -1), "ioperm": (173, -1),
    # memory that outlives a process, or that no limit counts
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}  # fmt: skip

_WITHOUT_NAMESPACES = {"setsid": (112, 157), "setpgid": (109, 154)}
"""Refused where a process group is all that holds the processes of a job together."""

_SIGNALS = {
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}  # fmt: skip
"""Refused where neither a namespace nor Landlock limits signals; `kill` and `tgkill` reach the process itself."""

_CLONE, _CLONE3, _SOCKET, _IOCTL, _KILL, _TGKILL = (56, 220), (435, 435), (41, 198), (16, 29), (62, 129), (234, 131)
_NEW_NAMESPACES = 0x7E020000
_INPUT_IOCTLS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which write into a terminal's input."""
LOCAL_SOCKETS = (1, 2, 10)
"""Unix, IPv4 and IPv6: harmless in an empty network namespace."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def is_known_machine() -> bool:
    """Returns whether filters can be built for this processor."""
    return platform.machine() in _ARCHITECTURES


def filter_program(
    *, socket_families: Iterable[int], has_namespaces: bool, own_pid: int | None = None, may_trace: bool = False
) -> bytes:
    """Returns the filter.

    socket_families: address families for `socket`; pairs of connected sockets are always allowed. has_namespaces: the
    job has a process namespace. own_pid: the only process that signals may reach; None: the kernel limits them already.
    may_trace: `ptrace` is allowed.
    """
    column, architecture = _ARCHITECTURES[platform.machine()]
    refused = dict(_REFUSED) if has_namespaces else _REFUSED | _WITHOUT_NAMESPACES
    refused |= _SIGNALS if own_pid is not None else {}
    program = [_step(_LOAD, 4), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _KILL_PROCESS), _step(_LOAD, 0)]
    program += [_step(_AT_LEAST, 0x40000000, 0, 1), _refusal(errno.ENOSYS)]
    for name, numbers in refused.items():
        if numbers[column] >= 0 and not (may_trace and name == "ptrace"):
            program += [_step(_EQUAL, numbers[column], 0, 1), _refusal()]
    program += [_step(_EQUAL, _CLONE3[column], 0, 1), _refusal(errno.ENOSYS)]  # the C library then uses clone
    program += _checked(_CLONE[column], 0, [_step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refusal()])
    program += _checked(_IOCTL[column], 1, _refused_values(_INPUT_IOCTLS))
    program += _checked(_SOCKET[column], 0, _allowed_values(socket_families))
    if own_pid is not None:
        program += _checked(_KILL[column], 0, _allowed_values((own_pid, 0)))
        program += _checked(_TGKILL[column], 0, _allowed_values((own_pid,)))
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _checked(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Returns steps that apply `checks` to an argument of a call; a call that passes them is allowed."""
    body = [_step(_LOAD, 16 + 8 * argument), *checks, _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(body)), *body]


def _refused_values(values: Iterable[int]) -> list[bytes]:
    return [step for value in values for step in (_step(_EQUAL, value, 0, 1), _refusal())]


def _allowed_values(values: Iterable[int]) -> list[bytes]:
    return [*(step for value in values for step in (_step(_EQUAL, value, 0, 1), _step(_RETURN, _ALLOW))), _refusal()]


def _refusal(number: int = errno.EPERM) -> bytes:
    return _step(_RETURN, _ERROR | number)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
