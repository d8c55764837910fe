"""Programs that try to leave the sandbox, with what each must not reach.

`python -m tests.sandbox.probes LEVEL` runs all of them as the calling user and prints a JSON object: the name of each
probe and whether it was contained.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow.sandbox.base import Job, JobLimits, JobResult, Outcome
from astraflow.sandbox.local import LocalSandbox
from astraflow.sandbox.options import LocalSandboxOptions

LIMITS = JobLimits(wall_s=20.0, cpu_s=1.0, memory_bytes=200 * 2**20, output_bytes=10_000, processes=8)
DISK_BYTES = 16 * 2**20


def says_blocked(result: JobResult) -> bool:
    """Returns whether the program ran to its end and every attempt was refused."""
    return result.outcome is Outcome.PASSED and result.stdout == "blocked\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One attempt. `target`, which holds `pid`, `port`, `secret`, `socket` and `abstract`, is defined in it."""

    source: str
    is_contained: Callable[[JobResult], bool] = says_blocked


_HEAD = """
import ctypes, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(*attempts):
    for number, attempt in enumerate(attempts):
        try:
            value = attempt()
        except OSError:
            continue
        print('leak', number, value)
        return
    print('blocked')
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as client:
        client.settimeout(1)
        client.connect(address)
        client.send(b'x')
"""


def _ran_out(*outcomes: Outcome) -> Callable[[JobResult], bool]:
    return lambda result: result.outcome in outcomes


PROBES = {
    "passwords": Probe(source="refused(lambda: open('/etc/shadow').read(), lambda: os.listdir('/root'))"),
    "files of the host": Probe(source="refused(lambda: open(target['secret']).read(), lambda: os.listdir('/home'))"),
    "links to files": Probe(
        source="os.symlink(target['secret'], 'link'); os.symlink('/', 'all')\n"
        "refused(lambda: open('link').read(), lambda: open('all' + target['secret']).read(),\n"
        "        lambda: os.link('/etc/shadow', 'hard') or open('hard').read())"
    ),
    "writing elsewhere": Probe(
        source="refused(*(lambda path=path: open(path + '/sandbox-left', 'w')\n"
        "    for path in ('/', '/usr', '/etc', '/var/tmp', '/run', '/dev', '/proc/self')))"
    ),
    "TCP": Probe(source="refused(lambda: connect(socket.AF_INET, ('127.0.0.1', target['port'])))"),
    "UDP and names": Probe(
        source="refused(lambda: connect(socket.AF_INET, ('192.0.2.1', 53), socket.SOCK_DGRAM),\n"
        "        lambda: socket.getaddrinfo('example.org', 80))"
    ),
    "unix sockets": Probe(
        source="refused(lambda: connect(socket.AF_UNIX, target['socket']),\n"
        "        lambda: connect(socket.AF_UNIX, target['abstract']))"
    ),
    "other socket families": Probe(
        source="refused(*(lambda family=family: socket.socket(family, socket.SOCK_RAW) for family in (16, 17)),\n"
        "        *(lambda family=family: socket.socket(family, socket.SOCK_STREAM) for family in (38, 40)))"
    ),
    "signals to the host": Probe(source="refused(lambda: os.kill(target['pid'], 0))"),
    "killing the job reaper": Probe(
        source="for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):\n"
        "    try: os.kill(os.getppid(), number)\n    except OSError: pass\nprint('blocked')"
    ),
    "ptrace": Probe(
        source="refused(*(lambda pid=pid: call('ptrace', 16, pid, 0, 0) for pid in (os.getppid(), target['pid'])))"
    ),
    "memory of processes": Probe(
        source="refused(*(lambda path=path: open(path, 'rb').read(1) for pid in (1, os.getppid(), target['pid'])\n"
        "    if pid != os.getpid() for path in (f'/proc/{pid}/mem', f'/proc/{pid}/environ', f'/proc/{pid}/fd/0')))"
    ),
    "secrets in the environment": Probe(source="print('leak' if 'PROBE_SECRET' in os.environ else 'blocked')"),
    "fork bomb": Probe(
        source="import time\ncount = 0\ntry:\n    while count < 40:\n        if os.fork() == 0: time.sleep(60)\n"
        "        count += 1\nexcept OSError: pass\nprint('blocked' if count <= 8 else count)"
    ),
    "memory of one process": Probe(source="block = bytearray(2**31)", is_contained=_ran_out(Outcome.MEMORY)),
    "memory of several processes": Probe(
        source="import time\nfor _ in range(3):\n    if os.fork() == 0: break\nblock = b'x' * (150 * 2**20)\n"
        "time.sleep(60)",
        is_contained=_ran_out(Outcome.MEMORY),
    ),
    "memory without limits": Probe(
        source="refused(lambda: call('syscall', 319, b'x', 0), lambda: call('shmget', 0, 2**20, 0o1600))"
    ),
    "disk": Probe(
        source="import time\nfor number in range(8):\n"
        "    with open(str(number), 'wb') as file: file.write(bytes(2**22))\ntime.sleep(60)",
        is_contained=_ran_out(Outcome.CRASHED, Outcome.FAILED),
    ),
    "mounts and namespaces": Probe(
        source="refused(lambda: call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None), lambda: os.chroot('.'),\n"
        "    *(lambda flag=flag: call('unshare', flag) for flag in (0x10000000, 0x20000)),\n"
        "    lambda: call('umount2', b'/', 2))"
    ),
    "keys of the kernel": Probe(
        source="refused(lambda: call('syscall', 248, b'user', b'name', b'x', 1, -3),\n"
        "        lambda: call('syscall', 250, 0, -3, 0))"
    ),
    "kernel interfaces": Probe(
        source="buffer = ctypes.create_string_buffer(256)\n"
        "refused(*(lambda number=number: call('syscall', number, 0, buffer, 64, 0, 0)\n"
        "    for number in (321, 298, 323, 425)))"
    ),
    "privileges": Probe(source="refused(lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]))"),
    "raising limits": Probe(
        source="def rise(kind):\n    try: resource.setrlimit(kind, (2**50, 2**50))\n"
        "    except ValueError as problem: raise OSError from problem\n"
        "refused(*(lambda kind=kind: rise(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU,\n"
        "    resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)))"
    ),
    "flood of output": Probe(
        source="while True: os.write(1, b'x' * 65536)",
        is_contained=lambda result: (
            result.outcome is Outcome.TIMEOUT and result.is_output_cut and len(result.stdout) == LIMITS.output_bytes
        ),
    ),
    "endless loop": Probe(
        source="signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        is_contained=_ran_out(Outcome.TIMEOUT),
    ),
}


async def run_probes(level: str, names: Iterable[str] = PROBES) -> dict[str, bool]:
    """Runs probes at a level; returns for each whether it was contained."""
    sandbox = LocalSandbox(
        LocalSandboxOptions.model_validate({"level": level, "allow_weak": True, "workers": 1, "disk_bytes": DISK_BYTES})
    )
    with _targets() as target:
        try:
            await sandbox.start()
            if sandbox.level.value != level:
                raise AssertionError(f"{level} is not available: {sandbox.reasons}")
            sources = [f"{_HEAD}\ntarget = {target!r}\n{PROBES[name].source}\n" for name in names]
            results = await asyncio.gather(
                *(sandbox.run(Job(source=source, limits=LIMITS)) for source in sources), return_exceptions=True
            )
        finally:
            await sandbox.close()
    contained = {}
    for name, result in zip(names, results, strict=True):
        contained[name] = isinstance(result, JobResult) and PROBES[name].is_contained(result)
        if not contained[name]:
            sys.stderr.write(f"{level}, {name}: {result}\n")
    return contained


@contextmanager
def _targets() -> Iterator[dict[str, object]]:
    """Things of the host that every user may reach, for the probes."""
    os.environ["PROBE_SECRET"] = "secret"
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket() as server,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        Path(folder).chmod(0o755)
        secret, path = Path(folder, "secret"), Path(folder, "socket")
        secret.write_text("secret")
        secret.chmod(0o644)
        server.bind(("127.0.0.1", 0))
        local.bind(str(path))
        path.chmod(0o777)
        abstract.bind(f"\0sandbox-probe-{os.getpid()}")
        for listener in (server, local, abstract):
            listener.listen()
        yield {
            "pid": os.getpid(),
            "port": server.getsockname()[1],
            "secret": str(secret),
            "socket": str(path),
            "abstract": f"\0sandbox-probe-{os.getpid()}",
        }


if __name__ == "__main__":
    json.dump(asyncio.run(run_probes(sys.argv[1])), sys.stdout)
