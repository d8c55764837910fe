"""`publish` of a weight store, in memory and without a network, with the same version checks as the real one."""

import asyncio
from collections.abc import Callable, Iterable

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import Conflict, InvalidInput, UnknownVersion
from astraflow.contract.weights import Chunk, Manifest, SharedFile, Transfer


class InMemoryWeightPlane(WeightPlaneClient):
    """Records the manifest of every version; accepts only the next version, and rejects other bits for a stored one."""

    def __init__(self, on_publish: Callable[[str], None] = lambda point: None) -> None:
        self.manifests: list[Manifest] = []
        self.repeats = 0
        """Publishes of known versions."""
        self.on_publish = on_publish
        """Called with `before` and `after` around the publish of a version."""
        self.held: int | None = None
        """The publish of this version waits until `released` is set."""
        self.released = asyncio.Event()

    async def publish(
        self, manifest: Manifest, transfer: Transfer, chunks: Iterable[Chunk], *, shared: SharedFile | None = None
    ) -> bool:
        if manifest.version == self.held:
            await self.released.wait()
        self.on_publish("before")
        is_new = self._take(manifest, transfer)
        self.on_publish("after")
        return is_new

    def _take(self, manifest: Manifest, transfer: Transfer) -> bool:
        if manifest.version < len(self.manifests):
            if self.manifests[manifest.version].root_hash != manifest.root_hash:
                raise Conflict(f"other bits are known as version {manifest.version}")
            self.repeats += 1
            return False
        if manifest.version > len(self.manifests):
            raise InvalidInput(f"version {manifest.version} is not the next one, {len(self.manifests)}")
        if transfer.base is not None and transfer.base >= len(self.manifests):
            raise UnknownVersion(f"base {transfer.base} is not known")
        self.manifests.append(manifest)
        return True
