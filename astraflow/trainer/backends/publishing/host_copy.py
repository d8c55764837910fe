"""Copy of weights off the device: rounded and copied once, directly into the buffer they are published from."""

import weakref
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.contract.weights import Dtype
from astraflow.models.precision import torch_dtype_of
from astraflow.runtime.logs import get_logger
from astraflow.weights.tensors import TensorViews

log = get_logger()


class HostCopy:
    """Writes tensors to host memory, from a CPU or from an accelerator.

    From a GPU all copies are queued first and awaited together. Each target buffer is pinned on first use, so that
    copies run at the bus's speed; where pinning fails the copies are correct but slower.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: set[int] = set()
        """Addresses of the pinned buffers."""

    @torch.no_grad()
    def write(self, weights: Mapping[str, Tensor], views: TensorViews, dtypes: Mapping[str, Dtype]) -> None:
        """Writes each tensor, rounded to its dtype, to its view: as many unsigned integers of the dtype's width."""
        if self._device.type == "cuda":
            for memory in {id(base): base for base in map(_base_array, views.values())}.values():
                self._pin(memory)
        for name, weight in weights.items():
            target = torch.from_numpy(views[name]).view(torch_dtype_of(dtypes[name])).view(weight.shape)
            target.copy_(weight, non_blocking=True)
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
            with suppress(RuntimeError):  # CUDA reports the error to the next call, which is this one
                torch.zeros(1, device=self._device)
        weakref.finalize(memory, self._unpin, address, is_registered=not problem).atexit = False

    def _unpin(self, address: int, *, is_registered: bool) -> None:
        """Unpins before the memory is freed: CUDA must not mistake a later allocation for this buffer."""
        self._pinned.discard(address)
        if is_registered:
            torch.cuda.cudart().cudaHostUnregister(address)


def _base_array(view: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Returns the whole buffer behind a view."""
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view
