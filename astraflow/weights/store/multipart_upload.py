"""Buffer for a version that several publishers send in parts."""

import numpy as np

from astraflow.contract.errors import CorruptData, UnknownVersion
from astraflow.contract.weights import Chunk, Manifest, Part, Transfer, TransferKind
from astraflow.weights.codec.chunks import check_chunk, check_file, unhashed_transfer
from astraflow.weights.codec.delta import apply_delta, read_head
from astraflow.weights.shared_memory import VersionBuffer
from astraflow.weights.store.history import History
from astraflow.weights.store.upload_verification import ReceivedUpload
from astraflow.weights.tensors import Buffer, frozen, has_same_layout, part_manifest


class MultipartUpload:
    """Bits of one version while its parts arrive; `commit` verifies and stores the version. Methods block.

    Nothing is written to storage before verification, so an incomplete version is freed with this object.
    """

    def __init__(self, history: History, manifest: Manifest, *, workers: int = 1) -> None:
        self.manifest = manifest
        self._history = history
        self._workers = workers
        self._base = history.newest
        self._bits = VersionBuffer.allocate(manifest.size_bytes)

    def begin_part(self, part: Part, transfer: Transfer) -> "PartUpload":
        """Allocates a part. Raises: InvalidInput when the version has no such part; UnknownVersion for a delta
        whose base is not the newest version; CorruptData for an inconsistent announcement.
        """
        manifest = part_manifest(self.manifest, part)
        target = self._bits.buffer[part.offset : part.end]
        is_delta = transfer.kind is TransferKind.DELTA
        if transfer.target != manifest.version or transfer.policy != manifest.policy:
            raise CorruptData(
                f"cannot accept a part of version {manifest.version}: its transfer is of version {transfer.target} of "
                f"{transfer.policy!r}; send the transfer of this version",
                code="weights.inconsistent_transfer",
            )
        if transfer.size_bytes > part.size_bytes or (not is_delta and transfer.size_bytes < part.size_bytes):
            raise CorruptData(
                f"cannot accept a file of {transfer.size_bytes} bytes as a part of {part.size_bytes} bytes; send the "
                "part in full or as a smaller delta",
                code="weights.size_mismatch",
            )
        if not is_delta:
            return PartUpload(manifest, transfer, target)
        if self._base is None or transfer.base != self._base[0].version:
            store_state = "is empty" if self._base is None else f"has version {self._base[0].version}"
            raise UnknownVersion(
                f"cannot apply a delta on version {transfer.base}: the store {store_state}; publish in full",
                code="weights.base_not_stored",
            )
        if not has_same_layout(self._base[0], self.manifest):
            raise CorruptData(
                f"cannot apply a delta to version {manifest.version}: its tensors differ from its base; "
                "publish in full",
                code="weights.layout_changed",
            )
        base = part_manifest(self._base[0], part), self._base[1][part.offset : part.end]
        return PartUpload(manifest, transfer, target, base=base, workers=self._workers)

    def commit(self) -> bool:
        """Verifies and stores the version; returns False when it was stored already. Raises: as `History.commit`."""
        frozen(self._bits.buffer)
        return self._history.commit(
            self.manifest, unhashed_transfer(self.manifest), ReceivedUpload(bits=self._bits, delta=None)
        )


class PartUpload:
    """Part of a version while its chunks arrive."""

    def __init__(
        self,
        manifest: Manifest,
        transfer: Transfer,
        target: Buffer,
        *,
        base: tuple[Manifest, Buffer] | None = None,
        workers: int = 1,
    ) -> None:
        """manifest: manifest of the part. target: buffer of the part. base: the same part of the version that a delta
        starts from."""
        self._manifest = manifest
        self._transfer = transfer
        self._target = target
        self._base = base
        self._workers = workers
        self._file = target if base is None else np.empty(transfer.size_bytes, dtype=np.uint8)
        self._received = 0

    def add(self, chunk: Chunk) -> None:
        """Appends the next chunk. Raises: CorruptData."""
        check_chunk(chunk, expected_offset=self._received, end=self._transfer.size_bytes)
        end = self._received + len(chunk.data)
        self._file[self._received : end] = np.frombuffer(chunk.data, dtype=np.uint8)
        self._received = end

    def write(self) -> None:
        """Writes the complete part into the version; its bits are verified later, with the whole version.

        Raises: CorruptData.
        """
        if self._received != self._transfer.size_bytes:
            raise CorruptData(
                f"cannot accept the part: it ended at byte {self._received} of {self._transfer.size_bytes}; send it "
                "again",
                code="weights.incomplete_file",
            )
        if self._base is None:
            return
        check_file(self._transfer, self._file)
        if read_head(self._file.data).base_root != self._base[0].root_hash:
            raise CorruptData(
                f"cannot apply the delta to a part of version {self._manifest.version}: its base has other weights "
                "than the store; publish in full",
                code="weights.base_mismatch",
            )
        self._target[:] = self._base[1]
        apply_delta(self._file.data, self._manifest, self._target, workers=self._workers)
