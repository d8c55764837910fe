"""Files on a disk: there whole or not at all by rename after synchronisation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from astraflow.contract.ids import PolicyId
from astraflow.runtime.config import Config
from astraflow.runtime.logs import get_logger
from astraflow.weights.files import PART_SUFFIX, noticing_full_disk, sync_folder, write_file
from astraflow.weights.keeping import keeps
from astraflow.weights.sources import FileSource

log = get_logger()


class DiskOptions(Config):
    """None: the files are in the store's directory."""


@keeps.register("disk", options=DiskOptions)
class DiskKeep:
    """A folder for each policy below the store's directory."""

    is_durable = True

    def __init__(self, options: DiskOptions, directory: Path) -> None:
        self._directory = directory
        for part in directory.glob(f"*/*{PART_SUFFIX}"):
            log.info("unfinished_file_removed", file=str(part))
            part.unlink()

    def claim(self) -> None:
        """Who holds the store's directory has it."""

    def policies(self) -> Sequence[PolicyId]:
        """Those that have a folder."""
        return sorted(PolicyId(unquote(path.name)) for path in self._directory.iterdir() if path.is_dir())

    def folder(self, policy: PolicyId) -> "DiskFolder":
        """A policy's folder."""
        return DiskFolder(self._directory / quote(policy, safe=""))

    def close(self) -> None:
        """Everything stays."""


class DiskFolder:
    """A `Folder` on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sizes(self) -> Mapping[str, int]:
        """Every file, with its bytes."""
        return dict(self._files())

    def open(self, name: str) -> FileSource:
        """A file; an open one outlives its name. Raises: UnknownVersion."""
        return FileSource(self._path / name)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Written beside, synchronised, renamed. Raises: StorageFull; then nothing has changed."""
        if not self._path.is_dir():
            with noticing_full_disk(self._path):
                self._path.mkdir(exist_ok=True)
                sync_folder(self._path.parent)
        write_file(self._path / name, data)

    def rename(self, name: str, new_name: str) -> None:
        """Durable with the next file that is written or removed."""
        (self._path / name).replace(self._path / new_name)

    def remove(self, names: Iterable[str]) -> None:
        """One by one, then synchronised."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)
        if self._path.is_dir():
            with noticing_full_disk(self._path):
                sync_folder(self._path)

    def _files(self) -> Iterator[tuple[str, int]]:
        if self._path.is_dir():
            for path in sorted(self._path.iterdir()):
                if path.suffix != PART_SUFFIX:
                    yield path.name, path.stat().st_size
