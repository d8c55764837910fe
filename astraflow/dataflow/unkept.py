"""A journal that keeps nothing: for runs that would rather begin anew than wait for a disk."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from astraflow.contract.values import Json
from astraflow.dataflow.journal import Journal


class NoJournal(Journal):
    """Everything is said to be durable at once, and nothing survives the process."""

    is_durable = False

    def __init__(self) -> None:
        self.failure = None
        self._payloads = 0

    def keep_state(self, name: str, dump: Callable[[], Mapping[str, Json]]) -> None:
        """Nothing is saved."""

    def keep_rows(self, owner: str, changed: Callable[[], Mapping[int, Json]]) -> None:
        """Nothing is saved."""

    def forget_rows(self, owner: str) -> None:
        """There are none."""

    def saved_rows(self, owner: str) -> dict[int, Any]:
        """None."""
        return {}

    def saved_state(self, name: str) -> dict[str, Any] | None:
        """None."""
        return None

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """None."""
        return []

    def put(self, statement: str, *values: Any) -> None:
        """Nothing is saved."""

    def keep_payload(self, body: bytes) -> int:
        """A number, and nothing else."""
        self._payloads += 1
        return self._payloads

    def drop_payload(self, number: int) -> None:
        """There is nothing to drop."""

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """None."""
        return iter(())

    def touch(self) -> None:
        """Nothing is saved."""

    async def durable(self) -> None:
        """At once."""

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()
