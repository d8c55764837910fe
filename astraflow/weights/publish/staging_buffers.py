"""Staging buffers: memory for a version while it is written, which other processes on this host can map."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from astraflow.contract.errors import StorageFull
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Probe, SharedFile, TensorSpec
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared_memory import SharedBuffer
from astraflow.weights.tensors import (
    Buffer,
    TensorShapes,
    TensorViews,
    VerifiedWeights,
    hash_into_manifest,
    lay_out,
    tensor_bits,
)

log = get_logger()

MAX_SHARED = 6
"""Maximum number of shared-memory buffers of one policy, so that hung readers cannot hold a buffer of every version."""

_PAGE_BYTES = 4096


class StagingBuffer:
    """Memory for one version: shared with other processes on this host, or private."""

    def __init__(self, size_bytes: int, shared: SharedBuffer | None) -> None:
        self._shared = shared
        self.writable: Buffer = np.empty(size_bytes, dtype=np.uint8) if shared is None else shared.buffer
        self.writable[::_PAGE_BYTES] = 0  # maps the pages now, so that the trainer's copy is faster
        self.bits: Buffer = self.writable.view()
        """Read-only view of the same memory."""
        self.bits.flags.writeable = False

    @property
    def file(self) -> SharedFile | None:
        """File that other processes map; None for private memory."""
        return None if self._shared is None else self._shared.file

    def reclaim(self) -> bool:
        """Returns True if no other process reads the buffer, and then prevents new mappings until `share`."""
        return self._shared is None or self._shared.reclaim()

    def share(self) -> None:
        """Allows other processes to map the buffer."""
        if self._shared is not None:
            self._shared.share()

    def unlink(self) -> None:
        """Removes the file name; existing mappings stay usable."""
        if self._shared is not None:
            self._shared.unlink()


class StagingBufferPool:
    """Buffers of one writer: each is reused once its version is no longer a base and has no readers.

        created ─► writing ─► shared, base of the next ─► released ─► (no readers) ─► writing ─► ...

    Uses shared memory if there is room, otherwise private memory, with one warning. Creates another buffer when all
    have readers. All methods are thread-safe. `prepare_next` creates a buffer in advance, so that `take` returns
    sooner.
    """

    def __init__(self, *, is_shared: bool = True) -> None:
        self._is_shared = is_shared
        self._has_warned = False
        self._lock = threading.Lock()
        self._buffers: list[StagingBuffer] = []
        self._released: list[StagingBuffer] = []
        self._prepared: StagingBuffer | None = None

    def take_prepared(self, size_bytes: int) -> StagingBuffer | None:
        """Returns the prepared buffer without waiting; None unless it has this size."""
        with self._lock:
            prepared = self._prepared
            if prepared is None or prepared.writable.nbytes != size_bytes:
                return None
            self._prepared = None
            return prepared

    def take(self, size_bytes: int) -> StagingBuffer:
        """Returns a buffer of that size without readers."""
        with self._lock:
            buffer = self._reserve(size_bytes)
            self._prepared = None
            return buffer

    def prepare_next(self, size_bytes: int) -> None:
        """Prepares one buffer for the next `take`, and frees other unused buffers."""
        with self._lock:
            self._prepared = self._reserve(size_bytes)
            for buffer in [buffer for buffer in self._released if buffer.reclaim()]:
                self._released.remove(buffer)
                self._remove(buffer)

    def release(self, buffer: StagingBuffer) -> None:
        """Takes back a buffer that its writer no longer needs; it may still have readers."""
        with self._lock:
            self._released.append(buffer)

    def close(self) -> None:
        with self._lock:
            for buffer in list(self._buffers):
                self._remove(buffer)

    def _reserve(self, size_bytes: int) -> StagingBuffer:
        if self._prepared is not None:
            self._released.append(self._prepared)
            self._prepared = None
        for buffer in sorted(self._released, key=lambda buffer: buffer.file is None):
            if not buffer.reclaim():
                continue
            self._released.remove(buffer)
            if buffer.writable.nbytes == size_bytes:
                return buffer
            self._remove(buffer)
        buffer = StagingBuffer(size_bytes, self._shared(size_bytes))
        self._buffers.append(buffer)
        return buffer

    def _shared(self, size_bytes: int) -> SharedBuffer | None:
        if not self._is_shared:
            return None
        shared = sum(buffer.file is not None for buffer in self._buffers)
        try:
            if shared >= MAX_SHARED:
                raise StorageFull(
                    f"cannot create another buffer in shared memory: {shared} buffers still have readers; close "
                    "readers that hang",
                    code="weights.too_many_shared_buffers",
                )
            return SharedBuffer(size_bytes)
        except (StorageFull, OSError) as problem:
            if not self._has_warned:
                log.warning("weights_not_shared", bytes=size_bytes, problem=str(problem))
            self._has_warned = True
            return None

    def _remove(self, buffer: StagingBuffer) -> None:
        self._buffers.remove(buffer)
        buffer.unlink()


class StagedVersion:
    """Version that is being written. Write in `with staged.open_for_writing() as views`, then publish it."""

    def __init__(self, specs: Sequence[TensorSpec], buffer: StagingBuffer) -> None:
        self.specs = tuple(specs)
        self.buffer = buffer
        self.copy_s = 0.0
        """Duration of writing, during which the trainer is paused. Seconds."""

    @classmethod
    def private(cls, shapes: TensorShapes) -> "StagedVersion":
        """Returns a version in ordinary memory, which no other process maps."""
        specs = lay_out(shapes)
        return cls(specs, StagingBuffer(sum(spec.size_bytes for spec in specs), None))

    def verified(self, *, policy: PolicyId, version: Version, probe: Probe | None = None) -> VerifiedWeights:
        """Hashes what was written, for an engine of this process: the buffer must not change while it loads."""
        manifest = hash_into_manifest(self.specs, self.buffer.bits, policy=policy, version=version, probe=probe)
        return VerifiedWeights(manifest=manifest, buffer=self.buffer.bits)

    @contextmanager
    def open_for_writing(self) -> Iterator[TensorViews]:
        """Yields the elements of each tensor by name, flat. The caller must write all of them."""
        began = time.perf_counter()
        yield tensor_views(self.specs, self.buffer.writable)
        self.copy_s += time.perf_counter() - began


def tensor_views(specs: Sequence[TensorSpec], buffer: Buffer) -> TensorViews:
    """Returns each tensor's flat elements, as views of `buffer`."""
    return {spec.name: tensor_bits(spec, buffer) for spec in specs}
