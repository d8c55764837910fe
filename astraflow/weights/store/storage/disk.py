"""Storage on disk: files are synced, then renamed atomically."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.runtime.config.base import Config
from astraflow.runtime.logs import get_logger
from astraflow.weights.atomic_files import TEMPORARY_SUFFIX, sync_folder, translate_full_disk, write_file
from astraflow.weights.store.file_readers import DiskFileReader
from astraflow.weights.store.storage import storages

log = get_logger()


class DiskOptions(Config):
    """Empty options: the files are in the store's directory."""


@storages.register("disk", options=DiskOptions)
class DiskStorage:
    """Storage on disk with a folder for each policy below the store's directory."""

    is_durable = True

    def __init__(self, options: DiskOptions, directory: Path) -> None:
        self._directory = directory
        for unfinished_file in directory.glob(f"*/*{TEMPORARY_SUFFIX}"):
            log.info("unfinished_file_removed", file=str(unfinished_file))
            unfinished_file.unlink()

    def acquire(self) -> None:
        """Does nothing: the lock of the store's directory is sufficient."""

    def policies(self) -> Sequence[PolicyId]:
        """Lists the policies that have a folder. Others, such as `lost+found` of a volume, are left alone."""
        policies: list[PolicyId] = []
        for path in self._directory.iterdir():
            try:
                policies += [PolicyId(unquote(path.name))] if path.is_dir() else []
            except InvalidInput:
                log.warning("folder_ignored", folder=str(path))
        return sorted(policies)

    def folder(self, policy: PolicyId) -> "DiskFolder":
        return DiskFolder(self._directory / quote(policy, safe=""))

    def close(self) -> None:
        """Does nothing: all files stay."""


class DiskFolder:
    """`Folder` on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sizes(self) -> Mapping[str, int]:
        """Returns every file name with its size in bytes."""
        return dict(self._files())

    def open(self, name: str) -> DiskFileReader:
        """Opens a file, which stays readable when its name is removed. Raises: UnknownVersion."""
        return DiskFileReader(self._path / name)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Writes a temporary file, syncs and renames it. Raises: StorageFull; the file is then unchanged."""
        if not self._path.is_dir():
            with translate_full_disk(self._path):
                self._path.mkdir(exist_ok=True)
                sync_folder(self._path.parent)
        write_file(self._path / name, data)

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file; durable with the next written or removed file."""
        (self._path / name).replace(self._path / new_name)

    def remove(self, names: Iterable[str]) -> None:
        """Removes the files one by one, then syncs the folder."""
        for name in names:
            (self._path / name).unlink(missing_ok=True)
        if self._path.is_dir():
            with translate_full_disk(self._path):
                sync_folder(self._path)

    def _files(self) -> Iterator[tuple[str, int]]:
        if self._path.is_dir():
            for path in sorted(self._path.iterdir()):
                if path.suffix != TEMPORARY_SUFFIX:
                    yield path.name, path.stat().st_size
