"""Runs wakes one after the other; the outcome of a wake decides when the next may start."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from astraflow.contract.fleet.maintainer import Budget, MaintainerMode, MaintainerState
from astraflow.contract.record_kinds import Severity
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.agent.budget import Budgets
from maintainer.agent.conversation import Conversation, ConversationResult, Ending
from maintainer.agent.follow_up import FollowUp
from maintainer.agent.llm.interface import Llm
from maintainer.agent.observation.signals import Signal
from maintainer.agent.tools.changes import CompletedAction
from maintainer.agent.tools.toolbox import Toolbox
from maintainer.agent.transcript.pending_actions import PendingActions
from maintainer.agent.transcript.recorder import Recorder
from maintainer.agent.transcript.transcript import Kind
from maintainer.agent.wake_schedule import WakeSchedule

log = get_logger()

ALARM_AFTER_FAILURES = 3
"""Consecutive failed wakes after which people are notified."""
STOPPED_BY_PEOPLE = "people stopped this wake"


class Wakes:
    """Wakes of one process.

    sleeping ──► awake ──► sleeping              the model finished
                   ├─────► backing off           the model failed: no calls for a while
                   ├─────► over budget           of this wake, or of the day
                   └─────► stopped               by the kill switch or the mode
    """

    def __init__(
        self,
        llm: Llm,
        *,
        budgets: Budgets,
        wake_schedule: WakeSchedule,
        follow_up: FollowUp,
        recorder: Recorder,
        clock: Clock,
        max_output_tokens: int,
    ) -> None:
        self._llm = llm
        self._budgets = budgets
        self._wake_schedule = wake_schedule
        self._follow_up = follow_up
        self._recorder = recorder
        self._clock = clock
        self._max_output_tokens = max_output_tokens
        self.state = MaintainerState.SLEEPING
        self.last = ""
        """Name of the latest wake."""
        self.last_at: float | None = None
        """Start of the latest wake, Unix seconds."""
        self.woken_by: tuple[str, ...] = ()
        self.failed_in_a_row = 0
        self._done: Sequence[CompletedAction] = ()
        """Actions of the latest wake so far."""
        self._is_noted = True
        """True once the latest wake's actions are noted in the journal."""

    async def record(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Records an entry of the latest wake."""
        await self._recorder.record(kind, body, self.last)

    def set_idle(self) -> None:
        """Returns to sleeping; keeps a failure or spent budget in the state until the pause is over."""
        if not self._wake_schedule.is_paused or self.state is MaintainerState.STOPPED:
            self.state = MaintainerState.SLEEPING

    async def resume(self, pending_actions: PendingActions) -> None:
        """Ends the wake that was interrupted when the previous process ended, if any."""
        wake = pending_actions.wake
        if not wake:
            return
        await self._follow_up.note_interrupted_wake(wake, tuple(pending_actions.done))
        await self._recorder.record(Kind.SLEEP, self._usage_body("cut_off"), wake)

    async def stop(self) -> None:
        """Ends a wake that the control state stopped."""
        self._budgets.end()
        if not self._is_noted:
            await self._follow_up.write_note(self._done, wake=self.last, model_note="", fallback=STOPPED_BY_PEOPLE)
        await self.record(Kind.SLEEP, self._usage_body("stopped"))
        self.state = MaintainerState.STOPPED

    async def wake(
        self,
        signals: Sequence[Signal],
        *,
        mode: MaintainerMode,
        opening: Callable[[], str],
        toolbox: Callable[[str], Toolbox],
    ) -> ConversationResult:
        """Runs one wake: sends the signals to a model, executes its tool calls, and notes the result.

        opening: first message, built after the wake's budget is open. toolbox: builds the tools for a wake's name.
        """
        self._budgets.begin()
        self._done, self._is_noted = (), False
        self.last = f"w-{int(self._clock.wall() * 1000):012x}"
        self.last_at, self.woken_by = self._clock.wall(), tuple(signal.kind.value for signal in signals)
        self.state = MaintainerState.AWAKE
        signal_bodies = [
            {"signal": signal.kind.value, "pool": signal.pool, "value": signal.value} for signal in signals
        ]
        await self.record(Kind.WAKE, {"signals": signal_bodies, "mode": mode.value})
        tools = toolbox(self.last)
        self._done = tools.done
        conversation = Conversation(
            self._llm,
            tools,
            self._budgets,
            record=self.record,
            clock=self._clock,
            max_output_tokens=self._max_output_tokens,
        )
        result = await conversation.run(opening())
        await self._schedule_next(result, signals)
        await self._follow_up.write_note(tools.done, wake=self.last, model_note=result.note)
        self._is_noted = True
        await self.record(Kind.SLEEP, self._usage_body(result.ending.value))
        self._budgets.end()
        return result

    async def over_budget(self, spent: Budget) -> None:
        """Sleeps until the next check or the next day; notifies people once per budget and day."""
        is_day = spent.scope == "day"
        if is_day:
            self._wake_schedule.pause(self._budgets.today.left_s)
        self.state = MaintainerState.OVER_BUDGET
        body = {"scope": spent.scope, "unit": spent.unit, "used": spent.used, "limit": spent.limit}
        await self.record(Kind.BUDGET, body)
        resumes_at = "the next day (UTC)" if is_day else "its next check"
        condition = "is spent" if spent.used >= spent.limit else "allows no further turn"
        text = (
            f"the maintainer's {spent.scope} budget {condition} ({spent.unit}: {spent.used:g} of {spent.limit:g}); "
            f"it sleeps until {resumes_at}; the rule continues"
        )
        alarm = f"budget:{spent.scope}:{spent.unit}:{self._budgets.today.number}"
        await self._follow_up.raise_alarm(alarm, Severity.WARNING, text)

    async def _schedule_next(self, result: ConversationResult, signals: Sequence[Signal]) -> None:
        """Schedules the next wake from the result."""
        match result.ending:
            case Ending.DONE:
                self.failed_in_a_row = 0
                self._follow_up.clear_alarm("model")
                self._wake_schedule.record_wake(signals)
                self.state = MaintainerState.SLEEPING
            case Ending.OVER_BUDGET if result.exhausted is not None:
                self._wake_schedule.record_wake(signals)
                await self.over_budget(result.exhausted)
            case _:
                await self._handle_model_failure(result)

    async def _handle_model_failure(self, result: ConversationResult) -> None:
        """Records the failure and schedules a retry. The rule continues."""
        problem = result.failed
        assert problem is not None  # noqa: S101 (set by Ending.FAILED)
        rest_s = self._wake_schedule.record_failure(retry_after_s=problem.retry_after_s)
        self.failed_in_a_row += 1
        self.state = MaintainerState.BACKING_OFF
        usage = problem.usage
        body = {
            "failure": problem.failure.value,
            "problem": str(problem),
            "rest_s": rest_s,
            "usage": asdict(usage) if usage is not None else {},
            "usd": self._llm.usd(usage) if usage is not None else 0.0,
            "is_estimated": problem.is_estimated,
            "said": problem.said,
        }
        await self.record(Kind.FAILURE, body)
        log.warning("model_failed", failure=problem.failure.value, problem=str(problem), rest_s=rest_s)
        if self.failed_in_a_row >= ALARM_AFTER_FAILURES:
            text = f"the model has failed {self.failed_in_a_row} times in a row ({problem}); the rule continues"
            await self._follow_up.raise_alarm("model", Severity.WARNING, text)

    def _usage_body(self, outcome: str) -> dict[str, Any]:
        use = self._budgets.wake
        return {
            "tool_calls": use.tool_calls,
            "tokens": use.tokens,
            "usd": use.usd,
            "duration_s": round(self._budgets.duration_s, 3),
            "outcome": outcome,
        }
