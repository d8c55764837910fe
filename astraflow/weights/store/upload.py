"""Upload: a publish while it arrives."""

import numpy as np

from astraflow.contract.errors import CorruptData
from astraflow.contract.weights import Chunk, Manifest, Transfer, TransferKind
from astraflow.weights.codec.chunks import check_chunk
from astraflow.weights.store.history import History
from astraflow.weights.store.upload_verification import ReceivedUpload
from astraflow.weights.tensors import frozen
from astraflow.weights.version_buffer import VersionBuffer


class Upload:
    """Collects the data of a publisher in its final memory; `commit` verifies and stores it.

    Nothing is written to storage before verification, so an incomplete upload is freed with this object.
    """

    def __init__(
        self, history: History, manifest: Manifest, transfer: Transfer, full_bits: VersionBuffer | None = None
    ) -> None:
        """full_bits: the version's full bits, if they are already available."""
        self._history = history
        self._manifest = manifest
        self._transfer = transfer
        self._received = 0
        is_delta = transfer.kind is TransferKind.DELTA
        self._bits = full_bits
        self._delta = np.empty(transfer.size_bytes, dtype=np.uint8) if is_delta else None
        if self._bits is None and not is_delta:
            self._bits = VersionBuffer.allocate(transfer.size_bytes)
        elif self._bits is not None and not is_delta:
            self._received = transfer.size_bytes  # no chunks follow

    def add(self, chunk: Chunk) -> None:
        """Appends the next chunk. Raises: CorruptData."""
        check_chunk(chunk, expected_offset=self._received, end=self._transfer.size_bytes)
        into = self._delta if self._delta is not None or self._bits is None else self._bits.buffer
        if into is not None and len(chunk.data):
            end = self._received + len(chunk.data)
            into[self._received : end] = np.frombuffer(chunk.data, dtype=np.uint8)
            self._received = end

    def commit(self) -> bool:
        """Verifies and stores the version; returns False when it was stored already. Raises: as `History.commit`."""
        if self._received != self._transfer.size_bytes:
            raise CorruptData(
                f"cannot accept the upload: it ended at byte {self._received} of {self._transfer.size_bytes}; send it "
                "again",
                code="weights.incomplete_file",
            )
        if self._bits is not None:
            frozen(self._bits.buffer)
        return self._history.commit(self._manifest, self._transfer, ReceivedUpload(bits=self._bits, delta=self._delta))
