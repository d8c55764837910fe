"""Bits of a version in memory, which other processes on the host may map."""

import weakref
from pathlib import Path

import numpy as np

from astraflow.contract.errors import InvalidInput, StorageFull, UnknownVersion
from astraflow.contract.weights import SharedFile
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared_memory import SharedBuffer, map_read_only
from astraflow.weights.tensors import Buffer

log = get_logger()


class VersionBuffer:
    """uint8 `[bytes]` of one version, and their shared file, if any.

    A shared buffer created here loses its name when this object is freed; existing mappings stay valid.
    """

    def __init__(self, buffer: Buffer, *, file: SharedFile | None = None) -> None:
        self.buffer = buffer
        self._file = file

    @classmethod
    def allocate(cls, size_bytes: int) -> "VersionBuffer":
        """Allocates memory for a version: in shared memory, or in private memory where that is full."""
        try:
            shared = SharedBuffer(size_bytes)
        except (StorageFull, OSError) as problem:
            log.warning("version_not_in_shared_memory", bytes=size_bytes, problem=str(problem))
            return cls(np.empty(size_bytes, dtype=np.uint8))
        buffer = cls(shared.buffer, file=shared.file)
        weakref.finalize(buffer, shared.unlink)
        return buffer

    @classmethod
    def from_shared_file(cls, file: SharedFile) -> "VersionBuffer":
        """Maps a publisher's file without a copy; the writer does not change it while this object exists.

        Raises: UnknownVersion when it cannot be mapped; the publisher then sends the bytes.
        """
        try:
            return cls(map_read_only(file), file=file)
        except (InvalidInput, UnknownVersion) as problem:
            raise UnknownVersion(
                f"cannot use the publisher's shared memory ({problem}); send the bytes",
                code="weights.shared_memory_unusable",
            ) from problem

    @property
    def file(self) -> SharedFile | None:
        """File by which others on this host can map the bits; None when it does not exist, or no longer."""
        return self._file if self._file is not None and Path(self._file.path).exists() else None
