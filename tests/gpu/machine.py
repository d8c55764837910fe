"""Facts about the machine and the installed releases, for a report."""

import os
import platform
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
import torch

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")


def facts(device: torch.device) -> Iterator[tuple[str, str]]:
    """Returns names and values."""
    commit = _output("git", "rev-parse", "HEAD") or "unknown"
    yield "commit", commit + (" with local changes" if _output("git", "status", "--porcelain") else "")
    yield "device", _device_name(device)
    if device.type == "cuda":
        yield "driver", _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "unknown"
        yield "CUDA of torch", str(torch.version.cuda)
        yield "device memory", f"{torch.cuda.get_device_properties(device).total_memory / 2**30:.0f} GiB"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    yield "host", f"{_cpu_name()}, {os.cpu_count()} cores, load average at the start {load}"
    yield "host memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    yield "Python", platform.python_version()
    for name in PACKAGES:
        yield name, _release(name)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (small sizes: no figure of a GPU)"


def _release(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
