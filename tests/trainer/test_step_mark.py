"""What a trainer's next process learns about the step that ended the one before."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.contract.batches import StepEnd, StepFailure
from astraflow.contract.errors import DeadlineExceeded, InvalidInput, StorageFull, Unavailable
from astraflow.contract.ids import BatchId, PolicyId
from astraflow.trainer.step_mark import StepMark, error_text, step_end
from tests.fakes.clock import ManualClock

BATCH = BatchId("solver:7")


def mark(folder: Path, clock: ManualClock | None = None) -> StepMark:
    return StepMark(folder, PolicyId("solver"), clock=clock or ManualClock())


def next_failure(folder: Path) -> StepFailure | None:
    """Returns what the next process finds."""
    next_mark = mark(folder)
    with next_mark.recording_fatal_errors():
        return next_mark.failure()


def test_a_step_that_ended_leaves_nothing(tmp_path: Path) -> None:
    running = mark(tmp_path)
    running.begin(BATCH)
    running.end()
    assert next_failure(tmp_path) is None


def test_a_killed_step_is_unexplained_and_its_time_is_that_of_the_last_renewal(tmp_path: Path) -> None:
    clock = ManualClock()
    running = mark(tmp_path, clock)
    running.begin(BATCH)
    clock.advance(40)
    running.renew()
    clock.advance(1000)
    failure = next_failure(tmp_path)
    assert failure is not None
    assert (failure.batch, failure.end, failure.error, failure.step_s) == (BATCH, StepEnd.UNEXPLAINED, "", 40)
    again = next_failure(tmp_path)
    assert again == failure  # until it is reported


def test_two_attempts_have_different_names(tmp_path: Path) -> None:
    running = mark(tmp_path)
    running.begin(BATCH)
    first = running.note(StepEnd.STOPPED)
    running.begin(BATCH)
    assert running.note(StepEnd.STOPPED).attempt != first.attempt


def test_an_error_that_was_noted_has_type_message_and_place(tmp_path: Path) -> None:
    running = mark(tmp_path)
    running.begin(BATCH)
    try:
        [].pop()
    except IndexError as problem:
        noted = running.note(StepEnd.ERROR, problem)
    assert noted.error.startswith("IndexError: pop from empty list (test_step_mark.py, line ")
    assert next_failure(tmp_path) == noted


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"batch": "solver:7"}', b"\xff\x00", b'{"end": "other"}'])
def test_a_damaged_mark_is_ignored_and_removed(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "step.json").write_bytes(damage)
    assert next_failure(tmp_path) is None
    assert not (tmp_path / "step.json").exists()


def test_a_mark_that_cannot_be_written_does_not_stop_the_step(tmp_path: Path) -> None:
    running = mark(tmp_path / "missing")
    running.begin(BATCH)
    running.renew()
    assert running.note(StepEnd.STOPPED).batch == BATCH
    running.end()
    assert not (tmp_path / "missing").exists()


_CRASH = """
import os, sys
from pathlib import Path
from astraflow.contract.ids import BatchId, PolicyId
from astraflow.runtime.clock import SystemClock
from astraflow.trainer.step_mark import StepMark
mark = StepMark(Path(sys.argv[1]), PolicyId("solver"), clock=SystemClock())
with mark.recording_fatal_errors():
    mark.begin(BatchId("solver:7"))
    os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.real_processes
@pytest.mark.parametrize(
    ("number", "expected", "text"),
    [
        (signal.SIGSEGV, StepEnd.ERROR, "Fatal Python error: Segmentation fault"),
        (signal.SIGABRT, StepEnd.ERROR, "Fatal Python error: Aborted"),
        (signal.SIGKILL, StepEnd.UNEXPLAINED, ""),
    ],
)
def test_a_fatal_error_of_the_interpreter_is_explained_and_a_kill_is_not(
    number: int, expected: StepEnd, text: str, tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONFAULTHANDLER"}
    ended = subprocess.run([sys.executable, "-c", _CRASH, str(tmp_path), str(number)], env=environment, check=False)
    assert ended.returncode == -number
    failure = next_failure(tmp_path)
    assert failure is not None
    assert failure.end is expected
    assert failure.error.startswith(text)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (IndexError("x"), StepEnd.ERROR),
        (MemoryError(), StepEnd.ERROR),
        (InvalidInput("x"), StepEnd.ERROR),
        (Unavailable("x", code="trainer.rank_failed"), StepEnd.ERROR),
        (Unavailable("x", code="trainer.rank_lost"), StepEnd.UNEXPLAINED),
        (DeadlineExceeded("x"), StepEnd.UNEXPLAINED),
        (StorageFull("x"), None),
        (OSError(28, "No space left on device"), None),
    ],
)
def test_the_end_of_a_step_follows_from_its_error(problem: Exception, expected: StepEnd | None) -> None:
    assert step_end(problem) is expected


def test_a_long_error_is_cut() -> None:
    assert len(error_text(ValueError("x" * 10_000))) == 1000
