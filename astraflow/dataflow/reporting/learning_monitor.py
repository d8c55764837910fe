"""Examines the learning of the run at intervals, and records faults that begin and end."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from astraflow.contract.ids import PolicyId
from astraflow.contract.learning_faults import STEP
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record
from astraflow.contract.values import Json
from astraflow.dataflow.history.archive import Archive
from astraflow.dataflow.run import Run
from astraflow.learning.records import examine_archive

EVERY_S = 5.0
"""Interval of examinations, when each is quick. Seconds."""

MOST_SHARE = 0.01
"""Largest share of the time that examinations take: over long texts they become rarer."""

ABSENT_TIMES = 3
"""Examinations without a fault after which it is over: a value near its threshold is reported once."""


class LearningMonitor:
    """Keeps the faults of the latest examination; it reads the archive, so that a restart changes nothing."""

    def __init__(self, run: Run, archive: Archive) -> None:
        self._run = run
        self._archive = archive
        self._steps: Mapping[PolicyId, int] = {}
        self._absent: dict[tuple[str, str], int] = {}
        self._known: tuple[Record, ...] = ()
        self._has_figures = False
        run.journal.load_state("learning", self.load_state_dict)
        run.journal.register_state("learning", self.state_dict)

    @property
    def latest(self) -> tuple[Record, ...]:
        """Faults of all policies; none before the first examination of this process."""
        return self._known if self._has_figures else ()

    async def work(self) -> None:
        """Examines after new steps, until cancelled. Errors are counted and suppressed: no run depends on it."""
        while True:
            began_at = time.perf_counter()
            with self._archive.losses.counting("examination"):
                await self.examine()
            passed_s = time.perf_counter() - began_at
            await self._run.clock.sleep(max(EVERY_S, passed_s / MOST_SHARE))

    async def examine(self) -> None:
        """Examines the run if a policy has new steps."""
        steps = {policy: stream.counts.steps for policy, stream in self._run.streams.items()}
        if steps == self._steps:
            return
        completion = self._run.stop_condition.completion
        examine = partial(
            examine_archive,
            steps=steps,
            earlier=self._known,
            is_learned=completion is not None and completion.has_learned,
        )
        records = await self._archive.read(examine)
        self._steps = steps
        self._update(records)

    def _update(self, records: tuple[Record, ...]) -> None:
        """Takes over the faults of an examination, keeps those that are absent for a short time, records changes."""
        before = {_key(record): record for record in self._known}
        present = {_key(record): record for record in records}
        for key, record in present.items():
            if key not in before:
                self._run.events.add_record(record)
        kept: list[Record] = []
        for key, record in before.items():
            self._absent[key] = 0 if key in present else self._absent.get(key, 0) + 1
            if self._absent[key] >= ABSENT_TIMES:
                self._run.events.add_record(replace(record, kind=RecordKind.LEARNING_FAULT_OVER))
                del self._absent[key]
            elif key not in present:
                kept.append(record)
        self._known, self._has_figures = (*records, *kept), True
        self._run.journal.touch()

    def state_dict(self) -> dict[str, Json]:
        """Returns the steps at which the faults began."""
        return {"begun": [[record.subject, record.cause, record.values[STEP]] for record in self._known]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the faults without their figures, which the first examination measures again."""
        self._known = tuple(
            Record(kind=RecordKind.LEARNING_FAULT, subject=subject, cause=cause, values={STEP: step})
            for subject, cause, step in state["begun"]
        )


def _key(record: Record) -> tuple[str, str]:
    return record.subject, record.cause
