"""Publisher of one part of each version, sent as a delta if that is smaller."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, StorageFull, UnknownVersion
from astraflow.contract.ids import PolicyId
from astraflow.contract.weights import Manifest, Part, Transfer, TransferKind
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT, retry
from astraflow.weights.codec.chunks import split, transfer_of, unhashed_transfer
from astraflow.weights.codec.delta import encode_delta
from astraflow.weights.tensors import Buffer, has_same_layout, part_manifest

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStats:
    """Sizes and durations of sending one part."""

    kind: TransferKind
    sent_bytes: int
    encode_s: float
    send_s: float
    """Time until the store had persisted the whole version, including the parts of other publishers. Seconds."""
    is_new: bool


class PartPublisher:
    """Sends one part of each version; other publishers send the rest. One version at a time.

    The last sent bits are retained as the base of the next delta.
    """

    def __init__(
        self, client: WeightPlaneClient, policy: PolicyId, *, codec_threads: int = 1, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._policy = policy
        self._codec_threads = codec_threads
        self._clock = clock
        self._base: tuple[Manifest, Buffer] | None = None

    async def publish(self, manifest: Manifest, part: Part, bits: Buffer) -> PartStats:
        """Sends a part and waits until the whole version is stored. bits: uint8 `[part.size_bytes]`, not changed later.

        Retries without limit while the store is unreachable, full, or lacks other parts.
        Raises: Conflict when the store has other bits under that version; InvalidInput when it is not the next version,
        or parts overlap; CorruptData when the bits do not match the manifest.
        """
        own_manifest = part_manifest(manifest, part)
        began = time.perf_counter()
        delta = await asyncio.to_thread(self._delta, own_manifest, bits)
        encode_s = time.perf_counter() - began
        began = time.perf_counter()
        file, is_new = await self._send_first_accepted(manifest, part, self._files(own_manifest, bits, delta))
        self._base = (own_manifest, bits)
        return PartStats(
            kind=file.transfer.kind,
            sent_bytes=file.transfer.size_bytes,
            encode_s=encode_s,
            send_s=time.perf_counter() - began,
            is_new=is_new,
        )

    def _delta(self, own_manifest: Manifest, bits: Buffer) -> bytes | None:
        """Returns the delta from the same part of the previous version, if it is smaller than the part."""
        if self._base is None or not has_same_layout(self._base[0], own_manifest):
            return None
        delta = encode_delta(*self._base, own_manifest, bits, workers=self._codec_threads).data
        return delta if len(delta) < own_manifest.size_bytes else None

    def _files(self, own_manifest: Manifest, bits: Buffer, delta: bytes | None) -> Iterator["_File"]:
        """Yields the delta, then the full part for a store without the delta's base."""
        if delta is not None and self._base is not None:
            yield _File(transfer_of(own_manifest, delta, base=self._base[0].version), memoryview(delta))
        yield _File(unhashed_transfer(own_manifest), bits.data)

    async def _send_first_accepted(
        self, manifest: Manifest, part: Part, files: Iterator["_File"]
    ) -> tuple["_File", bool]:
        """Returns the first file that the store accepts, and whether the version was new to it."""
        file = next(files)
        while True:
            try:
                return file, await self._send(manifest, part, file)
            except (UnknownVersion, CorruptData) as problem:
                next_file = next(files, None)
                if next_file is None:
                    raise
                log.info("publish_fallback", policy=self._policy, version=manifest.version, problem=str(problem))
                file = next_file

    async def _send(self, manifest: Manifest, part: Part, file: "_File") -> bool:
        return await retry(
            lambda: self._client.publish_part(manifest, part, file.transfer, split(file.data)),
            what=f"publishing a part of {self._policy} version {manifest.version}",
            retry_on=(*TRANSIENT, StorageFull),
            clock=self._clock,
        )


class _File(NamedTuple):
    transfer: Transfer
    data: memoryview
