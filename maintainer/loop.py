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
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Actor, Role
from astraflow.contract.maintenance import MaintainerMode, MaintainerOrders, MaintainerState, MaintainerStatus
from astraflow.runtime.aio import periodic
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.aftermath import Aftermath, NotePort
from maintainer.attention import Attention
from maintainer.budget import Budgets
from maintainer.config import MaintainerConfig
from maintainer.hearing import Ear
from maintainer.llm.base import Llm
from maintainer.mirror import KeepPort
from maintainer.names import Names
from maintainer.notifying import Notifier
from maintainer.observation import Memory, Signal, observe
from maintainer.prompt import PROMPT_HASH, SYSTEM, TOOLS_HASH, opening
from maintainer.recording import Recorder
from maintainer.relaying import JournalPort, Relay
from maintainer.sight import Eyes, Sight, WatchPort
from maintainer.standing.live import ReplayPort
from maintainer.standing.standing import Standing
from maintainer.toolbox.ports import FleetPort
from maintainer.toolbox.toolbox import Toolbox
from maintainer.tools.inputs import ReportInput
from maintainer.tools.registry import TOOLS
from maintainer.transcript import Kind, Transcript
from maintainer.views.moment import Moment
from maintainer.views.reports import report_view
from maintainer.waking import Wakes

log = get_logger()

BEAT_S = 0.5
"""People's orders are asked for this often."""
BEAT_TIMEOUT_S = 3.0
RELAY_S = 2.0
"""The journal is read for what people are to be told this often, in whatever mode: that costs no tokens."""


class MaintainerPort(FleetPort, WatchPort, KeepPort, NotePort, JournalPort, Protocol):
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
        recorded: ReplayPort | None = None,
    ) -> None:
        """recorded: who plays the rule over the run's reports; nobody does without."""
        self._config = config
        self._run = run
        self._eyes = eyes
        self._fleet = fleet
        self._llm = llm
        self._names = names
        self._notifier = notifier
        self._relay = Relay(fleet, notifier, clock)
        self._clock = clock
        self._actor = Actor(name=config.name, role=Role.AGENT)
        self._ear = Ear(config.mode, clock)
        self._attention = Attention(config.watch, clock)
        self._budgets = Budgets(config.wake, config.day, clock)
        self._budgets.restore(transcript.known)
        self._recorder = Recorder(transcript, fleet)
        self._aftermath = Aftermath(
            config,
            fleet=fleet,
            names=names,
            actor=self._actor,
            notifier=notifier,
            counters=self._recorder.counters,
            unsettled=self._recorder.unsettled,
            record=self._recorder.record,
            clock=clock,
        )
        self._wakes = Wakes(
            llm,
            budgets=self._budgets,
            attention=self._attention,
            aftermath=self._aftermath,
            recorder=self._recorder,
            clock=clock,
            max_output_tokens=config.max_output_tokens,
        )
        board = config.standing.leaderboard
        self._standing = Standing(
            model=llm.model, board=Path(board) if board else None, actor=self._actor, port=recorded, clock=clock
        )
        self._memory = Memory()
        self._started_at = clock.wall()

    async def run(self) -> None:
        """Until cancelled."""
        await self.begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(periodic(self.beat, every_s=BEAT_S, clock=self._clock))
            tasks.create_task(periodic(self.look, every_s=self._config.watch.observe_s, clock=self._clock))
            tasks.create_task(periodic(self._recorder.mirror.push, every_s=BEAT_S, clock=self._clock))
            tasks.create_task(periodic(self._relay.follow, every_s=RELAY_S, clock=self._clock))
            tasks.create_task(periodic(self._notifier.push, every_s=BEAT_S, clock=self._clock))

    async def begin(self) -> None:
        """Write down who begins, with what; hear what people want."""
        told = [[tool.name, tool.description, tool.strict_schema()] for tool in TOOLS.values()]
        await self._recorder.opened(
            {
                "run": self._run,
                "model": self._llm.model,
                "is_simulated": self._llm.is_simulated,
                "prompt_hash": PROMPT_HASH,
                "tools_hash": TOOLS_HASH,
                "system": SYSTEM,
                "tools": told,
            }
        )
        await self._wakes.resume(self._recorder.unsettled)
        await self.beat()

    async def beat(self) -> None:
        """Say how it is, and hear what to go by: mode and kill switch."""
        try:
            orders = await self._fleet.beat_maintainer(self.status(), timeout_s=BEAT_TIMEOUT_S)
        except AstraFlowError as problem:
            log.warning("not_heard", problem=str(problem))
            return
        if self._ear.take(orders):
            await self._recorder.record(Kind.ORDERS, {"mode": orders.mode.value, "kill": orders.kill.value})

    async def once(self) -> MaintainerStatus:
        """One wake, whatever is or is not the matter; returns how it is then."""
        await self.begin()
        await self._looked(is_forced=True)
        await self._recorder.mirror.push()
        await self.notify()
        await self.beat()
        return self.status()

    async def notify(self) -> None:
        """Tell people what the journal has for them, and whatever else waits."""
        await self._relay.follow()
        await self._notifier.push()

    async def first_message(self) -> str:
        """What a model would be told first if it were woken now."""
        return self._opening(*await self._observe())

    async def look(self) -> None:
        """One turn of the loop."""
        await self._looked()

    async def _looked(self, *, is_forced: bool = False) -> None:
        if not self._ear.may_act:
            is_killed = not self._ear.orders.may_act
            self._wakes.state = MaintainerState.STOPPED if is_killed else MaintainerState.SLEEPING
            is_off = self._ear.mode is MaintainerMode.OFF
            if self._recorder.unsettled.is_open if is_off else is_killed:
                await self._only_settled()
            return
        if self._ear.is_deaf:
            return
        try:
            sight, signals = await self._observe()
            await self._aftermath.settle(sight)
            await self._aftermath.digest(signals)
            await self._standing.refresh(sight)
        except AstraFlowError as problem:
            log.warning("not_looked", problem=str(problem))
            return
        if self._attention.is_due(signals, has_news=bool(self._aftermath.outcomes)) or is_forced:
            await self._awake(sight, signals)
        else:
            self._wakes.rest()

    async def _only_settled(self) -> None:
        """While it is stopped or off: what was begun before is followed to its end, and nothing is begun."""
        if self._ear.is_deaf:
            return
        try:
            sight, _ = await self._observe()
            await self._aftermath.settle(sight)
        except AstraFlowError as problem:
            log.warning("not_looked", problem=str(problem))

    async def _observe(self) -> tuple[Sight, tuple[Signal, ...]]:
        """What is seen now, and what is the matter. Costs no tokens."""
        sight = await self._eyes.look()
        self._memory, signals = observe(self._memory, sight, self._config.watch)
        return sight, signals

    async def _awake(self, sight: Sight, signals: Sequence[Signal]) -> None:
        """A wake, unless the day's budget is spent; cut short when people say so."""
        spent = self._budgets.day_spent()
        if spent is not None:
            await self._wakes.over_budget(spent)
            return
        wake = self._wakes.wake(
            signals,
            mode=self._ear.orders.mode,
            opening=lambda: self._opening(sight, signals),
            toolbox=self.toolbox,
        )
        if await self._ear.until_stopped(wake) is None:
            await self._wakes.stop()

    def toolbox(self, scope: str) -> Toolbox:
        """The tools for one wake."""
        return Toolbox(
            look=self._observe,
            fleet=self._fleet,
            names=self._names,
            actor=self._actor,
            orders=lambda: self._ear.orders,
            clock=self._clock,
            scope=f"{self._actor.name}:{scope}",
            record=self._wakes.record,
        )

    def _opening(self, sight: Sight, signals: Sequence[Signal]) -> str:
        mode = self._ear.orders.mode
        report = report_view(Moment(sight, signals, self._names), ReportInput(), mode=mode)
        return opening(
            signals=signals,
            report_json=report.model_dump_json(),
            mode=mode.value,
            budget={line.unit: line.limit - line.used for line in self._budgets.wake_lines()},
            outcomes=self._aftermath.outcomes,
            proposals_waiting=sight.fleet.waiting,
            names=self._names,
        )

    def status(self) -> MaintainerStatus:
        """How it is."""
        now = self._clock.wall()
        return MaintainerStatus(
            run=self._run,
            model=self._llm.model,
            is_simulated=self._llm.is_simulated,
            state=self._wakes.state,
            mode=self._ear.mode,
            at=now,
            started_at=self._started_at,
            last_wake_at=self._wakes.last_at,
            last_wake=self._wakes.last,
            last_signals=self._wakes.woken_by,
            next_wake_at=now + self._attention.next_in_s,
            budgets=self._budgets.wake_lines() + self._budgets.day_lines(),
            counters=self._recorder.counters.values() | {"notices_lost": float(self._notifier.lost)},
            prompt_hash=PROMPT_HASH,
            tools_hash=TOOLS_HASH,
            troubles=self._troubles(),
            evaluation=self._standing.evaluation,
            evaluation_source=self._standing.source,
            evaluation_problem=self._standing.evaluation_problem,
            live=self._standing.live,
            live_problem=self._standing.live_problem,
        )

    def _troubles(self) -> tuple[str, ...]:
        spent, failed = self._budgets.day_spent(), self._wakes.failed_in_a_row
        found = [
            f"the model has failed {failed} times in a row" if failed else "",
            f"the day's budget is spent: {spent.unit}" if spent is not None else "",
            self._recorder.mirror.trouble,
            f"{self._notifier.lost} notices were not delivered" if self._notifier.lost else "",
        ]
        return tuple(trouble for trouble in found if trouble)
