"""Weights on their way off the device: rounded and copied once, straight to where they are published from."""

import weakref
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.runtime.logs import get_logger
from astraflow.weights.tensors import Places

log = get_logger()


class HostCopy:
    """Writes tensors to places in host memory, from a CPU or from an accelerator.

    From a GPU all copies are queued first and waited for together. The memory behind the places is pinned when it is
    seen first, so that they run at the bus's speed; where that is refused they are right all the same, only slower.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: set[int] = set()
        """Addresses of the buffers that are pinned."""

    @torch.no_grad()
    def write(self, weights: Mapping[str, Tensor], places: Places, dtype: torch.dtype) -> None:
        """Each tensor, rounded to `dtype`, to its place: as many elements, unsigned integers of the dtype's width."""
        if self._device.type == "cuda":
            for memory in {id(found): found for found in map(_memory_of, places.values())}.values():
                self._pin(memory)
        for name, weight in weights.items():
            place = torch.from_numpy(places[name]).view(dtype).view(weight.shape)
            place.copy_(weight, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _pin(self, memory: npt.NDArray[np.generic]) -> None:
        address = memory.ctypes.data
        if address in self._pinned or not memory.nbytes:
            return
        self._pinned.add(address)
        problem = int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0))
        if problem:
            log.warning("weights_not_pinned", bytes=memory.nbytes, cuda_error=problem)
            with suppress(RuntimeError):  # CUDA tells the next caller of an error; that is this one
                torch.zeros(1, device=self._device)
        weakref.finalize(memory, self._unpin, address, is_registered=not problem).atexit = False

    def _unpin(self, address: int, *, is_registered: bool) -> None:
        """Before the memory goes: CUDA must not take what comes to that address next for what was there."""
        self._pinned.discard(address)
        if is_registered:
            torch.cuda.cudart().cudaHostUnregister(address)


def _memory_of(place: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The whole buffer that a place is a view of."""
    while isinstance(place.base, np.ndarray):
        place = place.base
    return place
