"""The maintainer: observe → decide (→ plan → guard → apply, by tools) → verify → note, one step a function.

    look ──► observe ──► nothing new? sleep (no tokens)
                │
                ▼ something is the matter
              wake ──► decide: a model asks for tools; the guard judges; the mode says what is carried out
                │
                ▼
              note: journal, transcript, people          verify: after the launch delay, did it come off?

Whatever fails here, the rule carries on: the fleet service follows it by itself.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Actor, KillScope, Role
from astraflow.contract.maintenance import (
    Budget,
    MaintainerMode,
    MaintainerOrders,
    MaintainerState,
    MaintainerStatus,
)
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.aftermath import Aftermath, NotePort
from maintainer.attention import Attention
from maintainer.budget import Budgets
from maintainer.config import MaintainerConfig
from maintainer.counting import Counters
from maintainer.deciding import Conversation, Decided, Ending
from maintainer.llm.base import Llm
from maintainer.mirror import KeepPort, Mirror
from maintainer.names import Names
from maintainer.notifying import Notifier
from maintainer.observation import Memory, Signal, observe
from maintainer.prompt import PROMPT_HASH, SYSTEM, TOOLS_HASH, opening
from maintainer.sight import Eyes, Sight, WatchPort
from maintainer.toolbox import FleetPort, Toolbox
from maintainer.tools.inputs import ReportInput
from maintainer.tools.registry import TOOLS
from maintainer.transcript import Kind, Transcript
from maintainer.views import Views

log = get_logger()

BEAT_S = 0.5
"""People's orders are asked for this often."""
BEAT_TIMEOUT_S = 3.0
DEAF_S = 10.0
"""Without an answer for so long nothing is begun: orders may have changed."""
ALARM_AFTER = 3
"""Wakes in a row that the model failed in: people are told."""
DAY_S = 86400.0


class MaintainerPort(FleetPort, WatchPort, KeepPort, NotePort, Protocol):
    """All that is asked of the fleet service: the fleet plane's client is one."""

    async def beat_maintainer(self, status: MaintainerStatus, *, timeout_s: float = 10.0) -> MaintainerOrders:
        """Say how it is; learn what to go by."""


class Maintainer:
    """One for the run. The transcript is open, the ports are connected; `run` works until cancelled."""

    def __init__(
        self,
        config: MaintainerConfig,
        *,
        run: str,
        eyes: Eyes,
        fleet: MaintainerPort,
        llm: Llm,
        names: Names,
        transcript: Transcript,
        notifier: Notifier,
        clock: Clock,
    ) -> None:
        self._config = config
        self._run = run
        self._eyes = eyes
        self._fleet = fleet
        self._llm = llm
        self._names = names
        self._transcript = transcript
        self._notifier = notifier
        self._clock = clock
        self._actor = Actor(name=config.name, role=Role.AGENT)
        self._attention = Attention(config.watch, clock)
        self._budgets = Budgets(config.wake, config.day, clock)
        self._budgets.restore(transcript.known)
        self._counters = Counters(transcript.known)
        self._mirror = Mirror(fleet, transcript.known)
        self._aftermath = Aftermath(
            config,
            fleet=fleet,
            names=names,
            actor=self._actor,
            notifier=notifier,
            counters=self._counters,
            record=lambda kind, body, wake: self._record(kind, body, wake=wake),
            clock=clock,
        )
        self._memory = Memory()
        self._sight: Sight | None = None
        self._signals: tuple[Signal, ...] = ()
        self._orders = MaintainerOrders(mode=MaintainerMode.OFF, kill=KillScope.NONE)
        self._heard_at: float | None = None
        self._stopped = asyncio.Event()
        """Set while people do not let it go on."""
        self._state = MaintainerState.SLEEPING
        self._started_at = clock.wall()
        self._woke_at: float | None = None
        self._wake = ""
        self._woken_by: tuple[str, ...] = ()
        self._failed_in_a_row = 0
        self._is_writing = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled."""
        await self.begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(periodic(self.beat, every_s=BEAT_S, clock=self._clock))
            tasks.create_task(periodic(self.look, every_s=self._config.watch.observe_s, clock=self._clock))
            tasks.create_task(periodic(self._mirror.push, every_s=BEAT_S, clock=self._clock))
            tasks.create_task(periodic(self._notifier.push, every_s=BEAT_S, clock=self._clock))

    async def begin(self) -> None:
        """Write down who begins, with what; hear what people want."""
        if self._transcript.torn:
            await self._record(Kind.TORN, {"size_bytes": len(self._transcript.torn)})
        told = [[tool.name, tool.description, tool.strict_schema()] for tool in TOOLS.values()]
        await self._record(
            Kind.OPENED,
            {
                "run": self._run,
                "model": self._llm.model,
                "is_simulated": self._llm.is_simulated,
                "prompt_hash": PROMPT_HASH,
                "tools_hash": TOOLS_HASH,
                "system": SYSTEM,
                "tools": told,
            },
        )
        await self.beat()

    async def beat(self) -> None:
        """Say how it is, and hear what to go by: mode and kill switch."""
        try:
            orders = await self._fleet.beat_maintainer(self.status(), timeout_s=BEAT_TIMEOUT_S)
        except AstraFlowError as problem:
            log.warning("not_heard", problem=str(problem))
            return
        is_news = orders != self._orders or self._heard_at is None
        self._orders, self._heard_at = orders, self._clock.now()
        if self._may_act:
            self._stopped.clear()
        else:
            self._stopped.set()
        if is_news:
            log.info("orders", mode=orders.mode.value, kill=orders.kill.value)
            await self._record(Kind.ORDERS, {"mode": orders.mode.value, "kill": orders.kill.value})

    async def once(self) -> MaintainerStatus:
        """One wake, whatever is or is not the matter; returns how it is then."""
        await self.begin()
        await self._looked(is_forced=True)
        await self._mirror.push()
        await self._notifier.push()
        await self.beat()
        return self.status()

    async def first_message(self) -> str:
        """What a model would be told first if it were woken now."""
        sight, signals = await self._observe()
        return self._opening(sight, signals)

    async def look(self) -> None:
        """One turn of the loop."""
        await self._looked()

    async def _looked(self, *, is_forced: bool = False) -> bool:
        """Returns whether a model was asked."""
        if not self._may_act:
            self._state = MaintainerState.SLEEPING if self._orders.may_act else MaintainerState.STOPPED
            return False
        if self._heard_at is None or self._clock.now() - self._heard_at > DEAF_S:
            return False
        try:
            sight, signals = await self._observe()
            await self._aftermath.verify(sight)
            await self._aftermath.digest(signals)
        except AstraFlowError as problem:
            log.warning("not_looked", problem=str(problem))
            return False
        if not self._attention.is_due(self._signals, has_news=bool(self._aftermath.outcomes)) and not is_forced:
            self._rest()
            return False
        return await self._awake()

    def status(self) -> MaintainerStatus:
        """How it is."""
        now = self._clock.wall()
        return MaintainerStatus(
            run=self._run,
            model=self._llm.model,
            is_simulated=self._llm.is_simulated,
            state=self._state,
            mode=self._config.mode if self._heard_at is None else self._orders.mode,
            at=now,
            started_at=self._started_at,
            last_wake_at=self._woke_at,
            last_wake=self._wake,
            last_signals=self._woken_by,
            next_wake_at=now + self._attention.next_in_s,
            budgets=self._budgets.wake_lines() + self._budgets.day_lines(),
            counters=self._counters.values() | {"notices_lost": float(self._notifier.lost)},
            prompt_hash=PROMPT_HASH,
            tools_hash=TOOLS_HASH,
            troubles=self._troubles(),
        )

    @property
    def _may_act(self) -> bool:
        return self._orders.may_act and self._orders.mode is not MaintainerMode.OFF

    async def _observe(self) -> tuple[Sight, tuple[Signal, ...]]:
        """What is seen now, and what is the matter. Costs no tokens."""
        sight = await self._eyes.look()
        self._memory, self._signals = observe(self._memory, sight, self._config.watch)
        self._sight = sight
        return sight, self._signals

    async def _awake(self) -> bool:
        """A wake, unless the day's budget is spent; cut short when people say so."""
        spent = self._budgets.day_spent()
        if spent is not None:
            await self._over_budget(spent)
            return False
        decided = await self._until_stopped(self._decide())
        self._budgets.end()
        if decided is None:
            await self._record(Kind.SLEEP, self._sums("stopped"), wake=self._wake)
            self._state = MaintainerState.STOPPED
        return True

    async def _decide(self) -> Decided:
        """Tell a model what is the matter, and let it ask for tools; then note what came of it."""
        signals, sight = self._signals, self._sight
        assert sight is not None  # noqa: S101 (it was looked at before)
        self._budgets.begin()
        self._wake = f"w-{int(self._clock.wall() * 1000):012x}"
        self._woke_at, self._woken_by = self._clock.wall(), tuple(signal.kind.value for signal in signals)
        self._state = MaintainerState.AWAKE
        told = [{"signal": one.kind.value, "pool": one.pool, "value": one.value} for one in signals]
        await self._record(Kind.WAKE, {"signals": told, "mode": self._orders.mode.value}, wake=self._wake)
        toolbox = self.toolbox(self._wake)
        conversation = Conversation(
            self._llm,
            toolbox,
            self._budgets,
            record=self._record_wake,
            clock=self._clock,
            max_output_tokens=self._config.max_output_tokens,
        )
        decided = await conversation.run(self._opening(sight, signals))
        await self._settle(decided, signals)
        await self._aftermath.note(toolbox.done, wake=self._wake, words=decided.note)
        await self._record(Kind.SLEEP, self._sums(decided.ending.value), wake=self._wake)
        return decided

    def toolbox(self, scope: str) -> Toolbox:
        """The tools for one wake."""
        return Toolbox(
            look=self._observe,
            fleet=self._fleet,
            names=self._names,
            actor=self._actor,
            orders=lambda: self._orders,
            clock=self._clock,
            scope=f"{self._actor.name}:{scope}",
            record=self._record_wake,
        )

    def _opening(self, sight: Sight, signals: Sequence[Signal]) -> str:
        views = Views(sight, signals, self._names, mode=self._orders.mode)
        left = {line.unit: line.limit - line.used for line in self._budgets.wake_lines()}
        return opening(
            signals=signals,
            report_json=views.report(ReportInput()).model_dump_json(),
            mode=self._orders.mode.value,
            budget=left,
            outcomes=self._aftermath.outcomes,
            names=self._names,
        )

    async def _settle(self, decided: Decided, signals: Sequence[Signal]) -> None:
        """What the ending means for the next wake."""
        match decided.ending:
            case Ending.DONE:
                self._failed_in_a_row = 0
                self._aftermath.is_well("model")
                self._aftermath.outcomes.clear()
                self._attention.woke(signals)
                self._state = MaintainerState.SLEEPING
            case Ending.OVER_BUDGET if decided.spent is not None:
                self._aftermath.outcomes.clear()
                self._attention.woke(signals)
                await self._over_budget(decided.spent)
            case _:
                await self._model_failed(decided)

    async def _model_failed(self, decided: Decided) -> None:
        """Nothing was done because of it; the rule carries on. It is tried again later."""
        problem = decided.failed
        assert problem is not None  # noqa: S101 (it ended so)
        rest_s = self._attention.failed(retry_after_s=problem.retry_after_s)
        self._failed_in_a_row += 1
        self._state = MaintainerState.BACKING_OFF
        usage = problem.usage
        body = {
            "failure": problem.failure.value,
            "problem": str(problem),
            "rest_s": rest_s,
            "usage": {} if usage is None else {"input": usage.total - usage.output, "output": usage.output},
            "usd": self._llm.usd(usage) if usage is not None else 0.0,
        }
        await self._record(Kind.FAILURE, body, wake=self._wake)
        log.warning("model_failed", failure=problem.failure.value, problem=str(problem), rest_s=rest_s)
        if self._failed_in_a_row >= ALARM_AFTER:
            text = f"the model has failed {self._failed_in_a_row} times in a row ({problem}); the rule carries on"
            await self._aftermath.alarm("model", "warning", text)

    async def _over_budget(self, spent: Budget) -> None:
        """Sleep: until the next look, or until the next day; and tell people, once for each."""
        is_day = spent.scope == "day"
        if is_day:
            self._attention.sleep(self._budgets.seconds_to_midnight())
        self._state = MaintainerState.OVER_BUDGET
        body = {"scope": spent.scope, "unit": spent.unit, "used": spent.used, "limit": spent.limit}
        await self._record(Kind.BUDGET, body, wake=self._wake)
        until = "the next day (UTC)" if is_day else "its next look"
        text = (
            f"the maintainer's budget of a {spent.scope} is spent ({spent.unit}: {spent.used:g} of {spent.limit:g}); "
            f"it sleeps until {until}, the rule carries on"
        )
        today = int(self._clock.wall() // DAY_S)
        await self._aftermath.alarm(f"budget:{spent.scope}:{spent.unit}:{today}", "warning", text)

    async def _until_stopped(self, work: Awaitable[Decided]) -> Decided | None:
        """What came of it; None when people stopped it."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            log.warning("stopped", mode=self._orders.mode.value, kill=self._orders.kill.value)
            return None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    def _rest(self) -> None:
        if not self._attention.is_resting or self._state is MaintainerState.STOPPED:
            self._state = MaintainerState.SLEEPING

    def _sums(self, outcome: str) -> dict[str, Any]:
        use = self._budgets.wake
        return {
            "tool_calls": use.tool_calls,
            "tokens": use.tokens,
            "usd": use.usd,
            "duration_s": round(self._budgets.duration_s, 3),
            "outcome": outcome,
        }

    def _troubles(self) -> tuple[str, ...]:
        spent = self._budgets.day_spent()
        found = [
            f"the model has failed {self._failed_in_a_row} times in a row" if self._failed_in_a_row else "",
            f"the day's budget is spent: {spent.unit}" if spent is not None else "",
            self._mirror.trouble,
            f"{self._notifier.lost} notices were not delivered" if self._notifier.lost else "",
        ]
        return tuple(trouble for trouble in found if trouble)

    async def _record_wake(self, kind: Kind, body: Mapping[str, Any]) -> None:
        await self._record(kind, body, wake=self._wake)

    async def _record(self, kind: Kind, body: Mapping[str, Any], *, wake: str = "") -> None:
        """Also when its caller is stopped meanwhile: what is in the file is counted and copied."""
        await asyncio.shield(asyncio.create_task(self._written(kind, body, wake)))

    async def _written(self, kind: Kind, body: Mapping[str, Any], wake: str) -> None:
        async with self._is_writing:  # so that the mirror has them in order
            entry = await self._transcript.add(kind, body, wake=wake)
            self._mirror.add(entry)
            self._counters.seen(entry)
