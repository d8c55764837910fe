"""Facts about this machine, and whether it can run the release of an engine."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from astraflow.raas.engines.server.installation.releases import CPU, CUDA, EngineRelease
from astraflow.weights.shared_memory import MEMORY_FOLDER

_MIN_SHARED_BYTES = 256 * 2**20
"""Free shared memory that a small model needs; a container has 64 MiB by default."""
_SMI_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver reports it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Facts about a machine that decide which engines it can run."""

    system: str
    """`Linux`, ..."""
    machine: str
    """Instruction set, such as `x86_64`."""
    cpu_flags: frozenset[str]
    """Extensions of the instruction set, such as `avx2`; empty when unknown."""
    memory_bytes: int
    """Available memory."""
    shared_bytes: int
    """Free space in shared memory, where weights are staged."""
    python: tuple[int, int]
    """Release of this interpreter."""
    gpus: tuple[Gpu, ...]
    driver: str
    """Version of the NVIDIA driver; empty without one."""


def this_host() -> Host:
    """Returns the facts about this machine."""
    gpus, driver = _nvidia_gpus()
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        cpu_flags=_cpu_flags(),
        memory_bytes=psutil.virtual_memory().available,
        shared_bytes=psutil.disk_usage(str(MEMORY_FOLDER)).free if MEMORY_FOLDER.is_dir() else 0,
        python=sys.version_info[:2],
        gpus=gpus,
        driver=driver,
    )


def default_device(host: Host) -> str:
    """Returns `cuda` for a machine with a GPU, otherwise `cpu`."""
    return CUDA if host.gpus else CPU


def obstacles(release: EngineRelease, host: Host) -> list[str]:
    """Returns the reasons why this machine cannot run a release; empty if it can.

    The Python release is not among them: another interpreter may be installed (`find_python`).
    """
    reasons = []
    if host.system != "Linux":
        reasons.append(f"it needs Linux, this is {host.system}")
    if release.device == CPU:
        if host.machine != "x86_64":
            reasons.append(f"its packages are pinned for x86_64, this is {host.machine}")
        elif host.cpu_flags and "avx2" not in host.cpu_flags:
            reasons.append("it needs a CPU with AVX2")
        if host.memory_bytes < release.memory_bytes:
            reasons.append(
                f"a server takes {release.memory_bytes / 1e9:.1f} GB of memory, {host.memory_bytes / 1e9:.1f} are free"
            )
    elif not host.gpus:
        reasons.append("no NVIDIA GPU: nvidia-smi is missing or lists none")
    if host.shared_bytes < _MIN_SHARED_BYTES:
        reasons.append(
            f"{MEMORY_FOLDER} has {host.shared_bytes / 2**20:.0f} MiB free for staged weights "
            "(a container: --shm-size=2g)"
        )
    return reasons


def parse_smi(lines: Sequence[str]) -> tuple[tuple[Gpu, ...], str]:
    """Returns GPUs and driver version from `name, driver_version, memory.total` in MiB; other lines are left out.

    >>> parse_smi(["NVIDIA H100 80GB HBM3, 580.82.07, 81559"])
    ((Gpu(name='NVIDIA H100 80GB HBM3', memory_bytes=85520809984),), '580.82.07')
    """
    gpus, driver = [], ""
    for line in lines:
        name, _, rest = line.partition(", ")
        version, _, memory = rest.partition(", ")
        if memory.strip().isdecimal():
            gpus.append(Gpu(name=name.strip(), memory_bytes=int(memory) * 2**20))
            driver = version.strip()
    return tuple(gpus), driver


def _nvidia_gpus() -> tuple[tuple[Gpu, ...], str]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)  # noqa: S603 (fixed)
    except (OSError, subprocess.SubprocessError):
        return (), ""
    return parse_smi(done.stdout.splitlines())


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())
