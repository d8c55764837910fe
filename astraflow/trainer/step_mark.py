"""Mark of the running step on disk, from which the next process learns that the step ended this one, and how."""

import faulthandler
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astraflow.contract.batches import StepEnd, StepFailure
from astraflow.contract.errors import AstraFlowError, StorageFull
from astraflow.contract.ids import BatchId, PolicyId
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.plugins import plugin_cause
from astraflow.runtime.retries import TRANSIENT
from astraflow.wire.errors import is_disk_full

log = get_logger()

ALIVE_S = 2.0
"""Interval at which the mark of a running step is renewed. Seconds."""

REPORT_FAILURE_S = 5.0
"""Time in which a process that a step ends reports it; otherwise its next process does. Seconds."""

MAX_ERROR_CHARS = 1000
"""Length of an error that is reported."""

_RANK_FAILED = "trainer.rank_failed"
"""Code of an exception on another rank; the other errors of that type mean that a rank was lost."""


class StepMark:
    """File in the trainer's folder that exists while a step runs, and after a step that ended the process.

        no mark ──begin──► marked ──end──► no mark
                             │ ▲ renew
                             ├──note(error, or stopped)──► noted ──┐
                             └──killed────────────────────────────┴──► next process: `failure()`, then end

    A fatal error of the interpreter, such as a segmentation fault, is written beside it by `faulthandler`. Marks are
    not synchronised with the disk: after a failure of the machine there may be none, and the batch is just repeated.
    """

    def __init__(self, folder: Path, policy: PolicyId, *, clock: Clock) -> None:
        self._path = folder / "step.json"
        self._fatal_path = folder / "step.fatal"
        self._policy = policy
        self._clock = clock
        self._values: dict[str, Any] = {}
        self._fatal_error = ""
        """First line and source line of the fatal error that ended the previous process; empty without one."""

    @contextmanager
    def recording_fatal_errors(self) -> Iterator[None]:
        """Reads the fatal error of the previous process; writes those of this one to the file beside the mark, unless
        they are written elsewhere."""
        self._fatal_error = self._read_fatal_error()
        if faulthandler.is_enabled():
            yield
            return
        with self._fatal_path.open("w") as file:
            faulthandler.enable(file, all_threads=False)
            try:
                yield
            finally:
                faulthandler.disable()

    def begin(self, batch: BatchId) -> None:
        self._values = {"batch": batch, "attempt": secrets.token_hex(8), "began_at": self._clock.wall()}
        self.renew()

    def renew(self) -> None:
        """Records that the step still runs."""
        self._write(alive_at=self._clock.wall())

    def note(self, end: StepEnd, problem: Exception | None = None) -> StepFailure:
        """Records how the step ended; returns the report."""
        self._write(alive_at=self._clock.wall(), end=end.value, error=error_text(problem) if problem else "")
        return self._as_failure()

    def end(self) -> None:
        self._values = {}
        self._path.unlink(missing_ok=True)

    def failure(self) -> StepFailure | None:
        """Returns the report of the step that ended the previous process; None if it ended in no step."""
        try:
            self._values = json.loads(self._path.read_bytes())
            if "end" not in self._values:
                end = StepEnd.ERROR if self._fatal_error else StepEnd.UNEXPLAINED
                self._values |= {"end": end.value, "error": self._fatal_error}
            return self._as_failure()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:  # torn by a failure of the machine
            log.warning("step_mark_unreadable", path=str(self._path), problem=repr(problem))
            self.end()
            return None

    def _as_failure(self) -> StepFailure:
        values = self._values
        return StepFailure(
            policy=self._policy,
            batch=BatchId(values["batch"]),
            attempt=str(values["attempt"]),
            end=StepEnd(values["end"]),
            error=str(values["error"]),
            step_s=max(0.0, float(values["alive_at"]) - float(values["began_at"])),
        )

    def _write(self, **changes: Any) -> None:
        """Replaces the file, so that a kill leaves the old or the new one. Errors are logged: a step needs no mark."""
        self._values |= changes
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._values))
            new.replace(self._path)
        except OSError as problem:
            log.warning("step_mark_not_written", path=str(self._path), problem=str(problem))

    def _read_fatal_error(self) -> str:
        try:
            lines = self._fatal_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        begin = max(
            (number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), default=None
        )
        if begin is None:
            return ""
        source_line = next((line.strip() for line in lines[begin:] if line.startswith("  File ")), "")
        return f"{lines[begin]} {source_line}".strip()[:MAX_ERROR_CHARS]


def step_end(problem: Exception) -> StepEnd | None:
    """Returns how a step ended that raised this error; None for a full disk, which has nothing to do with the batch."""
    if isinstance(problem, StorageFull) or is_disk_full(problem):
        return None
    is_rank_failed = isinstance(problem, AstraFlowError) and problem.code == _RANK_FAILED
    return StepEnd.UNEXPLAINED if isinstance(problem, TRANSIENT) and not is_rank_failed else StepEnd.ERROR


def error_text(problem: Exception) -> str:
    """Returns type, message and the user's line of an error, such as `ValueError: x (loss.py, line 3)`."""
    return plugin_cause(problem)[:MAX_ERROR_CHARS]
