"""Tests of what the launcher changes in the processes of vLLM, without vLLM."""

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from astraflow.raas.engines.server import vllm

LAUNCHER = Path(vllm.__file__).parent / "in_server" / "astraflow_vllm.py"
BROADCAST = "vllm.distributed.device_communicators.shm_broadcast"


@pytest.fixture
def broadcast(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in place of vLLM's, which waits by yielding the processor."""
    parts = BROADCAST.split(".")
    modules = [ModuleType(".".join(parts[: count + 1])) for count in range(len(parts))]
    for parent, module in zip([None, *modules], modules, strict=False):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if parent is not None:
            setattr(parent, module.__name__.rpartition(".")[2], module)
    modules[-1].sched_yield = os.sched_yield  # type: ignore[attr-defined]
    monkeypatch.syspath_prepend(LAUNCHER.parent)
    return modules[-1]


def test_processes_on_a_cpu_sleep_between_looks(broadcast: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setenv("ASTRAFLOW_SLEEPING_WAITS", "1")
    wait_s = runpy.run_path(str(LAUNCHER), run_name="astraflow_vllm")["WAIT_S"]
    broadcast.sched_yield()
    assert slept == [wait_s]


def test_processes_beside_a_gpu_are_unchanged(broadcast: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_SLEEPING_WAITS", raising=False)
    runpy.run_path(str(LAUNCHER), run_name="astraflow_vllm")
    assert broadcast.sched_yield is os.sched_yield
