"""Durations of the parts of a training step, without waiting for the device."""

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class PhaseTimer:
    """Sums of the durations of named phases; a phase may be part of another one.

    On a GPU, events measure the phases, so that the host does not wait for the device; elsewhere the clock does.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the body of the `with` statement as a phase."""
        if not self._is_gpu:
            began = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - began
            return
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._events.append((name, first, last))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measures the functions marked with `timed` while the body runs. The timer belongs to the process, not to the
        thread: a process runs one step at a time, but autograd may run the backward pass in another thread."""
        _running.append(self)
        try:
            yield
        finally:
            _running.remove(self)

    def seconds(self) -> Mapping[str, float]:
        """Returns the seconds by phase, after waiting for the device."""
        for name, first, last in self._events:
            last.synchronize()
            self._seconds[name] += first.elapsed_time(last) / 1000
        self._events.clear()
        return self._seconds


_running: list[PhaseTimer] = []


def timed(name: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Marks a function as a phase of the step that is running, if any."""

    def decorator(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def measured(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if not _running:
                return function(*args, **kwargs)
            with _running[-1].phase(name):
                return function(*args, **kwargs)

        return measured

    return decorator
