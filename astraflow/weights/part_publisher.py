"""One of several publishers of a version: sends its part, as a delta where that is smaller."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import CorruptData, StorageFull, UnknownVersion
from astraflow.contract.ids import PolicyId
from astraflow.contract.weights import Manifest, Part, Transfer, TransferKind
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.weights.chunks import announced, split, transfer_of
from astraflow.weights.delta import encode_delta
from astraflow.weights.parts import part_manifest
from astraflow.weights.tensors import Buffer, has_same_layout

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStats:
    """What sending one part took."""

    kind: TransferKind
    sent_bytes: int
    encode_s: float
    send_s: float
    """Until the store had the whole version durably, which the other publishers' parts are in too."""
    is_new: bool


class PartPublisher:
    """Sends one part of each version; the others come from elsewhere. One version at a time.

    The bits that were sent last are kept, so that the next ones travel as a delta.
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
        """Until the whole version is in the store. bits: uint8 `[part.size_bytes]`, left alone from now on.

        A store that cannot be reached, has no room, or misses other parts is tried again for ever.
        Raises: Conflict when it has other bits under that version; InvalidInput when it is not the next one, or parts
        overlap; CorruptData when the version is not what its manifest says.
        """
        own = part_manifest(manifest, part)
        began = time.perf_counter()
        delta = await asyncio.to_thread(self._delta, own, bits)
        encode_s = time.perf_counter() - began
        began = time.perf_counter()
        file, is_new = await self._sent(manifest, part, self._files(own, bits, delta))
        self._base = (own, bits)
        return PartStats(
            kind=file.transfer.kind,
            sent_bytes=file.transfer.size_bytes,
            encode_s=encode_s,
            send_s=time.perf_counter() - began,
            is_new=is_new,
        )

    def _delta(self, own: Manifest, bits: Buffer) -> bytes | None:
        """The way from the same part of the version before, if that is smaller."""
        if self._base is None or not has_same_layout(self._base[0], own):
            return None
        delta = encode_delta(*self._base, own, bits, workers=self._codec_threads).data
        return delta if len(delta) < own.size_bytes else None

    def _files(self, own: Manifest, bits: Buffer, delta: bytes | None) -> Iterator["_File"]:
        """The delta, then what a store takes that has not got its base."""
        if delta is not None and self._base is not None:
            yield _File(transfer_of(own, delta, base=self._base[0].version), memoryview(delta))
        yield _File(announced(own), bits.data)

    async def _sent(self, manifest: Manifest, part: Part, files: Iterator["_File"]) -> tuple["_File", bool]:
        """The first file that the store takes, and whether the version was new to it."""
        file = next(files)
        while True:
            try:
                return file, await self._send(manifest, part, file)
            except (UnknownVersion, CorruptData) as problem:
                following = next(files, None)
                if following is None:
                    raise
                log.info("publishing_otherwise", policy=self._policy, version=manifest.version, problem=str(problem))
                file = following

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
