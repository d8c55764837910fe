"""Wakes, one after the other: a model decides, and how that ends says when it may decide again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from astraflow.contract.maintenance import Budget, MaintainerMode, MaintainerState
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.aftermath import Aftermath
from maintainer.attention import Attention
from maintainer.budget import Budgets
from maintainer.deciding import Conversation, Decided, Ending
from maintainer.llm.base import Llm
from maintainer.observation import Signal
from maintainer.recording import Recorder
from maintainer.toolbox.changes import Done
from maintainer.toolbox.toolbox import Toolbox
from maintainer.transcript import Kind
from maintainer.unsettled import Unsettled

log = get_logger()

ALARM_AFTER = 3
"""Wakes in a row that the model failed in: people are told."""
DAY_S = 86400.0


class Wakes:
    """Those of one process.

    sleeping ──► awake ──► sleeping              it was said what there was to say
                   ├─────► backing off           the model failed: it is left alone for a while
                   ├─────► over budget           of this wake, or of the day
                   └─────► stopped               people said so
    """

    def __init__(
        self,
        llm: Llm,
        *,
        budgets: Budgets,
        attention: Attention,
        aftermath: Aftermath,
        recorder: Recorder,
        clock: Clock,
        max_output_tokens: int,
    ) -> None:
        self._llm = llm
        self._budgets = budgets
        self._attention = attention
        self._aftermath = aftermath
        self._recorder = recorder
        self._clock = clock
        self._max_output_tokens = max_output_tokens
        self.state = MaintainerState.SLEEPING
        self.last = ""
        """Name of the latest."""
        self.last_at: float | None = None
        """When that began, Unix seconds."""
        self.woken_by: tuple[str, ...] = ()
        self.failed_in_a_row = 0
        self._done: Sequence[Done] = ()
        """What the latest has done so far."""
        self._is_noted = True
        """Whether whoever comes next was told of it."""

    async def record(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Write down something of the latest wake."""
        await self._recorder.record(kind, body, self.last)

    def rest(self) -> None:
        """Nothing is the matter; what was said of the model and the budget stands until it may be asked again."""
        if not self._attention.is_resting or self.state is MaintainerState.STOPPED:
            self.state = MaintainerState.SLEEPING

    async def resume(self, unsettled: Unsettled) -> None:
        """End the wake that the process before was in when it ended, if it was in one."""
        wake = unsettled.wake
        if not wake:
            return
        await self._aftermath.resume(wake, tuple(unsettled.done))
        await self._recorder.record(Kind.SLEEP, self._sums("cut_off"), wake)

    async def stop(self) -> None:
        """People cut it short."""
        self._budgets.end()
        if not self._is_noted:
            reason = "people stopped this wake"
            await self._aftermath.note(self._done, wake=self.last, words="", otherwise=reason)
        await self.record(Kind.SLEEP, self._sums("stopped"))
        self.state = MaintainerState.STOPPED

    async def wake(
        self,
        signals: Sequence[Signal],
        *,
        mode: MaintainerMode,
        opening: Callable[[], str],
        toolbox: Callable[[str], Toolbox],
    ) -> Decided:
        """Tell a model what is the matter, let it ask for tools, and note what came of it.

        opening: the first message, asked for once the budget of the wake is open. toolbox: of the wake of that name.
        """
        self._budgets.begin()
        self._done, self._is_noted = (), False
        self.last = f"w-{int(self._clock.wall() * 1000):012x}"
        self.last_at, self.woken_by = self._clock.wall(), tuple(signal.kind.value for signal in signals)
        self.state = MaintainerState.AWAKE
        told = [{"signal": one.kind.value, "pool": one.pool, "value": one.value} for one in signals]
        await self.record(Kind.WAKE, {"signals": told, "mode": mode.value})
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
        decided = await conversation.run(opening())
        await self._settle(decided, signals)
        await self._aftermath.note(tools.done, wake=self.last, words=decided.note)
        self._is_noted = True
        await self.record(Kind.SLEEP, self._sums(decided.ending.value))
        self._budgets.end()
        return decided

    async def over_budget(self, spent: Budget) -> None:
        """Sleep: until the next look, or until the next day; and tell people, once for each."""
        is_day = spent.scope == "day"
        if is_day:
            self._attention.sleep(self._budgets.seconds_to_midnight())
        self.state = MaintainerState.OVER_BUDGET
        body = {"scope": spent.scope, "unit": spent.unit, "used": spent.used, "limit": spent.limit}
        await self.record(Kind.BUDGET, body)
        until = "the next day (UTC)" if is_day else "its next look"
        how = "is spent" if spent.used >= spent.limit else "allows no further turn"
        text = (
            f"the maintainer's budget of a {spent.scope} {how} ({spent.unit}: {spent.used:g} of {spent.limit:g}); "
            f"it sleeps until {until}, the rule carries on"
        )
        today = int(self._clock.wall() // DAY_S)
        await self._aftermath.alarm(f"budget:{spent.scope}:{spent.unit}:{today}", "warning", text)

    async def _settle(self, decided: Decided, signals: Sequence[Signal]) -> None:
        """What the ending means for the next wake."""
        match decided.ending:
            case Ending.DONE:
                self.failed_in_a_row = 0
                self._aftermath.is_well("model")
                self._attention.woke(signals)
                self.state = MaintainerState.SLEEPING
            case Ending.OVER_BUDGET if decided.spent is not None:
                self._attention.woke(signals)
                await self.over_budget(decided.spent)
            case _:
                await self._model_failed(decided)

    async def _model_failed(self, decided: Decided) -> None:
        """Nothing was done because of it; the rule carries on. It is tried again later."""
        problem = decided.failed
        assert problem is not None  # noqa: S101 (it ended so)
        rest_s = self._attention.failed(retry_after_s=problem.retry_after_s)
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
        if self.failed_in_a_row >= ALARM_AFTER:
            text = f"the model has failed {self.failed_in_a_row} times in a row ({problem}); the rule carries on"
            await self._aftermath.alarm("model", "warning", text)

    def _sums(self, outcome: str) -> dict[str, Any]:
        use = self._budgets.wake
        return {
            "tool_calls": use.tool_calls,
            "tokens": use.tokens,
            "usd": use.usd,
            "duration_s": round(self._budgets.duration_s, 3),
            "outcome": outcome,
        }
