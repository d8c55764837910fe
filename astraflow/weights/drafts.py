"""A version while it is written: places for its tensors, in memory that others on this host can map."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from astraflow.contract.errors import StorageFull
from astraflow.contract.weights import SharedFile, TensorSpec
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared import SharedBuffer
from astraflow.weights.tensors import Buffer, Places, tensor_bits

log = get_logger()

MAX_SHARED = 6
"""Buffers of one policy in shared memory. A reader that hangs keeps one for ever, but not one of every version."""

_PAGE_BYTES = 4096


class DraftBuffer:
    """Memory for one version: shared with others on this host, or this process's own."""

    def __init__(self, size_bytes: int, shared: SharedBuffer | None) -> None:
        self._shared = shared
        self.writable: Buffer = np.empty(size_bytes, dtype=np.uint8) if shared is None else shared.buffer
        self.writable[::_PAGE_BYTES] = 0  # pages are mapped now, not while a trainer waits for its copy
        self.bits: Buffer = self.writable.view()
        """The same memory, read-only."""
        self.bits.flags.writeable = False

    @property
    def file(self) -> SharedFile | None:
        """What others map; None for ordinary memory."""
        return None if self._shared is None else self._shared.file

    def reclaim(self) -> bool:
        """Whether nobody else reads it; if so, nobody can map it before `show`."""
        return self._shared is None or self._shared.reclaim()

    def show(self) -> None:
        """Others may map it from now on."""
        if self._shared is not None:
            self._shared.show()

    def remove(self) -> None:
        """Take its name away; who maps it keeps it."""
        if self._shared is not None:
            self._shared.remove()


class DraftBuffers:
    """The buffers of one writer: each comes back once its version is no base any more and nobody reads it.

        made ─► writing ─► shown, base of the next ─► given back ─► (no reader left) ─► writing ─► ...

    In shared memory where there is room, else in this process's own, which is said once. One more is made when all are
    read. Any thread may call it; `make_ready` is for calling beside other work, so that `take` need not make any.
    """

    def __init__(self, *, is_shared: bool = True) -> None:
        self._is_shared = is_shared
        self._has_warned = False
        self._lock = threading.Lock()
        self._all: list[DraftBuffer] = []
        self._given_back: list[DraftBuffer] = []
        self._ready: DraftBuffer | None = None

    def take_ready(self, size_bytes: int) -> DraftBuffer | None:
        """The one that is at hand; takes no time."""
        with self._lock:
            found = self._ready
            if found is None or found.writable.nbytes != size_bytes:
                return None
            self._ready = None
            return found

    def take(self, size_bytes: int) -> DraftBuffer:
        """A buffer of that size that nobody reads."""
        with self._lock:
            found = self._reserved(size_bytes)
            self._ready = None
            return found

    def make_ready(self, size_bytes: int) -> None:
        """Have one at hand for the next `take`, and let go of more than that."""
        with self._lock:
            self._ready = self._reserved(size_bytes)
            for buffer in [buffer for buffer in self._given_back if buffer.reclaim()]:
                self._given_back.remove(buffer)
                self._remove(buffer)

    def give_back(self, buffer: DraftBuffer) -> None:
        """It is not needed here any more; readers may still have it."""
        with self._lock:
            self._given_back.append(buffer)

    def close(self) -> None:
        """Take all names away."""
        with self._lock:
            for buffer in list(self._all):
                self._remove(buffer)

    def _reserved(self, size_bytes: int) -> DraftBuffer:
        if self._ready is not None:
            self._given_back.append(self._ready)
            self._ready = None
        for buffer in sorted(self._given_back, key=lambda buffer: buffer.file is None):
            if not buffer.reclaim():
                continue
            self._given_back.remove(buffer)
            if buffer.writable.nbytes == size_bytes:
                return buffer
            self._remove(buffer)
        buffer = DraftBuffer(size_bytes, self._shared(size_bytes))
        self._all.append(buffer)
        return buffer

    def _shared(self, size_bytes: int) -> SharedBuffer | None:
        if not self._is_shared:
            return None
        shared = sum(buffer.file is not None for buffer in self._all)
        try:
            if shared >= MAX_SHARED:
                raise StorageFull(f"{shared} buffers in shared memory are still read")
            return SharedBuffer(size_bytes)
        except (StorageFull, OSError) as problem:
            if not self._has_warned:
                log.warning("weights_not_shared", bytes=size_bytes, problem=str(problem))
            self._has_warned = True
            return None

    def _remove(self, buffer: DraftBuffer) -> None:
        self._all.remove(buffer)
        buffer.remove()


class Draft:
    """A version that is being written. Write in `with draft.writing() as places`, then hand it to the publisher."""

    def __init__(self, specs: Sequence[TensorSpec], buffer: DraftBuffer) -> None:
        self.specs = tuple(specs)
        self.buffer = buffer
        self.copy_s = 0.0
        """How long it was written: the trainer stands still meanwhile."""

    @contextmanager
    def writing(self) -> Iterator[Places]:
        """Where each tensor goes: name -> flat elements, to be written whole."""
        began = time.perf_counter()
        yield places_in(self.specs, self.buffer.writable)
        self.copy_s += time.perf_counter() - began


def places_in(specs: Sequence[TensorSpec], buffer: Buffer) -> Places:
    """Each tensor's flat elements: views of `buffer`."""
    return {spec.name: tensor_bits(spec, buffer) for spec in specs}
