"""CPU, memory and GPUs that a process and its descendants use, measured off the event loop."""

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic

log = get_logger()

EVERY_S = 5.0
"""Interval between two measurements: reading all processes of a machine takes some milliseconds. Seconds."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
"""File of the GPU driver; the library for its figures is not imported without it."""


class SystemMonitor:
    """Measures every few seconds until cancelled."""

    def __init__(self, *, clock: Clock, on_measured: Callable[[Mapping[str, float]], None] | None = None) -> None:
        """on_measured: called with each measurement."""
        self._clock = clock
        self._on_measured = on_measured
        self.latest: Mapping[str, float] = {}
        """Latest measurement, by the names of the node's gauges; empty before the first one."""

    async def run(self) -> None:
        """Measures until cancelled."""
        meter = await asyncio.to_thread(SystemMeter)

        async def measure() -> None:
            self.latest = await asyncio.to_thread(meter.read)
            if self._on_measured is not None:
                self._on_measured(self.latest)

        await periodic(measure, every_s=EVERY_S, clock=self._clock)


class SystemMeter:
    """Reads the figures of this process and its descendants, and of the GPUs that it may use. Its calls block."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._gpus = Gpus()
        self._read_at, (self._cpu_s, _) = time.monotonic(), self._usage()

    def read(self) -> dict[str, float]:
        """Returns the figures; the CPU's over the time since the previous call."""
        now, (cpu_s, memory_bytes) = time.monotonic(), self._usage()
        elapsed_s, used_s = now - self._read_at, max(0.0, cpu_s - self._cpu_s)
        self._read_at, self._cpu_s = now, cpu_s
        share = used_s / elapsed_s / len(os.sched_getaffinity(0)) if elapsed_s > 0 else 0.0
        return {"process_cpu": min(1.0, share), "process_memory": memory_bytes, **self._gpus.read()}

    def _usage(self) -> tuple[float, float]:
        """Returns CPU seconds and resident bytes of the processes. One that ends meanwhile is left out."""
        cpu_s = memory_bytes = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():
                cpu_s += sum(process.cpu_times()[:4])  # with those of ended children
                memory_bytes += process.memory_info().rss
        return cpu_s, memory_bytes


class Gpus:
    """GPUs that CUDA_VISIBLE_DEVICES names, or all; none without a driver or without the package `nvidia-ml-py`."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        if not NVIDIA_DRIVER.exists():
            return
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = [self._handle(name) for name in self._names()]
        except ModuleNotFoundError:
            log.info("gpu_metrics_off", reason="the package nvidia-ml-py is not installed")
        except self._nvml.NVMLError as problem:
            log.warning("gpu_metrics_off", reason=str(problem))
            self._handles = []

    def read(self) -> dict[str, float]:
        """Returns the mean utilization and the used bytes; without those that a device does not support."""
        used: list[float] = []
        shares: list[float] = []
        for handle in self._handles:
            with suppress(self._nvml.NVMLError):
                used.append(float(self._nvml.nvmlDeviceGetMemoryInfo(handle).used))
            with suppress(self._nvml.NVMLError):
                shares.append(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        memory = {"gpu_memory": sum(used)} if used else {}
        return {**memory, **({"gpu_utilization": sum(shares) / len(shares)} if shares else {})}

    def _names(self) -> list[str]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]

    def _handle(self, name: str) -> Any:
        if name.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
