"""Interface between the weight store and its storage backends."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from astraflow.contract.ids import PolicyId
from astraflow.weights.store.file_readers import FileReader


class Folder(Protocol):
    """Files of one policy, by name. Writes are atomic: a file exists completely or not at all.

    Methods block; any thread may call them. All may raise Unavailable when the storage is unreachable.
    """

    def sizes(self) -> Mapping[str, int]:
        """Returns every file name with its size in bytes."""

    def open(self, name: str) -> FileReader:
        """Opens a file, which the caller closes. Raises: UnknownVersion if it was removed, also during reads."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Creates or replaces a file; on return it is as durable as the storage.

        Raises: StorageFull, Unavailable; the name then has its previous content or the new file, never a mixture.
        """

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file, replacing the target if it exists."""

    def remove(self, names: Iterable[str]) -> None:
        """Removes files in this order, durably on return; missing files are ignored."""


class WeightStorage(Protocol):
    """Storage of the files of all policies, owned by one store at a time."""

    is_durable: bool
    """True when files outlast the machine's memory."""

    def acquire(self) -> None:
        """Takes ownership of the storage; call it first. Raises: Unavailable; InvalidInput if another store owns it."""

    def policies(self) -> Sequence[PolicyId]:
        """Lists the policies with files, sorted. Raises: Unavailable, InvalidInput when the storage cannot be used."""

    def folder(self, policy: PolicyId) -> Folder:
        """Returns a policy's folder, which is created with its first file."""

    def close(self) -> None:
        """Releases the storage when the store stops gracefully."""
