"""What this machine can run, and what is missing."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from rich.table import Table
from rich.text import Text

from astraflow.cli.ports import free_ports
from astraflow.contract.errors import AstraFlowError
from astraflow.runtime.home import home

_MIN_MEMORY_BYTES = 2 * 10**9
_MIN_DISK_BYTES = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    is_good: bool
    is_needed: bool
    """Without it nothing runs; otherwise only what `message` names."""
    message: str


def examine() -> list[Finding]:
    """Look at everything."""
    looks: tuple[Callable[[], Finding], ...] = (
        _python, _cores, _memory, _disk, _ports, _torch, _codec, _gpu, _chromium, _bubblewrap,
    )  # fmt: skip
    return [look() for look in looks]


def table(findings: list[Finding]) -> Table:
    """Findings for people."""
    result = Table("", "what", "found", box=None)
    for finding in findings:
        result.add_row(_mark(finding), finding.what, Text(finding.message))
    return result


def _mark(finding: Finding) -> Text:
    if finding.is_good:
        return Text("ok", style="green")
    return Text("missing", style="red") if finding.is_needed else Text("absent", style="yellow")


def _python() -> Finding:
    release = ".".join(str(part) for part in sys.version_info[:3])
    is_good = sys.version_info >= (3, 11)
    return Finding(
        what="Python",
        is_good=is_good,
        is_needed=True,
        message=release if is_good else f"{release}: needs 3.11 or newer",
    )


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(
        what="cores",
        is_good=count >= 2,
        is_needed=False,
        message=str(count) if count >= 2 else "1: the demo learns, but takes about twice as long",
    )


def _memory() -> Finding:
    available = psutil.virtual_memory().available
    is_good = available >= _MIN_MEMORY_BYTES
    hint = "" if is_good else ": the demo needs about 2 GB, `recipes/smoke` less"
    return Finding(what="memory", is_good=is_good, is_needed=False, message=f"{available / 1e9:.1f} GB free{hint}")


def _disk() -> Finding:
    place = next(path for path in (home(), *home().parents) if path.exists())
    free = shutil.disk_usage(place).free
    is_writable = os.access(place, os.W_OK)
    is_good = is_writable and free >= _MIN_DISK_BYTES
    hint = "" if is_good else ": set ASTRAFLOW_HOME to a place that can be written and has 1 GB"
    return Finding(what="disk", is_good=is_good, is_needed=True, message=f"{free / 1e9:.1f} GB free for {home()}{hint}")


def _ports() -> Finding:
    try:
        free_ports(3)
    except (AstraFlowError, OSError) as problem:
        return Finding(what="ports", is_good=False, is_needed=True, message=f"no listening on loopback: {problem}")
    return Finding(what="ports", is_good=True, is_needed=True, message="loopback can be listened on")


def _torch() -> Finding:
    absent = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
    if absent:
        message = f"without {', '.join(absent)} only `recipes/smoke` runs: pip install 'astraflow[train]'"
        return Finding(what="training", is_good=False, is_needed=False, message=message)
    import torch

    return Finding(what="training", is_good=True, is_needed=False, message=f"torch {torch.__version__}")


def _codec() -> Finding:
    is_good = importlib.util.find_spec("numba") is not None
    message = "compiled" if is_good else "numpy, good for small models: pip install 'astraflow[compiled]'"
    return Finding(what="weight codec", is_good=is_good, is_needed=False, message=message)


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(what="GPU", is_good=False, is_needed=False, message="not looked for: torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return Finding(what="GPU", is_good=False, is_needed=False, message="none: tiny models train on the CPU")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding(what="GPU", is_good=True, is_needed=False, message=", ".join(names))


def _chromium() -> Finding:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return Finding(
        what="Chromium",
        is_good=found is not None,
        is_needed=False,
        message=found or "only the browser tests need it: apt-get install chromium",
    )


def _bubblewrap() -> Finding:
    found = shutil.which("bwrap")
    return Finding(
        what="bubblewrap",
        is_good=found is not None,
        is_needed=False,
        message=found or "only rewards that run generated code need it: apt-get install bubblewrap",
    )
