"""Copies every training step of a run from dataflow, or from its archive, into the page's database."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

from sqlalchemy.exc import DBAPIError

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PolicyId
from astraflow.contract.reports.training_steps import TrainingStep, TrainingStepPage, TrainingStepQuery
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from web.database.db import Database
from web.history.recorder import Recorder
from web.history.report_checker import checked_step
from web.history.training_steps import add_steps, last_step

log = get_logger()

COPY_S = 1.0
"""Interval between two looks for new steps. Seconds."""

LAST_COPY_S = 2.0
"""Time limit of the copy when the page stops following a run. Seconds."""


OnSteps = Callable[[Sequence[TrainingStep]], None]


class StepSource(Protocol):
    """Interface of the source of steps: the client of the control plane, or the archive in a run's folder."""

    async def training_steps(self, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns a page of a policy's steps, oldest first."""


async def copy_steps(
    source: StepSource,
    database: Database,
    run_id: int,
    policies: Iterable[PolicyId],
    *,
    on_steps: OnSteps = lambda _: None,
) -> None:
    """Copies the steps after the newest recorded one of each policy.

    on_steps: called with the steps as they were reported, once they are recorded. Raises: AstraFlowError, DBAPIError.
    """
    for policy in policies:
        after = await database.read(lambda session, policy=policy: last_step(session, run_id, policy))  # type: ignore[misc] # lambda with a default
        has_more = True
        while has_more:
            page = await source.training_steps(TrainingStepQuery(policy=policy, after=after))
            steps = _checked(page, policy, after)
            await database.write(lambda session, steps=steps: add_steps(session, run_id, steps))  # type: ignore[misc] # as above
            on_steps(page.steps)
            after = steps[-1].step if steps else after
            has_more = page.has_more and bool(steps)


def _checked(page: TrainingStepPage, policy: PolicyId, after: int) -> list[TrainingStep]:
    """Returns the steps of a page with invalid values replaced. Raises: InvalidInput for steps out of order."""
    steps = [checked_step(step) for step in page.steps]
    is_ascending = all(earlier < later for earlier, later in pairwise([after, *(step.step for step in steps)]))
    if not is_ascending or any(step.policy != policy for step in steps):
        raise InvalidInput(
            f"cannot record the training steps of {policy!r} after step {after}: they are out of order or of another "
            "policy; use a dataflow of this release",
            code="history.steps_out_of_order",
        )
    return steps


class StepRecorder:
    """Copies the new steps of the followed run; also those from before this process, and from outages.

    Asks dataflow when a report shows steps that are not copied yet, so that no step is missing, however many lie
    between two reports.
    """

    def __init__(
        self,
        source: StepSource,
        recorder: Recorder,
        database: Database,
        *,
        clock: Clock,
        on_steps: Callable[[str, Sequence[TrainingStep]], None],
    ) -> None:
        """on_steps: called with the name of the run and its new steps, as they were reported."""
        self._source = source
        self._recorder = recorder
        self._database = database
        self._clock = clock
        self._on_steps = on_steps
        self._run_id: int | None = None
        self._copied: dict[PolicyId, int] = {}
        """Steps that the report showed at the last copy, by policy of this run."""
        self._problem = ""

    async def run(self) -> None:
        """Copies new steps every second until cancelled, then once more."""
        try:
            await periodic(self._whole_copy, every_s=COPY_S, clock=self._clock)
        finally:
            await asyncio.shield(self._last_copy())

    async def copy(self) -> None:
        """Copies the steps that the newest report is the first to show; logs each problem once."""
        try:
            await self._copy()
        except (AstraFlowError, DBAPIError) as problem:
            if str(problem) != self._problem:
                log.warning("steps_not_copied", problem=str(problem))
            self._problem = str(problem)
        else:
            self._problem = ""

    async def _whole_copy(self) -> None:
        """Copies completely even if the caller is cancelled: the writing thread continues anyway."""
        await asyncio.shield(self.copy())

    async def _last_copy(self) -> None:
        try:
            async with asyncio.timeout(LAST_COPY_S):
                await self.copy()
        except TimeoutError:
            log.warning("steps_not_copied", problem="dataflow does not answer")

    async def _copy(self) -> None:
        report, run_id = self._recorder.report, self._recorder.run_id
        if report is None or run_id is None:
            return
        if run_id != self._run_id:
            self._run_id, self._copied = run_id, {}
        shown = {stream.policy: stream.training.steps for stream in report.streams}
        behind = [policy for policy, steps in shown.items() if steps > self._copied.get(policy, 0)]
        on_steps = partial(self._on_steps, report.run)
        await copy_steps(self._source, self._database, run_id, behind, on_steps=on_steps)
        self._copied = shown
