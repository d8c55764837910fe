"""Processor, memory and GPUs of a process: read where they exist, left out where they do not."""

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from astraflow.contract.node_metrics import NODE_GAUGES, SYSTEM_GAUGES
from astraflow.raas.counters import NodeCounters
from astraflow.runtime import system_metrics
from astraflow.runtime.system_metrics import Gpus, SystemMeter, SystemMonitor
from tests.fakes.clock import ManualClock

GIB = 2**30


class NvmlError(Exception):
    """Error of the fake library."""


class Nvml(ModuleType):
    """Library of a machine with three GPUs, of which the last one reports no utilization."""

    NVMLError = NvmlError

    def __init__(self, *, is_working: bool = True) -> None:
        super().__init__("pynvml")
        self.is_working = is_working

    def nvmlInit(self) -> None:
        """Fails when the driver does not work."""
        if not self.is_working:
            raise NvmlError("driver not loaded")

    def nvmlDeviceGetCount(self) -> int:
        """Returns the number of GPUs."""
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        """Returns the index."""
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        """Returns the index at the end of the name."""
        return int(name[-1])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        """Returns one GiB for each GPU before this one, and one for itself."""
        return SimpleNamespace(used=(handle + 1) * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        """Returns 20 and 40 per cent; fails for the last GPU."""
        if handle == 2:
            raise NvmlError("not supported")
        return SimpleNamespace(gpu=20 * (handle + 1))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file of an installed driver."""
    file = tmp_path / "version"
    file.write_text("NVRM version")
    monkeypatch.setattr(system_metrics, "NVIDIA_DRIVER", file)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return file


@pytest.mark.parametrize(
    ("visible", "used_gib", "utilization"),
    [(None, 6, 0.3), ("1", 2, 0.4), ("0, 2", 4, 0.2), ("GPU-abc-1", 2, 0.4), ("2", 3, None), ("", None, None)],
)
def test_the_gpus_of_the_process_are_read(
    driver: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, used_gib: int | None, utilization: float | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    figures = Gpus().read()

    assert figures.get("gpu_memory") == (None if used_gib is None else used_gib * GIB)
    assert figures.get("gpu_utilization") == (None if utilization is None else pytest.approx(utilization))


def test_without_a_driver_the_library_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_metrics, "NVIDIA_DRIVER", tmp_path / "absent")
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    assert Gpus().read() == {}


def test_without_the_package_or_a_working_driver_there_are_no_figures(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus().read() == {}
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(is_working=False))
    assert Gpus().read() == {}


def test_processor_and_memory_are_those_of_the_process_and_its_descendants() -> None:
    meter = SystemMeter()
    before_s = sum(os.times()[:4])
    while sum(os.times()[:4]) - before_s < 0.05:
        sum(range(10_000))
    alone = meter.read()
    with subprocess.Popen([sys.executable, "-c", "b = b'x' * 60 * 2**20; print(len(b), flush=True); input()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        together = meter.read()
        child.communicate(b"\n")

    assert 0 < alone["process_cpu"] <= 1
    assert alone["process_memory"] > 10 * 2**20
    assert together["process_memory"] - alone["process_memory"] > 30 * 2**20
    assert {*alone} <= {*SYSTEM_GAUGES} <= {*NODE_GAUGES}


@pytest.mark.anyio
async def test_a_monitor_sets_the_gauges_of_a_node_at_once() -> None:
    counters = NodeCounters()
    measured = asyncio.Event()

    def observe(figures: Any) -> None:
        counters.set_gauges(figures)
        measured.set()

    monitor = SystemMonitor(clock=ManualClock(), on_measured=observe)
    measuring = asyncio.create_task(monitor.run())
    await measured.wait()
    measuring.cancel()
    await asyncio.gather(measuring, return_exceptions=True)

    assert counters.gauges() == monitor.latest
    assert {"process_cpu", "process_memory"} <= counters.gauges().keys()
