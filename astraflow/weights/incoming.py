"""A publish while it arrives."""

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Chunk, Manifest, Transfer, TransferKind
from astraflow.weights.bits import Bits
from astraflow.weights.chunks import check_chunk
from astraflow.weights.history import History
from astraflow.weights.intake import Arrived
from astraflow.weights.tensors import frozen


class Incoming:
    """Collects what a publisher sends, where it is to stay: `take` proves and keeps it.

    Nothing is written before it is proven, so what a publisher leaves unfinished goes with this object.
    """

    def __init__(self, history: History, manifest: Manifest, transfer: Transfer, given: Bits | None = None) -> None:
        """given: the version's full bits, where they are at hand."""
        self._history = history
        self._manifest = manifest
        self._transfer = transfer
        self._received = 0
        is_delta = transfer.kind is TransferKind.DELTA
        self._bits = given
        self._delta = np.empty(transfer.size_bytes, dtype=np.uint8) if is_delta else None
        if self._bits is None and not is_delta:
            self._bits = Bits.made(transfer.size_bytes)
        elif self._bits is not None and not is_delta:
            self._received = transfer.size_bytes  # nothing follows

    def add(self, chunk: Chunk) -> None:
        """Collect the next chunk. Raises: CorruptData."""
        check_chunk(chunk, expected_offset=self._received, end=self._transfer.size_bytes)
        into = self._delta if self._delta is not None or self._bits is None else self._bits.buffer
        if into is not None and len(chunk.data):
            end = self._received + len(chunk.data)
            into[self._received : end] = np.frombuffer(chunk.data, dtype=np.uint8)
            self._received = end

    def take(self) -> bool:
        """Prove and keep the version; False when it was there already. Raises: as `History.take`."""
        if self._received != self._transfer.size_bytes:
            raise CorruptData(f"the publish ended at byte {self._received} of {self._transfer.size_bytes}")
        if self._bits is not None:
            frozen(self._bits.buffer)
        return self._history.take(self._manifest, self._transfer, Arrived(bits=self._bits, delta=self._delta))
