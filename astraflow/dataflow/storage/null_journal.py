"""A journal that stores nothing, for runs without durability."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from astraflow.contract.values import Json
from astraflow.dataflow.storage.journal import Journal


class NullJournal(Journal):
    """Reports every write as durable without persisting it."""

    is_durable = False

    def __init__(self) -> None:
        self.failure = None
        self.damaged = {}
        self._payloads = 0

    def register_state(self, name: str, dump: Callable[[], Mapping[str, Json]]) -> None:
        """Does nothing."""

    def register_rows(self, owner: str, changed_rows: Callable[[], Mapping[int, Json]]) -> None:
        """Does nothing."""

    def delete_rows(self, owner: str) -> None:
        """Does nothing."""

    def saved_rows(self, owner: str) -> dict[int, Any]:
        """Returns no rows."""
        return {}

    def saved_state(self, name: str) -> dict[str, Any] | None:
        """Returns None."""
        return None

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Returns no rows."""
        return []

    def put(self, statement: str, *values: Any) -> None:
        """Does nothing."""

    def store_payload(self, body: bytes) -> int:
        """Returns a new number and discards the bytes."""
        self._payloads += 1
        return self._payloads

    def drop_payload(self, number: int) -> None:
        """Does nothing."""

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yields nothing."""
        return iter(())

    def touch(self) -> None:
        """Does nothing."""

    async def wait_durable(self) -> None:
        """Returns at once."""

    async def run(self) -> None:
        """Waits until cancelled."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """Does nothing."""
