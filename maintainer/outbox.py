"""What people are still to be told, in a file: a process that ends loses none of it, and says nothing twice."""

import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from astraflow.contract.errors import CorruptData, InvalidInput, StorageFull


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message."""

    kind: str
    """`escalation`, `alarm`, `digest`."""
    severity: str
    title: str
    text: str
    at: float
    """Unix seconds."""
    facts: Mapping[str, str | float] = field(default_factory=dict)
    run: str = ""
    """Whose; filled in when it is to be sent."""
    id: str = ""
    """The same whenever it is sent: a receiver that gets it twice can tell. Filled in, too."""


class Outbox:
    """Notices in order, and how far the journal has been read. Whoever changes it saves it."""

    def __init__(self, path: Path | None, *, run: str) -> None:
        """path: None to keep nothing. What another run left there is still sent; its journal is not this run's.

        Raises: InvalidInput, CorruptData for a file that is none of ours.
        """
        self._path = path
        self._run = run
        self._turn = asyncio.Lock()
        self.waiting: deque[Notice] = deque()
        self.sending: Notice | None = None
        """Taken out, and not known to have arrived: it waits again after a restart."""
        self.cursor: int | None = None
        """The newest entry of the journal that was looked at; None before the first."""
        self.lost = 0
        """Given up: too many waited, it was too old, or no try came through."""
        self.told: dict[str, float] = {}
        """When people were told of a matter last, Unix seconds."""
        self.numbered = 0
        if path is not None:
            self._load(path)

    def add(self, notice: Notice) -> None:
        """One more, behind the others."""
        self.waiting.append(notice)

    async def save(self) -> None:
        """Returns once it is durable. Raises: StorageFull."""
        if self._path is None:
            return
        async with self._turn:
            await asyncio.to_thread(_write, self._path, json.dumps(self._state()))

    @property
    def unsent(self) -> tuple[Notice, ...]:
        """All that are not known to have arrived, oldest first."""
        return (*([self.sending] if self.sending is not None else []), *self.waiting)

    def _state(self) -> dict[str, Any]:
        return {
            "run": self._run,
            "cursor": self.cursor,
            "numbered": self.numbered,
            "lost": self.lost,
            "told": self.told,
            "waiting": [asdict(notice) for notice in self.unsent],
        }

    def _load(self, path: Path) -> None:
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            self.waiting.extend(Notice(**one) for one in said["waiting"])
            self.lost, self.numbered = int(said["lost"]), int(said["numbered"])
            if said["run"] == self._run:
                self.cursor = said["cursor"]
                self.told = dict(said["told"])
        except FileNotFoundError:
            return
        except OSError as problem:
            raise InvalidInput(f"the notices in {path} cannot be read: {problem.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CorruptData(
                f"{path} holds no notices ({type(problem).__name__}): move it away, and begin without what it held"
            ) from None


def _write(path: Path, text: str) -> None:
    """All of it, or none."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as problem:
        raise StorageFull(f"the notices cannot be written to {path}: {problem.strerror}") from problem
