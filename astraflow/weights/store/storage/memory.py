"""Storage in memory only: for runs that prefer losing weights with the machine over waiting for a disk."""

import shutil
from pathlib import Path

from blake3 import blake3

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config.base import Config
from astraflow.runtime.logs import get_logger
from astraflow.weights.shared_memory import PREFIX, SHARED_FOLDER
from astraflow.weights.store.storage import storages
from astraflow.weights.store.storage.disk import DiskOptions, DiskStorage

log = get_logger()


class MemoryOptions(Config):
    """Empty options: the files are in the machine's shared memory."""


@storages.register("memory", options=MemoryOptions)
class MemoryStorage(DiskStorage):
    """Disk storage in the in-memory file system.

    Versions survive when a store is killed and restarted in the same directory; they are lost with the machine, and
    deleted when a store stops gracefully, because no other process would free the memory.
    """

    is_durable = False

    def __init__(self, options: MemoryOptions, directory: Path) -> None:
        name = blake3(str(directory.resolve()).encode()).hexdigest(length=16)
        self._location = SHARED_FOLDER / f"{PREFIX}store-{name}"
        try:
            self._location.mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise InvalidInput(
                f"cannot store weights in {str(SHARED_FOLDER)!r}: {problem.strerror}; use another storage kind",
                code="storage.folder_unusable",
            ) from problem
        status = self._location.lstat()
        if self._location.is_symlink() or status.st_mode & 0o777 != 0o700:
            raise InvalidInput(
                f"cannot store weights in {str(self._location)!r}: it is not a private folder of this user; remove it",
                code="storage.folder_unusable",
            )
        super().__init__(DiskOptions(), self._location)
        log.warning("weights_stored_in_memory_only", folder=str(self._location))

    def close(self) -> None:
        """Frees the memory."""
        shutil.rmtree(self._location)
