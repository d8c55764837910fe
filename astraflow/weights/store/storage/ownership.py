"""Ownership of a bucket prefix: two stores with one prefix would overwrite and remove each other's versions.

At startup a store writes an object with its id, unless the object of another store exists. It checks the object
before each change, so that after a simultaneous start, or a wrong takeover, only the later store continues.
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


class OwnershipObject(Protocol):
    """Object in the bucket that names the owner."""

    def read(self) -> bytes | None:
        """Returns the content; None when the object does not exist. Raises: Unavailable."""

    def write(self, data: bytes) -> None:
        """Creates or replaces the object. Raises: Unavailable."""

    def remove(self) -> None:
        """Removes the object. Raises: Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    store: str
    host: str


class StorageOwnership:
    """Ownership of a prefix by one store. A file in the store's directory, which one process locks at a time, holds the
    store's id. A store that was killed therefore recognizes its own object and continues."""

    def __init__(self, object_: OwnershipObject, *, location: str, directory: Path, may_take_over: bool) -> None:
        self._object = object_
        self._location = location
        self._id_file = directory / ID_FILE
        self._may_take_over = may_take_over
        self._is_acquired = False

    def acquire(self) -> None:
        """Takes ownership of the prefix. Raises: InvalidInput when another store owns it; Unavailable."""
        owner = self._owner()
        if owner is not None and owner.store != self._store_id() and not self._may_take_over:
            raise InvalidInput(
                f"cannot use {self._location}: another weight store on {owner.host} owns it; stop that store, or give "
                "this one its own prefix. If that machine no longer exists, start this store with `take_over = true` "
                "in `weights.storage`",
                code="storage.owned_by_another_store",
            )
        if owner is not None and owner.store != self._store_id():
            log.warning("weights_taken_over", location=self._location, host=owner.host)
        owner_fields = {"store": self._store_id(), "host": socket.gethostname()}
        self._object.write(json.dumps(owner_fields).encode())
        self._is_acquired = True

    def check(self) -> None:
        """Checks that no other store has taken the prefix over. Raises: Conflict, Unavailable."""
        owner = self._owner()
        if owner is None and not self._is_acquired:
            return
        if owner is None or owner.store != self._store_id():
            other = (
                f"the weight store on {owner.host}" if owner is not None else "another weight store, which has stopped"
            )
            raise Conflict(
                f"cannot write to {self._location}: {other} has taken it over; restart this store, or give it its own "
                "prefix",
                code="storage.taken_over",
            )

    def release(self) -> None:
        """Releases the prefix for the next store, if this store owns it. Raises: Unavailable."""
        owner = self._owner()
        if self._is_acquired and owner is not None and owner.store == self._store_id():
            self._object.remove()
        self._is_acquired = False

    def _owner(self) -> _Owner | None:
        data = self._object.read()
        if data is None:
            return None
        try:
            fields = json.loads(data)
            return _Owner(store=str(fields["store"]), host=str(fields["host"]))
        except (ValueError, KeyError, TypeError):
            return _Owner(store="", host="an unknown host")

    def _store_id(self) -> str:
        if not self._id_file.exists():
            self._id_file.write_text(uuid4().hex)
        return self._id_file.read_text()
