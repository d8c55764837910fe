"""The maintainer: observe → decide (tools: plan → guard → apply) → verify → note, one function per step.

    tick ──► observe ──► no new signal: sleep (no tokens)
                │
                ▼ new signal
              wake ──► decide: a model calls tools; the guard judges; the mode decides what is applied
                │
                ▼
              note: journal, transcript, notices          verify: after the launch delay, is the target reached?

A failure here does not affect the rule: the fleet service follows it without the maintainer.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet.maintainer import (
    MaintainerControlState,
    MaintainerMode,
    MaintainerState,
    MaintainerStatus,
)
from astraflow.contract.fleet.plans import Actor, Role
from astraflow.contract.records import Record, problem_record
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from maintainer.agent.budget import Budgets
from maintainer.agent.config import MaintainerConfig
from maintainer.agent.control_state import ControlMonitor
from maintainer.agent.follow_up import FollowUp, JournalWriter
from maintainer.agent.llm.interface import Llm
from maintainer.agent.notifications.journal_relay import JournalRelay
from maintainer.agent.notifications.webhook import Notifier
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.signals import Signal, SignalMemory, detect_signals
from maintainer.agent.observation.snapshot import FleetStatusSource, Snapshot, SnapshotReader
from maintainer.agent.prompt import PROMPT_HASH, SYSTEM, TOOLS_HASH, opening
from maintainer.agent.scorecard.live_run import WhatIfSource
from maintainer.agent.scorecard.scorecard import Scorecard
from maintainer.agent.tools.inputs import ReportInput
from maintainer.agent.tools.interfaces import FleetClient
from maintainer.agent.tools.registry import TOOLS
from maintainer.agent.tools.toolbox import Toolbox
from maintainer.agent.tools.views.reports import report_view
from maintainer.agent.tools.views.view_context import ViewContext
from maintainer.agent.transcript.recorder import Recorder
from maintainer.agent.transcript.transcript import Kind, Transcript
from maintainer.agent.transcript.upload import TranscriptStore
from maintainer.agent.wake_schedule import WakeSchedule
from maintainer.agent.wakes import Wakes

log = get_logger()

HEARTBEAT_INTERVAL_S = 0.5
"""Interval of heartbeats, which fetch the mode and the kill switch."""
HEARTBEAT_TIMEOUT_S = 3.0
RELAY_INTERVAL_S = 2.0
"""Interval at which the journal is read for notices, in every mode; costs no tokens."""


class FleetService(FleetClient, FleetStatusSource, TranscriptStore, JournalWriter, Protocol):
    """Interface of the fleet service that the maintainer uses; implemented by the client of the fleet plane."""

    async def send_maintainer_heartbeat(
        self, status: MaintainerStatus, *, timeout_s: float = 10.0
    ) -> MaintainerControlState:
        """Sends the status; returns the control state."""


class Maintainer:
    """Maintainer of one run. Expects an open transcript and connected clients; `run` works until cancelled."""

    def __init__(
        self,
        config: MaintainerConfig,
        *,
        run: str,
        snapshot_reader: SnapshotReader,
        fleet: FleetService,
        llm: Llm,
        names: Names,
        transcript: Transcript,
        notifier: Notifier,
        clock: Clock,
        what_if_source: WhatIfSource | None = None,
    ) -> None:
        """what_if_source: replays the rule over the run's reports; None: the live score is not computed."""
        self._config = config
        self._run = run
        self._snapshot_reader = snapshot_reader
        self._fleet = fleet
        self._llm = llm
        self._names = names
        self._notifier = notifier
        self._relay = JournalRelay(fleet, notifier, clock)
        self._clock = clock
        self._actor = Actor(name=config.name, role=Role.AGENT)
        self._control_monitor = ControlMonitor(config.mode, clock)
        self._wake_schedule = WakeSchedule(config.watch, clock)
        self._budgets = Budgets(config.wake, config.day, clock)
        self._budgets.restore(transcript.known)
        self._recorder = Recorder(transcript, fleet)
        self._follow_up = FollowUp(
            config,
            fleet=fleet,
            names=names,
            actor=self._actor,
            notifier=notifier,
            counters=self._recorder.counters,
            pending_actions=self._recorder.pending_actions,
            record=self._recorder.record,
            clock=clock,
        )
        self._wakes = Wakes(
            llm,
            budgets=self._budgets,
            wake_schedule=self._wake_schedule,
            follow_up=self._follow_up,
            recorder=self._recorder,
            clock=clock,
            max_output_tokens=config.max_output_tokens,
        )
        leaderboard = config.scorecard.leaderboard
        self._scorecard = Scorecard(
            model=llm.model,
            leaderboard=Path(leaderboard) if leaderboard else None,
            actor=self._actor,
            port=what_if_source,
            clock=clock,
        )
        self._memory = SignalMemory()
        self._started_at = clock.wall()

    async def run(self) -> None:
        """Runs all loops until cancelled."""
        await self.begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(periodic(self.heartbeat, every_s=HEARTBEAT_INTERVAL_S, clock=self._clock))
            tasks.create_task(periodic(self.check, every_s=self._config.watch.observe_interval_s, clock=self._clock))
            tasks.create_task(
                periodic(self._recorder.transcript_uploader.upload, every_s=HEARTBEAT_INTERVAL_S, clock=self._clock)
            )
            tasks.create_task(periodic(self._relay.forward_new_entries, every_s=RELAY_INTERVAL_S, clock=self._clock))
            tasks.create_task(periodic(self._notifier.send_queued, every_s=HEARTBEAT_INTERVAL_S, clock=self._clock))

    async def begin(self) -> None:
        """Records the start with prompt and tools, closes an interrupted wake, fetches the control state."""
        tools = [[tool.name, tool.description, tool.strict_schema()] for tool in TOOLS.values()]
        await self._recorder.record_start(
            {
                "run": self._run,
                "model": self._llm.model,
                "is_simulated": self._llm.is_simulated,
                "prompt_hash": PROMPT_HASH,
                "tools_hash": TOOLS_HASH,
                "system": SYSTEM,
                "tools": tools,
            }
        )
        await self._wakes.resume(self._recorder.pending_actions)
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Sends the status; receives the mode and the kill switch."""
        try:
            control_state = await self._fleet.send_maintainer_heartbeat(self.status(), timeout_s=HEARTBEAT_TIMEOUT_S)
        except AstraFlowError as problem:
            log.warning("heartbeat_failed", problem=str(problem))
            return
        if self._control_monitor.update(control_state):
            await self._recorder.record(
                Kind.CONTROL_STATE, {"mode": control_state.mode.value, "kill": control_state.kill.value}
            )

    async def run_one_wake(self) -> MaintainerStatus:
        """Runs one wake regardless of signals; returns the status after it."""
        await self.begin()
        await self._check(is_forced=True)
        await self._recorder.transcript_uploader.upload()
        await self.send_notices()
        await self.heartbeat()
        return self.status()

    async def send_notices(self) -> None:
        """Forwards new journal entries and sends all queued notices."""
        await self._relay.forward_new_entries()
        await self._notifier.send_queued()

    async def first_message(self) -> str:
        """First message that a model would receive if it were woken now."""
        return self._opening(*await self._observe())

    async def check(self) -> None:
        """Runs one iteration of the loop."""
        await self._check(is_forced=self._control_monitor.take_wake_request())

    async def _check(self, *, is_forced: bool = False) -> None:
        if not self._control_monitor.may_act:
            is_kill_switch_on = not self._control_monitor.control_state.may_act
            self._wakes.state = MaintainerState.STOPPED if is_kill_switch_on else MaintainerState.SLEEPING
            is_off = self._control_monitor.mode is MaintainerMode.OFF
            if self._recorder.pending_actions.is_open if is_off else is_kill_switch_on:
                await self._verify_only()
            return
        if self._control_monitor.is_stale:
            return
        try:
            snapshot, signals = await self._observe()
            await self._follow_up.verify_pending(snapshot)
            await self._follow_up.send_daily_digest(signals)
            await self._scorecard.refresh(snapshot)
        except AstraFlowError as problem:
            log.warning("check_failed", problem=str(problem))
            return
        if self._wake_schedule.is_due(signals, has_failed_changes=bool(self._follow_up.failed_changes)) or is_forced:
            await self._wake(snapshot, signals)
        else:
            self._wakes.set_idle()

    async def _verify_only(self) -> None:
        """Verifies pending actions while the maintainer is stopped or off; starts nothing."""
        if self._control_monitor.is_stale:
            return
        try:
            snapshot, _ = await self._observe()
            await self._follow_up.verify_pending(snapshot)
        except AstraFlowError as problem:
            log.warning("check_failed", problem=str(problem))

    async def _observe(self) -> tuple[Snapshot, tuple[Signal, ...]]:
        """Reads a snapshot and detects signals. Costs no tokens."""
        snapshot = await self._snapshot_reader.read()
        self._memory, signals = detect_signals(self._memory, snapshot, self._config.watch)
        return snapshot, signals

    async def _wake(self, snapshot: Snapshot, signals: Sequence[Signal]) -> None:
        """Runs a wake unless the day's budget is spent; stops it when the control state forbids it."""
        spent = self._budgets.exhausted_for_day()
        if spent is not None:
            await self._wakes.over_budget(spent)
            return
        wake = self._wakes.wake(
            signals,
            mode=self._control_monitor.control_state.mode,
            opening=lambda: self._opening(snapshot, signals),
            toolbox=self.toolbox,
        )
        if await self._control_monitor.run_until_stopped(wake) is None:
            await self._wakes.stop()

    def toolbox(self, scope: str) -> Toolbox:
        """Tools for one wake."""
        return Toolbox(
            detect_signals=self._observe,
            fleet=self._fleet,
            names=self._names,
            actor=self._actor,
            control_state=lambda: self._control_monitor.control_state,
            clock=self._clock,
            scope=f"{self._actor.name}:{scope}",
            record=self._wakes.record,
        )

    def _opening(self, snapshot: Snapshot, signals: Sequence[Signal]) -> str:
        mode = self._control_monitor.control_state.mode
        report = report_view(ViewContext(snapshot, signals, self._names), ReportInput(), mode=mode)
        return opening(
            signals=signals,
            report_json=report.model_dump_json(),
            mode=mode.value,
            budget={line.unit: line.limit - line.used for line in self._budgets.wake_lines()},
            outcomes=self._follow_up.failed_changes,
            proposals_waiting=snapshot.fleet.waiting,
            names=self._names,
        )

    def status(self) -> MaintainerStatus:
        """Current status of the maintainer."""
        now = self._clock.wall()
        return MaintainerStatus(
            run=self._run,
            model=self._llm.model,
            is_simulated=self._llm.is_simulated,
            state=self._wakes.state,
            mode=self._control_monitor.mode,
            at=now,
            started_at=self._started_at,
            last_wake_at=self._wakes.last_at,
            last_wake=self._wakes.last,
            last_signals=self._wakes.woken_by,
            next_wake_at=now + self._wake_schedule.next_check_in_s,
            budgets=self._budgets.wake_lines() + self._budgets.day_lines(),
            counters=self._recorder.counters.values() | {"notices_dropped": float(self._notifier.dropped)},
            prompt_hash=PROMPT_HASH,
            tools_hash=TOOLS_HASH,
            problems=self._problems(),
            evaluation=self._scorecard.evaluation,
            evaluation_source=self._scorecard.source,
            evaluation_problem=self._scorecard.evaluation_problem,
            live=self._scorecard.live,
            live_problem=self._scorecard.live_problem,
        )

    def _problems(self) -> tuple[Record, ...]:
        spent, failed = self._budgets.exhausted_for_day(), self._wakes.failed_in_a_row
        not_stored, notifier = self._recorder.transcript_uploader.problem, self._notifier
        problems = (
            problem_record("model_fails", "", failures=failed) if failed else None,
            problem_record("day_budget_spent", "", unit=spent.unit) if spent is not None else None,
            problem_record("transcript_not_stored", "", error=not_stored) if not_stored else None,
            problem_record("notices_dropped", "", notices=notifier.dropped) if notifier.dropped else None,
            problem_record("notices_delayed", "", notices=notifier.delayed) if notifier.delayed else None,
        )
        return tuple(problem for problem in problems if problem is not None)
