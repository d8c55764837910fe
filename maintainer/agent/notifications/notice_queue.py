"""Queue of notices in a file, so that a restart neither loses nor repeats a notice."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from astraflow.contract.errors import CorruptData, InvalidInput, StorageFull
from astraflow.runtime.folders.private_files import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Message for people."""

    kind: str
    """`escalation`, `alarm`, `digest`."""
    severity: str
    title: str
    text: str
    at: float
    """Unix seconds."""
    facts: Mapping[str, str | float] = field(default_factory=dict)
    run: str = ""
    """Run of the notice; set when it is queued."""
    id: str = ""
    """Stable id, by which a receiver detects duplicates; set when it is queued."""
    queued_at: float = 0.0
    """Unix seconds; set when it is queued."""


class NoticeQueue:
    """Notices in order, and the read position in the journal. Callers save it after a change."""

    def __init__(self, path: Path | None, *, run: str) -> None:
        """path: None for no file. Notices of another run are still sent; its cursor is not used.

        Raises: InvalidInput, CorruptData for an invalid file.
        """
        self._path = path
        self._run = run
        self._turn = asyncio.Lock()
        self.waiting: deque[Notice] = deque()
        self.sending: Notice | None = None
        """Notice that is being sent and not known to have arrived; it is queued again after a restart."""
        self.cursor: int | None = None
        """Newest journal entry that was read; None before the first."""
        self.next_attempt_at = 0.0
        """Time before which nothing is sent, because the last attempt failed. Unix seconds."""
        self.dropped = 0
        """Dropped notices: the queue was full, they were too old, or the receiver cannot use them. Count."""
        self.last_sent_at: dict[str, float] = {}
        """Time of the latest notice by its text, Unix seconds; limits repeated notices."""
        self.last_number = 0
        """Number in the id of the latest notice without an id of its own."""
        if path is not None:
            self._load(path)

    def add(self, notice: Notice) -> None:
        """Appends a notice."""
        self.waiting.append(notice)

    async def save(self) -> None:
        """Saves the queue; returns once it is durable. Raises: StorageFull."""
        if self._path is None:
            return
        async with self._turn:
            await asyncio.to_thread(_write, self._path, json.dumps(self._state()))

    @property
    def unsent(self) -> tuple[Notice, ...]:
        """Notices that are not known to have arrived, oldest first."""
        return (*([self.sending] if self.sending is not None else []), *self.waiting)

    def _state(self) -> dict[str, Any]:
        return {
            "run": self._run,
            "cursor": self.cursor,
            "last_number": self.last_number,
            "next_attempt_at": self.next_attempt_at,
            "dropped": self.dropped,
            "last_sent_at": self.last_sent_at,
            "waiting": [asdict(notice) for notice in self.unsent],
        }

    def _load(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            self.waiting.extend(Notice(**fields) for fields in state["waiting"])
            self.dropped, self.last_number = int(state["dropped"]), int(state["last_number"])
            self.next_attempt_at = float(state["next_attempt_at"])
            if state["run"] == self._run:
                self.cursor = state["cursor"]
                self.last_sent_at = dict(state["last_sent_at"])
        except FileNotFoundError:
            return
        except OSError as problem:
            raise InvalidInput(
                f"cannot read the notice queue {str(path)!r}: {problem.strerror}; check its permissions",
                code="maintainer.notices_unreadable",
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CorruptData(
                f"cannot read the notice queue {str(path)!r}: it holds no notices ({type(problem).__name__}); "
                "move the file away to start with an empty queue",
                code="maintainer.notices_corrupt",
            ) from None


def _write(path: Path, text: str) -> None:
    """Replaces the file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, text, is_durable=True)
    except OSError as problem:
        raise StorageFull(
            f"cannot write the notice queue {str(path)!r}: {problem.strerror}; free disk space",
            code="maintainer.storage_full",
        ) from problem
