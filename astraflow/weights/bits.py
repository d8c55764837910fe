"""The bits of a version in memory, where other processes on the host may map them."""

import weakref
from pathlib import Path

import numpy as np

from astraflow.contract.errors import InvalidInput, StorageFull, UnknownVersion
from astraflow.contract.weights import SharedFile
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared import SharedBuffer, attach
from astraflow.weights.tensors import Buffer

log = get_logger()


class Bits:
    """uint8 `[bytes]` of one version, and the shared file they are in, if any.

    A shared buffer that was made here loses its name with the last use of this object; who maps it keeps it.
    """

    def __init__(self, buffer: Buffer, *, file: SharedFile | None = None) -> None:
        self.buffer = buffer
        self._file = file

    @classmethod
    def made(cls, size_bytes: int) -> "Bits":
        """Room for a version, to be written once: in shared memory, or in this process's own where that is full."""
        try:
            shared = SharedBuffer(size_bytes)
        except StorageFull as problem:
            log.warning("bits_are_not_shared", bytes=size_bytes, problem=str(problem))
            return cls(np.empty(size_bytes, dtype=np.uint8))
        made = cls(shared.buffer, file=shared.file)
        weakref.finalize(made, shared.remove)
        return made

    @classmethod
    def adopted(cls, file: SharedFile) -> "Bits":
        """What a publisher wrote, without a copy: its writer leaves it alone while this object lives.

        Raises: UnknownVersion when it cannot be had; the publisher then sends the bytes.
        """
        try:
            return cls(attach(file), file=file)
        except (InvalidInput, UnknownVersion) as problem:
            raise UnknownVersion(f"the shared bits cannot be had, send the bytes: {problem}") from problem

    @property
    def file(self) -> SharedFile | None:
        """Where others on this host can map the bits; None when they cannot, or no longer."""
        return self._file if self._file is not None and Path(self._file.path).exists() else None
