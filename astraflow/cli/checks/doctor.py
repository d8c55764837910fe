"""Checks of this machine: available resources and missing software."""

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
from rich.table import Table
from rich.text import Text

from astraflow.cli.ports import free_ports
from astraflow.contract.errors import AstraFlowError
from astraflow.raas.engines.server.environments import Environment, installed_environments
from astraflow.raas.engines.server.installation.host import Host, default_device, obstacles, this_host
from astraflow.raas.engines.server.installation.installer import missing_software
from astraflow.raas.engines.server.installation.releases import find_release, server_kinds
from astraflow.runtime.folders.run_folders import home
from astraflow.sandbox.local import probe
from astraflow.weights.shared_memory import MEMORY_FOLDER

_MIN_MEMORY_BYTES = 2 * 10**9
_MIN_DISK_BYTES = 10**9
_MIN_SHARED_BYTES = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    subject: str
    is_ok: bool
    is_required: bool
    """True if nothing runs without it; otherwise only the feature named in `message`."""
    message: str


def run_checks() -> list[Finding]:
    """Runs all checks."""
    checks: tuple[Callable[[], Finding], ...] = (
        _python, _cores, _memory, _disk, _shared_memory, _ports, _services, _torch, _codec, _gpu, _chromium, _sandbox,
    )  # fmt: skip
    return [*(check() for check in checks), *engine_findings(this_host(), installed_environments())]


def engine_findings(host: Host, environments: Sequence[Environment]) -> list[Finding]:
    """Returns for each server program the environments that have it, or how to install it, or why it cannot run."""
    findings = []
    for kind in server_kinds():
        installed = [environment for environment in environments if environment.kind == kind]
        release = find_release(kind, default_device(host))
        reasons = [*obstacles(release, host), *missing_software(release)]
        if installed:
            message = ", ".join(
                f"{installation.name} ({installation.version}, {installation.device})" for installation in installed
            )
        elif reasons:
            message = f"cannot run on this machine: {'; '.join(reasons)}"
        else:
            size = f"{release.size_bytes / 1e9:.1f} GB"
            message = f"{release.version} can run ({release.device}, {size}): astraflow engines install {kind}"
        problem = f"; now: {'; '.join(reasons)}" if installed and reasons else ""
        is_ok = bool(installed) and not reasons
        findings.append(
            Finding(subject=f"engine {kind}", is_ok=is_ok, is_required=False, message=f"{message}{problem}")
        )
    return findings


def table(findings: list[Finding]) -> Table:
    """Returns the findings as a table."""
    result = Table("", "check", "result", box=None)
    for finding in findings:
        result.add_row(_mark(finding), finding.subject, Text(finding.message))
    return result


def _mark(finding: Finding) -> Text:
    if finding.is_ok:
        return Text("ok", style="green")
    return Text("missing", style="red") if finding.is_required else Text("absent", style="yellow")


def _python() -> Finding:
    release = ".".join(str(part) for part in sys.version_info[:3])
    is_sufficient = sys.version_info >= (3, 11)
    return Finding(
        subject="Python",
        is_ok=is_sufficient,
        is_required=True,
        message=release if is_sufficient else f"{release}; AstraFlow needs 3.11 or newer",
    )


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(
        subject="cores",
        is_ok=count >= 2,
        is_required=False,
        message=str(count) if count >= 2 else "1; the demo takes about twice as long",
    )


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    is_sufficient = available >= _MIN_MEMORY_BYTES
    hint = "" if is_sufficient else "; the demo needs about 2 GB, `recipes/smoke` less"
    return Finding(
        subject="memory", is_ok=is_sufficient, is_required=False, message=f"{available / 1e9:.1f} GB free{hint}"
    )


def _disk() -> Finding:
    folder = next(path for path in (home(), *home().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    is_writable = os.access(folder, os.W_OK)
    is_sufficient = is_writable and free >= _MIN_DISK_BYTES
    hint = "" if is_sufficient else "; set ASTRAFLOW_HOME to a writable folder with 1 GB of free space"
    return Finding(
        subject="disk", is_ok=is_sufficient, is_required=True, message=f"{free / 1e9:.1f} GB free for {home()}{hint}"
    )


def _shared_memory() -> Finding:
    if not MEMORY_FOLDER.is_dir():
        return Finding(
            subject="shared memory", is_ok=False, is_required=False, message=f"{MEMORY_FOLDER} is missing: no weights"
        )
    free = psutil.disk_usage(str(MEMORY_FOLDER)).free
    is_sufficient = free >= _MIN_SHARED_BYTES
    hint = "" if is_sufficient else "; it holds the weights: in a container, set --shm-size=2g"
    return Finding(
        subject="shared memory", is_ok=is_sufficient, is_required=False, message=f"{free / 1e9:.1f} GB free{hint}"
    )


def _ports() -> Finding:
    try:
        free_ports(3)
    except (AstraFlowError, OSError) as problem:
        return Finding(subject="ports", is_ok=False, is_required=True, message=f"cannot listen on loopback: {problem}")
    return Finding(subject="ports", is_ok=True, is_required=True, message="can listen on loopback")


def _services() -> Finding:
    """Returns whether a run can have its page, its metrics, a fleet service and agents here."""
    packages = ("aiohttp", "fastapi", "httpx2", "prometheus_client", "sqlmodel")
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    message = (
        f"{', '.join(absent)} not installed, so this machine runs single services only: pip install 'astraflow[local]'"
    )
    return Finding(subject="services", is_ok=not absent, is_required=False, message=message if absent else "all")


def _torch() -> Finding:
    absent = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
    if absent:
        message = f"{', '.join(absent)} not installed, only `recipes/smoke` runs: pip install 'astraflow[train]'"
        return Finding(subject="training", is_ok=False, is_required=False, message=message)
    import torch

    return Finding(subject="training", is_ok=True, is_required=False, message=f"torch {torch.__version__}")


def _codec() -> Finding:
    is_compiled = importlib.util.find_spec("numba") is not None
    message = (
        "compiled"
        if is_compiled
        else "numpy, sufficient for small models; for the compiled codec: pip install 'astraflow[compiled]'"
    )
    return Finding(subject="weight codec", is_ok=is_compiled, is_required=False, message=message)


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(subject="GPU", is_ok=False, is_required=False, message="not checked: torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return Finding(subject="GPU", is_ok=False, is_required=False, message="none; small models train on the CPU")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding(subject="GPU", is_ok=True, is_required=False, message=", ".join(names))


def _chromium() -> Finding:
    path = shutil.which("chromium-headless-shell")
    return Finding(
        subject="Chromium",
        is_ok=path is not None,
        is_required=False,
        message=path or "required only by the browser tests: apt-get install chromium-headless-shell",
    )


def _sandbox() -> Finding:
    """Returns the isolation that the sandbox `local` has here, and why no stronger one."""
    try:
        level, reasons = asyncio.run(probe())
    except AstraFlowError as problem:
        message = f"no rewards and tools that run generated code: {problem}"
        return Finding(subject="sandbox", is_ok=False, is_required=False, message=message)
    weaker = "".join(f"; not {stronger.value}: {reason}" for stronger, reason in reasons.items())
    return Finding(
        subject="sandbox", is_ok=not reasons, is_required=False, message=f"isolation by {level.value}{weaker}"
    )
