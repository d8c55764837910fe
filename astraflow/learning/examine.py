"""The examination: all checks over the facts of one policy."""

from collections.abc import Callable, Sequence

from astraflow.contract.learning_faults import STEP
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.contract.records import Record
from astraflow.learning.answers import answer_checks, data_checks
from astraflow.learning.facts import Found, LearningFacts
from astraflow.learning.groups import failure_checks, prompt_checks, spread_checks, term_checks, tool_checks
from astraflow.learning.policies import evaluation_checks, policy_checks
from astraflow.learning.steps import (
    correction_checks,
    entropy_checks,
    length_checks,
    reward_checks,
    row_checks,
    update_checks,
)

Check = Callable[[LearningFacts], Found]

CHECKS: Sequence[Check] = (update_checks, failure_checks, row_checks)
"""Checks of every policy."""

REWARD_CHECKS: Sequence[Check] = (
    evaluation_checks,
    reward_checks,
    entropy_checks,
    spread_checks,
    term_checks,
    answer_checks,
    length_checks,
    correction_checks,
    policy_checks,
    prompt_checks,
    data_checks,
    tool_checks,
)
"""Checks of policies that learn from rewards."""


def examine(facts: LearningFacts, earlier: Sequence[Record] = ()) -> tuple[Record, ...]:
    """Returns the faults of a policy's learning, the most urgent first, as records of the kind `learning_fault`.

    earlier: records of the same policy at an earlier time: a fault that is still there keeps the step of its begin.
    """
    if not facts.steps:
        return ()
    begun = {record.cause: record.values[STEP] for record in earlier}
    records = [
        Record(
            kind=RecordKind.LEARNING_FAULT,
            subject=facts.policy,
            cause=fault.value,
            severity=fault.severity,
            values={STEP: begun.get(fault.value, facts.steps[-1].step), **values},
        )
        for check in (*CHECKS, *(REWARD_CHECKS if facts.is_rewarded else ()))
        for fault, values in check(facts)
    ]
    return tuple(sorted(records, key=lambda record: list(Severity).index(record.severity), reverse=True))
