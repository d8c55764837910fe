"""Whose prefix of a bucket it is: two stores that wrote to one would overwrite and remove each other's versions.

A store that starts writes an object with its name, unless another store's is there; it looks at it again before each
change, so that of two that started at the same moment, or of one that was taken for dead, only the later one goes on.
"""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from astraflow.contract.errors import Conflict, InvalidInput
from astraflow.runtime.logs import get_logger

log = get_logger()

ID_FILE = "store-id"


class ClaimObject(Protocol):
    """The object in the bucket."""

    def read(self) -> bytes | None:
        """What is in it; None when it is not there. Raises: Unavailable."""

    def write(self, data: bytes) -> None:
        """Make or replace it. Raises: Unavailable."""

    def remove(self) -> None:
        """Raises: Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    store: str
    host: str


class Claim:
    """One store's hold on a prefix. The store is known by a file in its directory, which one process holds at a time:
    so a store that was killed finds its own name, and goes on."""

    def __init__(self, object_: ClaimObject, *, place: str, directory: Path, may_take_over: bool) -> None:
        self._object = object_
        self._place = place
        self._id_file = directory / ID_FILE
        self._may_take_over = may_take_over
        self._is_taken = False

    def take(self) -> None:
        """Make the place this store's. Raises: InvalidInput when it is another's; Unavailable."""
        owner = self._owner()
        if owner is not None and owner.store != self._store() and not self._may_take_over:
            raise InvalidInput(
                f"{self._place} is used by another weight store, on {owner.host}: stop that one, or give this one a "
                "prefix of its own. If that machine is gone for good, start this store with `take_over = true` in "
                "`weights.keep_in`"
            )
        if owner is not None and owner.store != self._store():
            log.warning("weights_taken_over", place=self._place, host=owner.host)
        said = {"store": self._store(), "host": socket.gethostname()}
        self._object.write(json.dumps(said).encode())
        self._is_taken = True

    def check(self) -> None:
        """Raises: Conflict when the place is another store's by now; Unavailable."""
        owner = self._owner()
        if owner is None and not self._is_taken:
            return
        if owner is None or owner.store != self._store():
            who = f"the weight store on {owner.host}" if owner is not None else "another weight store, which left"
            raise Conflict(
                f"{self._place} was taken over by {who}: this one keeps nothing any more. "
                "Start it again, or give it a prefix of its own"
            )

    def release(self) -> None:
        """Leave the place to whoever comes next, if it is this store's. Raises: Unavailable."""
        owner = self._owner()
        if self._is_taken and owner is not None and owner.store == self._store():
            self._object.remove()
        self._is_taken = False

    def _owner(self) -> _Owner | None:
        data = self._object.read()
        if data is None:
            return None
        try:
            said = json.loads(data)
            return _Owner(store=str(said["store"]), host=str(said["host"]))
        except (ValueError, KeyError, TypeError):
            return _Owner(store="", host="an unknown host")

    def _store(self) -> str:
        if not self._id_file.exists():
            self._id_file.write_text(uuid4().hex)
        return self._id_file.read_text()
