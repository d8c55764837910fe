"""Which failed steps set a batch aside."""

import json

import pytest

from astraflow.contract.batches import StepEnd, StepFailure
from astraflow.contract.ids import BatchId, PolicyId
from astraflow.dataflow.serving.failed_steps import MAX_FAILURES, MAX_IN_A_ROW, FailedSteps, Verdict

BATCH = BatchId("solver:7")
KILLED = StepEnd.UNEXPLAINED


def failure(attempt: str, end: StepEnd = StepEnd.ERROR, *, batch: BatchId = BATCH, step_s: float = 1.0) -> StepFailure:
    error = "IndexError: index out of range" if end is StepEnd.ERROR else ""
    return StepFailure(policy=PolicyId("solver"), batch=batch, attempt=attempt, end=end, error=error, step_s=step_s)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([StepEnd.ERROR], Verdict.REDELIVER),
        ([StepEnd.ERROR, StepEnd.ERROR], Verdict.SET_ASIDE),
        ([KILLED, KILLED], Verdict.REDELIVER),
        ([KILLED, KILLED, KILLED], Verdict.SET_ASIDE),
        ([KILLED, StepEnd.ERROR], Verdict.REDELIVER),
        ([KILLED, KILLED, StepEnd.ERROR], Verdict.SET_ASIDE),
        ([StepEnd.STOPPED] * 9, Verdict.NOTHING),
        ([StepEnd.ERROR, *[StepEnd.STOPPED] * 9], Verdict.NOTHING),
    ],
)
def test_two_errors_or_three_unexplained_ends_set_a_batch_aside(ends: list[StepEnd], expected: Verdict) -> None:
    steps = FailedSteps()
    verdicts = [steps.observe(failure(str(number), end), is_hung=False) for number, end in enumerate(ends)]
    assert verdicts[-1] is expected
    assert Verdict.SET_ASIDE not in verdicts[:-1]


@pytest.mark.parametrize("end", list(StepEnd))
def test_a_step_that_hung_counts_as_an_error_however_it_ended(end: StepEnd) -> None:
    steps = FailedSteps()
    assert steps.observe(failure("1", end, step_s=300), is_hung=True) is Verdict.REDELIVER
    assert steps.observe(failure("2", end, step_s=300), is_hung=True) is Verdict.SET_ASIDE
    assert steps.of(BATCH)[0].error


def test_a_repeated_report_counts_once_also_after_a_restart_and_when_the_next_batch_has_the_number() -> None:
    steps = FailedSteps()
    steps.observe(failure("1"), is_hung=False)
    assert steps.observe(failure("1"), is_hung=False) is Verdict.NOTHING
    steps = FailedSteps.from_state_dict(json.loads(json.dumps(steps.state_dict())))
    assert steps.observe(failure("1"), is_hung=False) is Verdict.NOTHING
    assert steps.observe(failure("2"), is_hung=False) is Verdict.SET_ASIDE
    steps.count_set_aside(set())
    steps = FailedSteps.from_state_dict(json.loads(json.dumps(steps.state_dict())))
    assert steps.observe(failure("2"), is_hung=False) is Verdict.NOTHING
    assert steps.of(BATCH) == []


def test_a_trained_batch_forgets_its_failures_but_not_those_of_the_batch_after_it() -> None:
    steps = FailedSteps()
    steps.observe(failure("1", batch=BatchId("solver:8")), is_hung=False)
    steps.observe(failure("2"), is_hung=False)
    steps.forget_acknowledged(BATCH)
    assert steps.of(BATCH) == []
    assert steps.observe(failure("3", batch=BatchId("solver:8")), is_hung=False) is Verdict.SET_ASIDE


def test_when_many_batches_in_a_row_fail_the_batches_are_not_the_cause() -> None:
    steps = FailedSteps()
    for number in range(MAX_IN_A_ROW):
        steps.observe(failure(f"{number}a"), is_hung=False)
        assert steps.observe(failure(f"{number}b"), is_hung=False) is Verdict.SET_ASIDE
        steps.count_set_aside(set())
    assert steps.observe(failure("a"), is_hung=False) is Verdict.REDELIVER
    assert steps.observe(failure("b"), is_hung=False) is Verdict.OTHER_CAUSE
    for number in range(100):
        assert steps.observe(failure(f"c{number}"), is_hung=False) is Verdict.OTHER_CAUSE
    assert len(steps.of(BATCH)) == MAX_FAILURES
    steps.forget_acknowledged(BATCH)
    steps.observe(failure("d"), is_hung=False)
    assert steps.observe(failure("e"), is_hung=False) is Verdict.SET_ASIDE
