"""Contract tests of every workflow."""

from collections.abc import Callable

import pytest

from astraflow.contract.plugins import Outcome
from astraflow.workflows.scripted.conformance import CHECKS, WorkflowCheck, check_promise


@pytest.mark.anyio
class WorkflowSuite:
    """Tests to inherit. Fixture to provide: `subject`, a function that returns the workflow and a regular episode."""

    unsupported: frozenset[str] = frozenset()
    """Promises that do not apply, such as those about a reward for a workflow that scores nothing."""

    @pytest.mark.parametrize("promise", CHECKS)
    async def test_a_promise_is_kept(self, subject: Callable[[], WorkflowCheck], promise: str) -> None:
        result = await check_promise(promise, subject())

        expected = Outcome.UNSUPPORTED if promise in self.unsupported else Outcome.PASSED
        assert result.outcome is expected, result.detail
