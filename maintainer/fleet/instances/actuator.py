"""Carries out the ledger's intents: launches, drains and retires instances step by step, and resumes after a crash.

It holds no state of its own. Each pass takes the next step of every launch with a pending step. A failed step is
retried later, and a failing provider does not delay instances of other providers.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.fleet.instances import Cause, InstanceState, LaunchId
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.ids import PoolId
from astraflow.contract.reports.report import NodeReport, NodeState
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT
from maintainer.fleet.guard.guard import AUTOMATIC_MODES
from maintainer.fleet.ledger.ledger import Changes, Ledger
from maintainer.fleet.ledger.lifecycle import STARTING_STATES, InstanceEvent
from maintainer.fleet.ledger.records import LaunchRecord
from maintainer.fleet.providers.base import (
    AuthError,
    CapacityError,
    Handle,
    InvalidError,
    Provider,
    ProviderError,
    QuotaError,
    RetireResult,
    RetryError,
    State,
)
from maintainer.fleet.state.fleet import FLEET_ACTOR, FleetState
from maintainer.fleet.state.fleet_records import FleetRecords
from maintainer.fleet.state.observation import DataflowControl

T = TypeVar("T")
log = get_logger()

REFUSALS = (QuotaError, CapacityError, AuthError, InvalidError)
"""Errors after which no instance was started and a retry under the same id is useless."""

OUTAGES = (RetryError, *TRANSIENT)
"""Errors of a provider, dataflow or database that is away for a time: no sign that the launch itself fails."""
OUTAGE_TRIES = 4
"""Attempts from which on outages are not counted, so that a launch survives one of any length."""

_STATES_WITH_STEP = (InstanceState.INTENDED, InstanceState.DRAINING, InstanceState.RETIRING)
"""States with a pending step of the actuator; in other states it waits."""

MIN_TOKEN_S, MAX_TOKEN_S = 900.0, 86400.0
"""Bounds of a join token's validity."""

MAX_RETRY_S = 60.0
RETIRE_RETRY_S = 1.0
"""First delay before a terminating instance is checked again."""
DRAIN_MARGIN_S = 5.0
"""Additional time for dataflow and the node to report the end of a drain."""


class Actuator:
    """Executes launches, drains and retirements. One instance per service."""

    def __init__(self, fleet: FleetState, dataflow: DataflowControl) -> None:
        self._fleet = fleet
        self._records = FleetRecords(fleet)
        self._dataflow = dataflow
        self._in_step: set[LaunchId] = set()
        """Launches with a step in progress: a launch has one step at a time, and a slow one delays no other."""
        self._launch_slots = {
            name: asyncio.Semaphore(provider.capabilities().launches_at_once)
            for name, provider in fleet.providers.items()
        }

    async def run(self, is_due: asyncio.Event) -> None:
        """Runs until cancelled: at each tick, and at once when `is_due` is set."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                is_due.clear()
                self._start_due_steps(tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._fleet.config.times.tick_s):
                        await is_due.wait()

    async def run_due_steps(self) -> None:
        """Takes the next step of every launch that is due; returns when all steps are done."""
        async with asyncio.TaskGroup() as tasks:
            self._start_due_steps(tasks)

    def _start_due_steps(self, tasks: asyncio.TaskGroup) -> None:
        if self._fleet.kill is KillScope.ALL:
            return
        now = self._fleet.clock.wall()
        places: dict[PoolId, int] = {}
        for record in sorted(self._fleet.ledger.alive(), key=lambda record: record.id):
            # A later time than a retry can have was set before the wall clock was put back.
            is_due = not 0 < record.next_try_at - now <= MAX_RETRY_S
            if record.instance.state not in _STATES_WITH_STEP or not is_due or record.id in self._in_step:
                continue
            if record.instance.state is InstanceState.INTENDED and not record.tries:
                pool = record.instance.pool
                places[pool] = (places[pool] if pool in places else self._places(pool)) - 1
                if places[pool] < 0:
                    continue
            self._in_step.add(record.id)
            tasks.create_task(self._step(record))

    def _places(self, pool: PoolId) -> int:
        """Returns how many machines the pool may start beside those that may run, including terminating ones."""
        begun = [self._fleet.ledger.records.get(launch) for launch in self._in_step]
        first_attempts = [
            record
            for record in begun
            if record is not None
            and record.instance.pool == pool
            and record.instance.state is InstanceState.INTENDED
            and not record.tries
        ]
        return self._fleet.ledger.pools[pool].spec.max_nodes - self._fleet.machines(pool) - len(first_attempts)

    async def _step(self, record: LaunchRecord) -> None:
        """Takes the next step of a launch; a failure affects only this launch."""
        try:
            match record.instance.state:
                case InstanceState.INTENDED:
                    await self._launch(record)
                case InstanceState.DRAINING:
                    await self._drain(record)
                case InstanceState.RETIRING:
                    await self._retire(record)
        except AstraFlowError as problem:
            await self._try_later(record, problem)
        except Exception as problem:  # a provider's defect must not stop other steps
            log.exception("step_failed", launch=record.id)
            await self._try_later(record, problem)
        finally:
            self._in_step.discard(record.id)

    async def _launch(self, record: LaunchRecord) -> None:
        try:
            async with self._launch_slot(record):
                if not self._is_still_due(record):
                    return
                launch_request = replace(record.launch, token=await self._join_token(record))
                if not self._is_still_due(record):
                    return
                handle = await self._with_timeout(self._provider(record).launch(launch_request, record.id))
        except REFUSALS as problem:
            await self._retire_refused(record, problem)
        else:
            await self._records.record_event(record.id, InstanceEvent.ACCEPTED, handle=handle.id)

    def _is_still_due(self, record: LaunchRecord) -> bool:
        """Returns whether the step may call the provider: it may have waited while people stopped or changed it."""
        current = self._fleet.ledger.records.get(record.id)
        is_unchanged = current is not None and current.instance.state is record.instance.state
        return is_unchanged and self._fleet.kill is not KillScope.ALL

    async def _join_token(self, record: LaunchRecord) -> str:
        """Returns a join token that is valid once, for this node of this pool, until the node should be ready."""
        pool = record.instance.pool
        delay_s = self._fleet.launch_delay_s(self._fleet.ledger.pools[pool].spec)
        join_token = await self._dataflow.mint_join_token(
            "node",
            pool=pool,
            name=record.id,
            valid_s=min(MAX_TOKEN_S, max(MIN_TOKEN_S, 3 * delay_s)),
            actor=FLEET_ACTOR.name,
            reason=f"launch of an instance of pool {pool}",
        )
        return join_token.token

    async def _retire_refused(self, record: LaunchRecord, problem: ProviderError) -> None:
        """Retires a refused launch, because an earlier process may have started it and crashed.

        After an attempt without an answer it may run, which a provider that refuses the credentials could not check:
        then it is retried.
        """
        if record.tries and (isinstance(problem, AuthError) or not self._fleet.observation.is_silent(record.id)):
            raise problem
        await self._records.record_event(
            record.id, InstanceEvent.RETIRE, message=f"{type(problem).__name__}: {problem}"
        )

    async def _drain(self, record: LaunchRecord) -> None:
        """Requests the drain once; continues when the node has left, or its drain time has passed."""
        fleet = self._fleet
        node = fleet.observation.node(record.id)
        drain_s = fleet.ledger.pools[record.instance.pool].spec.drain_s
        drained_s = fleet.stored_times.age_s(record.instance.draining_at or fleet.clock.wall())
        is_renewed = record.instance.cause is Cause.EXPIRED and not record.is_drain_requested
        waits = is_renewed and self._waits_for_replacement(record, drained_s)
        is_over = not is_renewed and drained_s > drain_s + DRAIN_MARGIN_S
        has_left = fleet.observation.is_fresh and self._has_left(record, node)
        if is_over or has_left:
            await self._records.record_event(record.id, InstanceEvent.RETIRE)
        elif node is not None and not record.is_drain_requested and not waits:
            left_s = drain_s if is_renewed else max(1.0, drain_s - drained_s)
            reason = record.instance.message or "the pool is scaled down"
            await self._dataflow.drain_node(node.id, actor=FLEET_ACTOR.name, reason=reason, deadline_s=left_s)
            begun: dict[str, Any] = {"draining_at": fleet.clock.wall()} if is_renewed else {}
            await self._records.record_event(record.id, InstanceEvent.DRAIN, is_drain_requested=True, **begun)

    def _waits_for_replacement(self, record: LaunchRecord, waited_s: float) -> bool:
        """Returns whether a node that nears its maximum age works on, because its replacement is about to start."""
        fleet, instance = self._fleet, record.instance
        pool = fleet.pool(instance.pool)
        left_s = instance.expires_at - instance.intended_at - fleet.stored_times.age_s(instance.intended_at)
        if pool.spec.mode not in AUTOMATIC_MODES or left_s <= pool.spec.drain_s:
            return False
        starting = [other for other in fleet.ledger.alive(pool.spec.id) if other.instance.state in STARTING_STATES]
        is_launched = any(other.instance.state is not InstanceState.INTENDED for other in starting)
        is_expected = bool(starting) or waited_s <= 2 * fleet.config.times.follow_s
        return is_launched or (is_expected and fleet.machines(pool.spec.id) < pool.spec.max_nodes)

    def _has_left(self, record: LaunchRecord, node: NodeReport | None) -> bool:
        """Returns whether the node has ended its drain, or had nothing to drain."""
        if node is not None:
            return node.state is NodeState.LOST
        missing_for_s = self._fleet.config.times.lost_after_s if record.instance.ready_at is not None else 0.0
        return self._fleet.observation.has_left(record.id, missing_for_s=missing_for_s)

    async def _retire(self, record: LaunchRecord) -> None:
        fleet = self._fleet
        async with self._launch_slot(record):
            if not self._is_still_due(record):
                return
            outcome = await self._with_timeout(self._provider(record).retire(record.id))
        # A launch whose answer was lost may be listed some time after its provider reports no instance.
        provider = self._provider(record)
        is_settled = (
            fleet.stored_times.age_s(record.instance.retiring_at or 0.0) >= provider.capabilities().listing_lag_s
        )
        is_gone = outcome is RetireResult.GONE and is_settled
        if is_gone and await self._with_timeout(has_ended(provider, record)):
            await self._revoke(record)
            await self._records.record_event(record.id, InstanceEvent.RETIRED)
        else:
            await self._postpone(record, first_s=RETIRE_RETRY_S)

    async def _revoke(self, record: LaunchRecord) -> None:
        """Revokes the node's credential. The credential expires within a day, so a failure is not retried."""
        try:
            await self._dataflow.revoke_credential(
                "node", record.id, actor=FLEET_ACTOR.name, reason="its instance was retired"
            )
        except InvalidInput:
            return  # the node never joined, or it has left
        except AstraFlowError as problem:
            log.warning("credential_not_revoked", launch=record.id, problem=str(problem))

    async def _try_later(self, record: LaunchRecord, problem: Exception) -> None:
        """Postpones a failed step. After `RetryError` and `UnknownError` it may have succeeded: the next attempt
        checks this."""
        log.warning("step_postponed", launch=record.id, state=record.instance.state.value, problem=str(problem))
        times, message = self._fleet.config.times, f"{type(problem).__name__}: {problem}"
        is_outage = isinstance(problem, OUTAGES)
        tried_s = sum(min(MAX_RETRY_S, times.retry_s * 2**attempt) for attempt in range(record.tries))
        is_late = record.instance.state is InstanceState.INTENDED and tried_s > times.start_timeout_s
        try:
            if is_late and not is_outage and self._fleet.observation.is_silent(record.id):
                await self._records.record_event(record.id, InstanceEvent.RETIRE, message=message)
            else:
                await self._postpone(record, first_s=times.retry_s, message=message, is_outage=is_outage)
        except Unavailable as outage:  # without the ledger, the step is repeated at the next tick
            log.warning("postponement_not_recorded", launch=record.id, problem=str(outage))

    async def _postpone(
        self, record: LaunchRecord, *, first_s: float, message: str | None = None, is_outage: bool = False
    ) -> None:
        fleet = self._fleet
        delay_s = min(MAX_RETRY_S, first_s * 2 ** min(record.tries, 10))

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            current = ledger.records[record.id]
            if current.instance.state is not record.instance.state:
                return Changes(), None  # its state has changed since
            new_message = current.instance.message if message is None else message
            postponed = replace(
                current,
                tries=current.tries + (not is_outage or current.tries < OUTAGE_TRIES),
                next_try_at=fleet.clock.wall() + delay_s,
                instance=replace(current.instance, message=new_message),
            )
            return Changes(records=(postponed,)), None

        await fleet.ledger.change(decide)

    def _provider(self, record: LaunchRecord) -> Provider:
        return self._fleet.provider(record.instance.provider)

    def _launch_slot(self, record: LaunchRecord) -> asyncio.Semaphore:
        self._provider(record)  # raises for a provider that is not configured any more
        return self._launch_slots[record.instance.provider]

    async def _with_timeout(self, call: Awaitable[T]) -> T:
        limit_s = self._fleet.config.times.call_timeout_s
        try:
            async with asyncio.timeout(limit_s):  # up to Python 3.11, `wait_for` can lose a cancellation
                return await call
        except TimeoutError:
            raise RetryError(
                f"cannot call the provider: no answer within {limit_s:g} s", code="provider.no_answer"
            ) from None


async def has_ended(provider: Provider, record: LaunchRecord) -> bool:
    """Asks the provider for the instance by its own id: lists and terminations miss one whose tags were changed.

    Raises: ProviderError.
    """
    if not record.instance.handle:
        return True
    handle = Handle(provider=provider.capabilities().kind, id=record.instance.handle, launch_id=record.id)
    return (await provider.describe(handle)).state is State.GONE
