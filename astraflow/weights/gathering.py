"""A version that comes in parts, from several publishers: its memory, and what fills it."""

import numpy as np

from astraflow.contract.errors import CorruptData, UnknownVersion
from astraflow.contract.weights import Chunk, Manifest, Part, Transfer, TransferKind
from astraflow.weights.bits import Bits
from astraflow.weights.chunks import announced, check_chunk, check_file
from astraflow.weights.delta import apply_delta, read_head
from astraflow.weights.history import History
from astraflow.weights.intake import Arrived
from astraflow.weights.parts import part_manifest
from astraflow.weights.tensors import Buffer, frozen, has_same_layout


class Gathering:
    """The bits of one version while its parts come; `take` proves the whole and keeps it. Methods block.

    Nothing is written before it is proven, so what publishers leave unfinished goes with this object.
    """

    def __init__(self, history: History, manifest: Manifest, *, workers: int = 1) -> None:
        self.manifest = manifest
        self._history = history
        self._workers = workers
        self._base = history.newest
        self._bits = Bits.made(manifest.size_bytes)

    def coming(self, part: Part, transfer: Transfer) -> "ComingPart":
        """Room for a part. Raises: InvalidInput when the version has no such part; UnknownVersion when it is a delta on
        what is not the newest version; CorruptData when it cannot be what it says.
        """
        manifest = part_manifest(self.manifest, part)
        into = self._bits.buffer[part.offset : part.end]
        is_delta = transfer.kind is TransferKind.DELTA
        if transfer.target != manifest.version or transfer.policy != manifest.policy:
            raise CorruptData(f"a part of version {manifest.version} comes as {transfer.policy}:{transfer.target}")
        if transfer.size_bytes > part.size_bytes or (not is_delta and transfer.size_bytes < part.size_bytes):
            raise CorruptData(f"{transfer.size_bytes} bytes cannot be a part of {part.size_bytes} bytes")
        if not is_delta:
            return ComingPart(manifest, transfer, into)
        if self._base is None or transfer.base != self._base[0].version:
            has = "nothing" if self._base is None else f"version {self._base[0].version}"
            raise UnknownVersion(f"a delta on version {transfer.base} does not apply: the store has {has}")
        if not has_same_layout(self._base[0], self.manifest):
            raise CorruptData(f"the tensors of version {manifest.version} differ from those of its base")
        base = part_manifest(self._base[0], part), self._base[1][part.offset : part.end]
        return ComingPart(manifest, transfer, into, base=base, workers=self._workers)

    def take(self) -> bool:
        """Prove the whole and keep it; False when it was there already. Raises: as `History.take`."""
        frozen(self._bits.buffer)
        return self._history.take(self.manifest, announced(self.manifest), Arrived(bits=self._bits, delta=None))


class ComingPart:
    """One part while it arrives."""

    def __init__(
        self,
        manifest: Manifest,
        transfer: Transfer,
        into: Buffer,
        *,
        base: tuple[Manifest, Buffer] | None = None,
        workers: int = 1,
    ) -> None:
        """manifest: of the part. into: where it goes. base: the same part of the version that a delta begins at."""
        self._manifest = manifest
        self._transfer = transfer
        self._into = into
        self._base = base
        self._workers = workers
        self._file = into if base is None else np.empty(transfer.size_bytes, dtype=np.uint8)
        self._received = 0

    def add(self, chunk: Chunk) -> None:
        """Collect the next chunk. Raises: CorruptData."""
        check_chunk(chunk, expected_offset=self._received, end=self._transfer.size_bytes)
        end = self._received + len(chunk.data)
        self._file[self._received : end] = np.frombuffer(chunk.data, dtype=np.uint8)
        self._received = end

    def place(self) -> None:
        """All has come: the part is where it belongs; whether its bits are right is proven with the whole.

        Raises: CorruptData.
        """
        if self._received != self._transfer.size_bytes:
            raise CorruptData(f"the part ended at byte {self._received} of {self._transfer.size_bytes}")
        if self._base is None:
            return
        check_file(self._transfer, self._file)
        if read_head(self._file.data).base_root != self._base[0].root_hash:
            raise CorruptData(f"the delta to a part of version {self._manifest.version} was made on other weights")
        self._into[:] = self._base[1]
        apply_delta(self._file.data, self._manifest, self._into, workers=self._workers)
