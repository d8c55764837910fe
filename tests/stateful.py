"""Registers hypothesis' state machines as tests."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine


def scaled_examples(examples: int) -> int:
    """Returns the number of examples of `make test`, or ten times as many in `make test-long`."""
    assert settings.default is not None
    return examples * settings.default.max_examples // settings.get_profile("astraflow").max_examples


def machine_test(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> type:
    """Returns the test case of a state machine.

    examples: number of random sequences in `make test`; `make test-long` runs ten times as many.
    steps: maximum number of calls in a sequence.
    """
    case = machine.TestCase
    case.settings = settings(
        max_examples=scaled_examples(examples),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return pytest.mark.stateful(case)
