"""Carries out what the ledger intends: launches, drains, retires, one step at a time, again after every crash.

It keeps nothing in memory that matters. Each pass looks at every launch that is on its way somewhere and does its next
step; a step that fails is tried again later, and a failing provider holds up no other's machines.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.fleet import InstanceState, KillScope, LaunchId
from astraflow.contract.reports import NodeState
from astraflow.runtime.logs import get_logger
from maintainer.fleet.fleet import ITSELF, Fleet
from maintainer.fleet.ledger import Changes, Ledger
from maintainer.fleet.lifecycle import Sight
from maintainer.fleet.observation import Steering
from maintainer.fleet.providers.base import (
    Auth,
    Capacity,
    Invalid,
    Provider,
    ProviderError,
    Quota,
    Retired,
    Retry,
)
from maintainer.fleet.records import Record

T = TypeVar("T")
log = get_logger()

REFUSALS = (Quota, Capacity, Auth, Invalid)
"""Nothing was started: another try under the same id is of no use."""

_STEPS = (InstanceState.INTENDED, InstanceState.DRAINING, InstanceState.RETIRING)
"""States that something is to be done about; in the others an instance waits for what comes."""

MIN_TOKEN_S, MAX_TOKEN_S = 900.0, 86400.0
"""How long a join token is good for."""

MAX_RETRY_S = 60.0
GOING_S = 1.0
"""First pause before a machine that ends is asked for again."""
DRAIN_MARGIN_S = 5.0
"""Dataflow and the node get this much longer to say that the drain is over."""


class Actuator:
    """One for the service."""

    def __init__(self, fleet: Fleet, steering: Steering) -> None:
        self._fleet = fleet
        self._steering = steering
        self._in_step: set[LaunchId] = set()
        """A launch has one step at a time; a slow one holds up no other."""
        self._gates = {
            name: asyncio.Semaphore(provider.capabilities().launches_at_once)
            for name, provider in fleet.providers.items()
        }

    async def run(self, is_due: asyncio.Event) -> None:
        """Until cancelled: each tick, and at once when `is_due` is set."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                is_due.clear()
                self._begin(tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._fleet.config.times.tick_s):
                        await is_due.wait()

    async def work(self) -> None:
        """The next step of everything that is due; returns when all have been taken."""
        async with asyncio.TaskGroup() as tasks:
            self._begin(tasks)

    def _begin(self, tasks: asyncio.TaskGroup) -> None:
        if self._fleet.kill is KillScope.ALL:
            return
        now = self._fleet.clock.wall()
        for record in self._fleet.ledger.alive():
            if record.instance.state in _STEPS and record.next_try_at <= now and record.id not in self._in_step:
                self._in_step.add(record.id)
                tasks.create_task(self._step(record))

    async def _step(self, record: Record) -> None:
        """What goes wrong with one machine stays with it."""
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
        except Exception as problem:  # a defect of a provider must not stop the others
            log.exception("step_failed", launch=record.id)
            await self._try_later(record, problem)
        finally:
            self._in_step.discard(record.id)

    async def _launch(self, record: Record) -> None:
        fleet = self._fleet
        if fleet.clock.wall() - record.instance.intended_at > fleet.config.times.starting_s:
            await fleet.see(record.id, Sight.RETIRE, message="it could not be launched in time")
            return
        try:
            async with self._gate(record):
                asked = replace(record.launch, token=await self._join_token(record))
                handle = await self._within(self._provider(record).launch(asked, record.id))
        except REFUSALS as problem:
            await self._refused(record, problem)
        else:
            await fleet.see(record.id, Sight.TAKEN, handle=handle.id)

    async def _join_token(self, record: Record) -> str:
        """Good once, for this node of this pool, for as long as it may take to come up."""
        pool = record.instance.pool
        delay_s = self._fleet.launch_delay_s(self._fleet.ledger.pools[pool].spec)
        minted = await self._steering.mint_join_token(
            "node",
            pool=pool,
            name=record.id,
            valid_s=min(MAX_TOKEN_S, max(MIN_TOKEN_S, 3 * delay_s)),
            actor=ITSELF.name,
            reason=f"a machine of pool {pool} is launched",
        )
        return minted.token

    async def _refused(self, record: Record, problem: ProviderError) -> None:
        """Nothing was started now; but a life of this service before may have, and died before it wrote that down."""
        await self._fleet.see(record.id, Sight.RETIRE, message=f"{type(problem).__name__}: {problem}")

    async def _drain(self, record: Record) -> None:
        """Ask dataflow once; go on when the node is gone, or its time is over."""
        fleet = self._fleet
        node = fleet.observation.node(record.id)
        since = record.instance.draining_at or fleet.clock.wall()
        drain_s = fleet.ledger.pools[record.instance.pool].spec.drain_s
        is_over = fleet.clock.wall() - since > drain_s + DRAIN_MARGIN_S
        has_left = fleet.observation.is_fresh and (node is None or node.state is NodeState.LOST)
        if is_over or has_left:
            await fleet.see(record.id, Sight.RETIRE)
        elif node is not None and not record.is_told:
            left_s = max(1.0, since + drain_s - fleet.clock.wall())
            reason = record.instance.message or "its pool gets smaller"
            await self._steering.drain_node(node.id, actor=ITSELF.name, reason=reason, deadline_s=left_s)
            await fleet.see(record.id, Sight.DRAIN, is_told=True)

    async def _retire(self, record: Record) -> None:
        fleet = self._fleet
        async with self._gate(record):
            outcome = await self._within(self._provider(record).retire(record.id))
        # A launch of which the answer was lost may show a while after its provider says that nothing is there.
        lag_s = self._provider(record).capabilities().listing_lag_s
        is_settled = fleet.clock.wall() >= (record.instance.retiring_at or 0.0) + lag_s
        if outcome is Retired.GONE and is_settled:
            await self._revoke(record)
            await fleet.see(record.id, Sight.RETIRED)
        else:
            await self._pause(record, first_s=GOING_S)

    async def _revoke(self, record: Record) -> None:
        """What the machine knew lets nobody in any more. It ends in a day by itself: dataflow is not waited for."""
        try:
            await self._steering.revoke_credential(
                "node", record.id, actor=ITSELF.name, reason="its machine was retired"
            )
        except InvalidInput:
            return  # it never joined, or it has said goodbye
        except AstraFlowError as problem:
            log.warning("not_revoked", launch=record.id, problem=str(problem))

    async def _try_later(self, record: Record, problem: Exception) -> None:
        """After `Retry` and `Unknown`, what was asked for may have happened: the next try finds out."""
        log.warning("step_put_off", launch=record.id, state=record.instance.state.value, problem=str(problem))
        first_s = self._fleet.config.times.retry_s
        await self._pause(record, first_s=first_s, message=f"{type(problem).__name__}: {problem}")

    async def _pause(self, record: Record, *, first_s: float, message: str | None = None) -> None:
        fleet = self._fleet
        pause_s = min(MAX_RETRY_S, first_s * 2 ** min(record.tries, 10))

        def decide(ledger: Ledger) -> tuple[Changes, None]:
            known = ledger.records[record.id]
            if known.instance.state is not record.instance.state:
                return Changes(), None  # it moved on in the meantime
            said = known.instance.message if message is None else message
            later = replace(
                known,
                tries=known.tries + 1,
                next_try_at=fleet.clock.wall() + pause_s,
                instance=replace(known.instance, message=said),
            )
            return Changes(records=(later,)), None

        await fleet.ledger.change(decide)

    def _provider(self, record: Record) -> Provider:
        return self._fleet.provider(record.instance.provider)

    def _gate(self, record: Record) -> asyncio.Semaphore:
        self._provider(record)  # raises for one that is not configured (any more)
        return self._gates[record.instance.provider]

    async def _within(self, call: Awaitable[T]) -> T:
        limit_s = self._fleet.config.times.call_s
        try:
            async with asyncio.timeout(limit_s):  # `wait_for` loses a cancellation now and then, up to Python 3.11
                return await call
        except TimeoutError:
            raise Retry(f"no answer within {limit_s:g} s") from None
