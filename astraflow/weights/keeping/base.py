"""The seam between the weight store and the places its files are kept in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from astraflow.contract.ids import PolicyId
from astraflow.weights.sources import Source


class Folder(Protocol):
    """One policy's files, by name: each is there whole or not at all, whatever happens while it is written.

    Methods block; any thread may call them. All may raise Unavailable when the place cannot be reached.
    """

    def sizes(self) -> Mapping[str, int]:
        """Every file, with its bytes."""

    def open(self, name: str) -> Source:
        """A file, to be closed. Raises: UnknownVersion, also while it is read, when it was removed."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Make or replace a file; it is as lasting as the place is when this returns.

        Raises: StorageFull, Unavailable; the name then has what it had before, or the new file, and no mixture.
        """

    def rename(self, name: str, new_name: str) -> None:
        """Give a file another name, which is free or taken over."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, in that order, for good when this returns; one that is not there is no error."""


class Keep(Protocol):
    """A place for the files of all policies, which belongs to one store at a time."""

    is_durable: bool
    """Whether files outlast the machine's memory."""

    def claim(self) -> None:
        """Make the place this store's own; before anything else. Raises: InvalidInput when another store has it;
        Unavailable."""

    def policies(self) -> Sequence[PolicyId]:
        """Those that have files here, sorted. Raises: Unavailable, InvalidInput when the place cannot be used."""

    def folder(self, policy: PolicyId) -> Folder:
        """A policy's files; made when the first is written."""

    def close(self) -> None:
        """The store stops in good order."""
