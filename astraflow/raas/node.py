"""One node in one run: joins, builds engines and flows, runs tasks, and leaves."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from astraflow.client.credential import HeldCredential
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.ids import FlowId, PolicyId, PoolId, TaskId, Version
from astraflow.contract.nodes import EvaluationMode, JoinResult, NodeFacts
from astraflow.raas.builders import (
    build_flows,
    build_policies,
    build_policy,
    choose_engines,
    start_engines,
    start_flows,
)
from astraflow.raas.config import RaasConfig
from astraflow.raas.counters import NodeCounters
from astraflow.raas.drain_state import DrainState
from astraflow.raas.engine_monitor import EngineMonitor
from astraflow.raas.heartbeats import HeartbeatLoop
from astraflow.raas.membership import Membership
from astraflow.raas.policies.evaluation_engines import RESERVED_IDLE_S, ReservedEngines, SecondEngines
from astraflow.raas.policies.pinned_versions import PinnedVersions, evaluation_capacity, joint_mode
from astraflow.raas.policies.served_policies import ServedPolicies
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.policies.verification import MismatchGauges
from astraflow.raas.policies.weight_loop import WeightLoop
from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import NoticeSource, wait_for_notice
from astraflow.raas.tasks.capacity import Capacity, CircuitBreaker
from astraflow.raas.tasks.lease_limit import LeaseLimit
from astraflow.raas.tasks.outbox import Outbox
from astraflow.raas.tasks.runner import BuiltFlow, Runner
from astraflow.raas.tasks.task_loop import TaskLoop
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.system_metrics import SystemMonitor
from astraflow.sandbox.shared import levels_in_use
from astraflow.weights.signing import VerifyingKey, pinned_key
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSources, connect_sources
from astraflow.wire.channel import ServiceChannel
from astraflow.workflows.base import SessionSource

log = get_logger()

FLUSH_TIMEOUT_S = 1.2
"""Time limit on leaving: for sending the finished episodes, and again for the leave request."""


CIRCUIT_BREAKER_LIMIT = 16
"""Consecutive infrastructure failures that open the circuit breaker; at least the limit of concurrent episodes."""


class Node:
    """Owns the components of a node and runs them in order.

    join ──► heartbeats ──► build and start engines ──► weight loops, task loop ──► drain request ──► drain, leave
    """

    def __init__(self, config: RaasConfig, link: ServiceChannel, *, credential: HeldCredential, clock: Clock) -> None:
        """link: channel to dataflow, opened with the credential."""
        self._config = config
        self._credential = credential
        self._dataflow = link.address
        self._clock = clock
        self._client = NodeDataClient(link)
        self._counters = NodeCounters()
        self._weight_sources: WeightSources | None = None
        self._transfers = TransferTotals(lambda: self._weight_sources.all if self._weight_sources is not None else ())
        self._limit = LeaseLimit(config.capacity)
        self._capacity = Capacity(self._limit.limit, clock)
        self._drain_state = DrainState(clock, hand_back_s=config.hand_back_s)
        self._has_ended = asyncio.Event()
        self._facts = _facts(config)
        self._membership = Membership(
            self._client, self._facts, held_tasks=self._held_tasks, counters=self._counters, clock=clock
        )
        self._policies = ServedPolicies({})
        self._verifying_key: VerifyingKey | None = None
        self._task_loop: TaskLoop | None = None
        self._session_sources: Sequence[SessionSource] = ()

    async def run(self) -> None:
        """Runs until the node drains. Raises: exception groups of errors that a retry does not cure; RunChanged."""
        try:
            await self._run()
        except* AstraFlowError as problems:
            await self._leave(f"stopped after an error: {problems.exceptions[0]}")
            raise
        finally:
            self._has_ended.set()

    async def stop(self) -> None:
        """Makes `run` return: running tasks get `drain_s` seconds, then they are handed back."""
        self._drain_state.finish_within(self._config.drain_s, "stopped")
        if self._task_loop is None:  # no task is held, and the construction in progress is not worth waiting for
            await self._leave("stopped")
        else:
            await self._has_ended.wait()

    async def _run(self) -> None:
        source = notices.build(self._config.preemption)
        join_result = await self._membership.join(give_up_after_s=self._config.join_timeout_s)
        self._verifying_key = pinned_key(self._config.weights_key, join_result.weights_key)
        async with AsyncExitStack() as resources, asyncio.TaskGroup() as tasks:
            heartbeats = self._heartbeat_loop()
            loops = [
                tasks.create_task(heartbeats.run(join_result.heartbeat_s)),
                tasks.create_task(self._watch_for_preemption(source)),
                tasks.create_task(self._credential.run(self._dataflow)),
                tasks.create_task(SystemMonitor(clock=self._clock, on_measured=self._counters.set_gauges).run()),
            ]
            if self._config.dataflow_timeout_s:
                loops.append(tasks.create_task(heartbeats.watch_dataflow(self._config.dataflow_timeout_s)))
            flows, engines = build_flows(join_result, self._facts), choose_engines(self._config, join_result)
            await start_flows(flows, resources)
            workflows = [flow.workflow for flow in flows.values()]
            self._session_sources = [workflow for workflow in workflows if isinstance(workflow, SessionSource)]
            self._policies = await build_policies(join_result, flows, engines, resources)
            await self._report_engines([engines[policy] for policy in self._policies])
            await start_engines(self._policies)
            self._weight_sources = sources = await resources.enter_async_context(
                connect_sources(
                    join_result.weights_address, self._config.pull, dial=self._credential.dial, clock=self._clock
                )
            )
            weight_loops = self._weight_loops(sources)
            pinned = self._pinned_versions(join_result, engines, sources, weight_loops)
            resources.push_async_callback(pinned.close)
            self._task_loop = self._build_task_loop(join_result, flows, pinned)
            monitor = self._engine_monitor(pinned, self._task_loop)
            loops += [tasks.create_task(monitor.run()), tasks.create_task(monitor.drain_after_failure())]
            loops.append(tasks.create_task(pinned.run()))
            loops += [tasks.create_task(loop.run()) for loop in weight_loops.values()]
            loops.append(tasks.create_task(self._task_loop.run()))
            loops.append(tasks.create_task(self._report_versions(heartbeats)))
            await self._drain_state.draining.wait()
            loops.append(tasks.create_task(heartbeats.heartbeat()))  # reports the drain to dataflow at once
            await self._drain(self._task_loop)
            for loop in loops:
                loop.cancel()

    async def _report_engines(self, engines: Iterable[Mapping[str, Any]]) -> None:
        """Reports the engines and the isolation of sandboxes, which are known only after they were started."""
        is_simulated = any(served.engine.is_simulated for served in self._policies.values())
        kinds = ", ".join(dict.fromkeys(str(engine["kind"]) for engine in engines))
        precisions = dict.fromkeys(served.engine.logprob_tolerance.precision for served in self._policies.values())
        levels = "".join(f", sandbox {level.value}" for level in levels_in_use())
        software = self._facts.software + levels
        await self._membership.update_facts(
            replace(
                self._facts,
                engine=kinds,
                is_simulated=is_simulated,
                software=software,
                evaluation_mode=self._evaluation_mode(),
                precision=", ".join(filter(None, precisions)),
            )
        )

    def _evaluation_mode(self) -> EvaluationMode:
        modes = (served.engine.evaluation_mode for served in self._policies.values())
        return joint_mode(modes) if self._config.evaluates else EvaluationMode.NONE

    async def _watch_for_preemption(self, source: NoticeSource) -> None:
        notice = await wait_for_notice(source, clock=self._clock)
        left_s = max(0.0, notice.at - self._clock.wall())
        reason = f"preempted: {notice.source} announces that this machine is reclaimed in {left_s:.0f} s"
        self._drain_state.preempt_within(left_s, reason)

    async def _report_versions(self, heartbeats: HeartbeatLoop) -> None:
        """Sends a heartbeat for every newly served version: dataflow may hold back tasks until it receives one."""
        while True:
            await self._policies.changed.wait()
            self._policies.changed.clear()
            await heartbeats.heartbeat()

    async def _drain(self, task_loop: TaskLoop) -> None:
        """Stops leasing, waits for running tasks until they are due, hands back the others, and leaves."""
        task_loop.stop_leasing()
        await self._wait_until_idle_or_due(task_loop)
        await _with_timeout(self._config.hand_back_s, task_loop.hand_back())
        task_loop.cancel_running()
        await _with_timeout(FLUSH_TIMEOUT_S, task_loop.wait_until_idle())
        await self._leave(self._drain_state.reason)

    async def _wait_until_idle_or_due(self, task_loop: TaskLoop) -> None:
        waits = [
            asyncio.ensure_future(task_loop.wait_until_idle()),
            asyncio.ensure_future(self._drain_state.wait_until_due()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _leave(self, reason: str) -> None:
        if not self._membership.is_member:
            return
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                node, is_preempted = self._membership.node, self._drain_state.is_preempted
                returned = await self._client.leave(node, reason=reason, is_preempted=is_preempted)
        except (AstraFlowError, TimeoutError) as problem:
            log.warning("leave_not_acknowledged", problem=str(problem))
        else:
            log.info("run_left", reason=reason, tasks_returned=returned)

    def _heartbeat_loop(self) -> HeartbeatLoop:
        return HeartbeatLoop(
            self._client,
            self._membership,
            held_tasks=self._held_tasks,
            versions=self._versions,
            session_sources=lambda: self._session_sources,
            capacity=self._capacity,
            counters=self._counters,
            transfers=self._transfers,
            drain_state=self._drain_state,
            clock=self._clock,
        )

    def _weight_loops(self, sources: WeightSources) -> dict[PolicyId, WeightLoop]:
        gauges = MismatchGauges(self._counters)

        def source(policy: PolicyId) -> Puller:
            return Puller(sources, policy, config=self._config.pull, trusted=self._verifying_key, clock=self._clock)

        return {
            policy: WeightLoop(
                served,
                source,
                self._policies,
                counters=self._counters,
                gauges=gauges,
                transfers=self._transfers,
                clock=self._clock,
            )
            for policy, served in self._policies.items()
        }

    def _pinned_versions(
        self,
        join_result: JoinResult,
        engines: Mapping[PolicyId, Mapping[str, Any]],
        sources: WeightSources,
        loops: Mapping[PolicyId, WeightLoop],
    ) -> PinnedVersions:
        counters, clock = self._counters, self._clock
        if self._evaluation_mode().is_exclusive:
            reserved = ReservedEngines(self._policies, loops)
            return PinnedVersions(reserved, counters=counters, clock=clock, idle_s=RESERVED_IDLE_S)
        specs = {spec.id: spec for spec in join_result.policies}
        second = SecondEngines(
            lambda policy: build_policy(specs[policy], engines[policy]),
            lambda policy: Puller(
                sources, policy, config=self._config.pull, trusted=self._verifying_key, clock=self._clock
            ),
            counters=counters,
            clock=clock,
        )
        return PinnedVersions(second, counters=counters, clock=clock, idle_s=self._config.evaluation_idle_s)

    def _engine_monitor(self, pinned: PinnedVersions, task_loop: TaskLoop) -> EngineMonitor:
        return EngineMonitor(
            {policy: served.engine for policy, served in self._policies.items()},
            lambda: pinned.engines,
            limit=self._limit,
            capacity=self._capacity,
            counters=self._counters,
            drain_state=self._drain_state,
            on_limit=task_loop.check_slots,
            clock=self._clock,
        )

    def _build_task_loop(
        self, join_result: JoinResult, flows: Mapping[FlowId, BuiltFlow], pinned: PinnedVersions
    ) -> TaskLoop:
        def evaluations_at_once() -> int:
            if not self._config.evaluates or pinned.is_backing_off:
                return 0
            slots = evaluation_capacity(join_result.flows, self._capacity.slots)
            return self._capacity.slots if slots and self._evaluation_mode().is_exclusive else slots

        runner = Runner(
            flows,
            self._policies,
            pinned,
            node=lambda: self._membership.node,
            counters=self._counters,
            clock=self._clock,
            timeout_s=self._config.episode_timeout_s,
            text_share=self._config.text_share,
        )
        return TaskLoop(
            self._client,
            self._membership,
            runner,
            self._policies,
            evaluation_capacity=evaluations_at_once,
            capacity=self._capacity,
            outbox=Outbox(),
            breaker=CircuitBreaker(lambda: max(CIRCUIT_BREAKER_LIMIT, self._capacity.slots), self._clock),
            counters=self._counters,
            clock=self._clock,
            timeout_s=self._config.episode_timeout_s,
        )

    def _held_tasks(self) -> tuple[TaskId, ...]:
        return self._task_loop.held_tasks() if self._task_loop is not None else ()

    def _versions(self) -> Mapping[PolicyId, Version]:
        return self._policies.versions()


def _facts(config: RaasConfig) -> NodeFacts:
    return NodeFacts(
        name=config.name,
        pool=PoolId(config.pool),
        region=config.region,
        engine=str((config.engine or {}).get("kind", "")),
        is_simulated=False,
        hardware=config.hardware,
        capacity=config.capacity,
        policies=tuple(PolicyId(policy) for policy in config.policies),
        price_per_hour=config.price_per_hour,
        software=_software_version(),
        evaluation_mode=EvaluationMode.NONE,
        episode_timeout_s=config.episode_timeout_s,
    )


def _software_version() -> str:
    try:
        return version("astraflow")
    except PackageNotFoundError:
        return "from source"


async def _with_timeout(limit_s: float, work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning("drain_step_timed_out", limit_s=limit_s)
