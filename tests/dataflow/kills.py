"""Copies of a journal's files as a kill would leave them, at every point of every commit."""

import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.dataflow.storage.journal import Journal
from astraflow.dataflow.storage.segments import RecordLocation, SegmentFiles


@dataclass(frozen=True)
class Kill:
    """Files as a kill would leave them, and the number of actions reported as durable by then."""

    folder: Path
    durable: int


class KilledFiles(SegmentFiles):
    """Copies all files of the journal before, within and after what it writes and removes."""

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(folder / "payload")
        self._folder = folder
        self._copies = copies
        self.kills: list[Kill] = []
        self.durable = 0

    def write(self, records: Iterable[tuple[RecordLocation, bytes]]) -> None:
        all_of_them = list(records)
        self._kill()
        if all_of_them:
            super().write(all_of_them[: len(all_of_them) // 2])
            self._kill()
            super().write(all_of_them)
            self._kill()

    def remove(self, numbers: Iterable[int]) -> None:
        useless = list(numbers)
        for number in (None, *useless):
            super().remove([] if number is None else [number])
            self._kill()

    def _kill(self) -> None:
        copy = self._copies / str(len(self.kills))
        shutil.copytree(self._folder, copy)
        self.kills.append(Kill(folder=copy, durable=self.durable))


def commits_of(journal: Journal) -> threading.Lock:
    """Returns a lock that each commit of the journal holds, so that files copied under it are between two commits.

    Copying takes time: a copy made during a commit can be a state that no kill leaves.
    """
    lock, write = threading.Lock(), journal._write

    def locked(*arguments: Any) -> None:
        with lock:
            write(*arguments)

    journal._write = locked  # type: ignore[method-assign, assignment]  # accepts any arguments
    return lock
