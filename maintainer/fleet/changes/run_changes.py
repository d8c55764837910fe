"""Changes of the run: plans for the guard, and their execution by dataflow or in the folder of the run."""

import asyncio
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from astraflow.client.local_runs import LAUNCH_LOG, LocalRuns, stop_run
from astraflow.contract.errors import InvalidInput, PlanRefused, Unavailable
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest, Verdict
from astraflow.contract.fleet.run_changes import RUN, RunAction, RunChange
from astraflow.contract.ids import FlowId, PolicyId
from astraflow.contract.plugins import PluginChange, PluginSlot
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import render_summary
from astraflow.runtime.folders.launch_facts import LaunchFacts, write_launch
from astraflow.runtime.folders.run_folders import RUN as RUN_FILE
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.processes.child import run_environment, start_independent
from maintainer.fleet.guard.approval import ApplyAttempt, refusal_message
from maintainer.fleet.guard.rules import verdict
from maintainer.fleet.guard.run_changes import RunGuardInputs, RunRejection, RunSituation
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.records import spending_rate, spent_today
from maintainer.fleet.state.fleet import FleetState
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.idempotency import IdempotentReplies, require_pool_access

FORK_START_S, FORK_POLL_S = 60.0, 0.2
"""Longest wait for the dataflow of a fork, and time between two looks. Seconds."""


class RunControl(Protocol):
    """Interface of dataflow's control plane that changes a run."""

    async def pause_flow(self, flow: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        """Pauses or resumes the issue of a flow's groups."""

    async def change_plugins(self, change: PluginChange) -> str:
        """Changes plugins from the next version on."""

    async def evaluate(self, flow: FlowId, *, actor: str, reason: str) -> object:
        """Begins a round of an evaluation."""


class RunHost(Protocol):
    """Machine on which the processes of the run are started and ended."""

    def stop(self) -> None:
        """Asks the run to end, as Ctrl-C does."""

    def fork(self, policy: str, learning_rate: float, *, name: str) -> None:
        """Starts a new run in the newest kept checkpoint with another learning rate, once for a name."""


class RunOnThisMachine:
    """Run whose folder is on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def find(cls, folder: Path) -> "RunOnThisMachine | None":
        """Returns the run of a folder; None if no run is there."""
        return cls(folder) if (folder / RUN_FILE).exists() else None

    def stop(self) -> None:
        """Ends the main process of the run. Raises: Conflict when it has ended."""
        for run in LocalRuns([self._folder]).all():
            stop_run(run)

    def fork(self, policy: str, learning_rate: float, *, name: str) -> None:
        """Starts the fork in its own session, with the optimizer's state, and waits until its dataflow answers.

        Raises: Unavailable, with the reason, when it has ended or has not answered within `FORK_START_S`.
        """
        folder = RunFolder(self._folder.parent / f"{self._folder.name[:64]}-fork-{name}")
        try:
            if not folder.path.exists():
                self._start(folder, f"policies.{policy}.backend.learning_rate={learning_rate}")
        except OSError as problem:
            raise Unavailable(
                f"cannot fork the run: {problem.strerror}; check its folder", code="fleet.fork_failed"
            ) from None
        deadline, runs = time.monotonic() + FORK_START_S, LocalRuns([folder.path])
        while not _answers(folder):
            [run] = runs.all()
            if not run.is_active or time.monotonic() > deadline:
                reason = "it has not begun in time" if run.is_active else f"it has ended: {run.final_message}"
                raise Unavailable(
                    f"cannot fork the run: {reason}; see {folder.log(LAUNCH_LOG)}", code="fleet.fork_failed"
                )
            time.sleep(FORK_POLL_S)

    def _start(self, folder: RunFolder, setting: str) -> None:
        """Starts the process of the fork. Raises: OSError."""
        folder.log(LAUNCH_LOG).parent.mkdir(mode=0o700, parents=True)
        pid = start_independent(
            [sys.executable, "-m", "astraflow.cli", "fork", str(self._folder), "--run-dir", str(folder.path),
             "--headless", "--no-web", "--set", setting],
            environment=run_environment(),
            log_file=folder.log(LAUNCH_LOG),
        )  # fmt: skip
        write_launch(folder.path, LaunchFacts(actor="fleet", launched_at=time.time(), pid=pid))


def _answers(folder: RunFolder) -> bool:
    """Returns whether the dataflow of a run accepts connections."""
    with suppress(InvalidInput, OSError):
        host, _, port = folder.facts.dataflow.rpartition(":")
        socket.create_connection((host, int(port or 0)), timeout=1.0).close()
        return True
    return False


class RunChanges:
    """Plans and applies changes of one run. host: stops and forks it; None where its folder is on another machine."""

    def __init__(
        self, fleet: FleetState, replies: IdempotentReplies, control: RunControl, host: "RunHost | None"
    ) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._replies = replies
        self._control = control
        self._host = host

    async def draft(self, request: PlanRequest) -> Plan:
        """Returns a plan for a change of the run, without changing anything. Raises: NotPermitted for an actor of one
        pool."""
        require_pool_access(request.actor, RUN)
        evidence = await self._evidence(request)
        findings, now = evidence.violations(), self._fleet.clock.wall()
        runs_change = {RunAction.FORK: 1, RunAction.STOP: -1}.get(evidence.change.action, 0)
        return Plan(
            id=PlanId(self._fleet.launch_ids.next(now)),
            request=request,
            observed_version=0,
            nodes=0,
            target=0,
            launches=0,
            victims=(),
            eta_s=0.0,
            usd_per_hour_change=runs_change * evidence.situation.usd_per_hour,
            verdict=verdict(findings),
            findings=findings,
            created_at=now,
            expires_at=now + self._fleet.config.times.plan_valid_s,
            guard_json=evidence.to_json(),
        )

    async def apply(
        self, plan: Plan, *, key: str, request_hash: str, approver: Actor | None, applier: Actor
    ) -> AppliedPlan:
        """Checks the change again, carries it out and records it. Called under the lock of replies.

        Raises: PlanRefused; the errors of dataflow.
        """
        waiting = self._fleet.ledger.waiting_proposals.get(plan.id)
        attempt = ApplyAttempt(applier=applier, mode=self._fleet.agents_mode, is_proposed=waiting is not None)
        evidence = replace(await self._evidence(plan.request), application=attempt)
        findings = evidence.violations()
        objection = refusal_message(plan, findings, approver)
        if objection:
            refusal = self._records.refusal
            await self._fleet.ledger.change(lambda _: (refusal(plan, objection, applier, findings, key), None))
            raise PlanRefused(objection, guard_json=evidence.to_json(), code="fleet.plan_refused")
        ends_service = evidence.change.action is RunAction.STOP  # then the change is recorded first
        if not ends_service:
            await self._carry_out(evidence.change, plan, by=approver or applier)
        needs_approval = waiting is not None or verdict(findings) is Verdict.NEEDS_APPROVAL
        applied = await self._record(plan, evidence, key, request_hash, person=approver if needs_approval else None)
        if ends_service:
            await self._carry_out(evidence.change, plan, by=approver or applier)
        return applied

    async def _record(
        self, plan: Plan, evidence: RunGuardInputs, key: str, request_hash: str, *, person: Actor | None
    ) -> AppliedPlan:
        """Writes the audit log, the decided proposal and the reply. person: who approved it, if it needed that."""

        def decide(ledger: Ledger) -> tuple[Changes, AppliedPlan]:
            decision = self._records.decision(
                RecordKind.APPLY,
                {"action": evidence.change.action.value, "change": evidence.change.sentence}
                | ({"approver": person.name} if person else {}),
                pool=RUN,
                actor=plan.request.actor,
                reason=plan.request.reason,
                key=key,
                findings=evidence.violations(),
            )
            applied = AppliedPlan(
                plan=plan.id,
                decision=decision.ordinal,
                launched=(),
                retired=(),
                message=render_summary(decision),
                guard_json=evidence.to_json(),
            )
            proposals = self._records.approved(ledger.waiting_proposals.get(plan.id), person)
            reply = self._replies.make_reply(key, request_hash, asdict(applied))
            return Changes(decisions=(decision,), proposals=proposals, reply=reply), applied

        return await self._fleet.ledger.change(decide)

    async def _evidence(self, request: PlanRequest) -> RunGuardInputs:
        fleet, now = self._fleet, self._fleet.clock.wall()
        applied, _ = await fleet.ledger.decisions(
            pool=RUN, before=None, limit=fleet.limits.changes_per_hour, kinds=[RecordKind.APPLY]
        )
        rejected = tuple(
            RunRejection(at=proposal.decided_at, change=proposal.plan.request.run)
            for proposal in fleet.ledger.rejected_proposals.values()
            if proposal.decided_at is not None and proposal.plan.request.run is not None
        )
        situation = RunSituation(
            now=now,
            kill=fleet.kill,
            report_age_s=fleet.observation.age_s,
            changed_at=tuple(sorted(entry.at for entry in applied)),
            usd_per_hour=spending_rate(fleet.ledger.billed()),
            usd_today=spent_today(fleet.ledger.records.values(), now=now),
            has_folder=self._host is not None,
            rejected=rejected,
        )
        assert request.run is not None  # noqa: S101 (plans without one are of pools)
        return RunGuardInputs(situation=situation, actor=request.actor, change=request.run, limits=fleet.limits)

    async def _carry_out(self, change: RunChange, plan: Plan, *, by: Actor) -> None:
        """Makes the change. A repetition after a crash finds it made: every action sets a state, and a fork has one
        folder for each plan."""
        who = {"actor": by.name, "reason": plan.request.reason}
        match change.action:
            case RunAction.PAUSE | RunAction.RESUME:
                is_paused = change.action is RunAction.PAUSE
                await self._control.pause_flow(FlowId(change.subject), is_paused=is_paused, **who)
            case RunAction.PLUGIN:
                await self._control.change_plugins(_plugin_change(change, by=by, reason=plan.request.reason))
            case RunAction.EVALUATE:
                await self._control.evaluate(FlowId(change.subject), **who)
            case RunAction.STOP:
                assert self._host is not None  # noqa: S101 (the guard refuses it otherwise)
                await asyncio.to_thread(self._host.stop)
            case RunAction.FORK:
                assert self._host is not None  # noqa: S101 (as above)
                rate = change.learning_rate or 0.0
                await asyncio.to_thread(self._host.fork, change.subject, rate, name=plan.id[-8:].lower())


def _plugin_change(change: RunChange, *, by: Actor, reason: str) -> PluginChange:
    spec = {"kind": change.kind}
    match change.slot:
        case PluginSlot.SELECTOR:
            return PluginChange(flow=FlowId(change.subject), selector=spec, actor=by.name, reason=reason)
        case PluginSlot.FILTERS:
            return PluginChange(flow=FlowId(change.subject), filters=(spec,), actor=by.name, reason=reason)
        case PluginSlot.SAMPLER:
            return PluginChange(policy=PolicyId(change.subject), sampler=spec, actor=by.name, reason=reason)
    raise InvalidInput("cannot change a plugin: no slot is named; name one", code="run_change.invalid")
