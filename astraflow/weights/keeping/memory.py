"""Files in memory only: for runs that would rather lose their weights with the machine than wait for a disk."""

import shutil
from pathlib import Path

from blake3 import blake3

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.config import Config
from astraflow.runtime.logs import get_logger
from astraflow.weights.keeping import keeps
from astraflow.weights.keeping.disk import DiskKeep, DiskOptions
from astraflow.weights.shared import PREFIX, SHARED_FOLDER

log = get_logger()


class MemoryOptions(Config):
    """None: the files are in the machine's shared memory."""


@keeps.register("memory", options=MemoryOptions)
class MemoryKeep(DiskKeep):
    """As on disk, but in the file system that is kept in memory.

    So versions outlast a store that is killed and started again in the same directory; they go with the machine, and
    with a store that stops in good order, since nobody else would free the memory.
    """

    is_durable = False

    def __init__(self, options: MemoryOptions, directory: Path) -> None:
        name = blake3(str(directory.resolve()).encode()).hexdigest(length=16)
        self._place = SHARED_FOLDER / f"{PREFIX}store-{name}"
        try:
            self._place.mkdir(mode=0o700, exist_ok=True)
        except OSError as problem:
            raise InvalidInput(f"weights cannot be kept in {SHARED_FOLDER}: {problem.strerror}") from problem
        status = self._place.lstat()
        if self._place.is_symlink() or status.st_mode & 0o777 != 0o700:
            raise InvalidInput(f"{self._place} is not a folder of this user alone: remove it")
        super().__init__(DiskOptions(), self._place)
        log.warning("weights_are_kept_in_memory_only", folder=str(self._place))

    def close(self) -> None:
        """Free the memory."""
        shutil.rmtree(self._place)
