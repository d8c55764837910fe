"""Membership of a node in a run: joins, and rejoins when dataflow no longer knows the node."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import AstraFlowError, InternalError, StorageFull, UnknownNode
from astraflow.contract.ids import NodeId, TaskId
from astraflow.contract.nodes import JoinResult, NodeFacts
from astraflow.raas.counters import NodeCounters
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT, retry
from astraflow.runtime.tracing import begin_run

log = get_logger()
T = TypeVar("T")

RETRYABLE_ERRORS = (*TRANSIENT, StorageFull, InternalError)
"""Errors of dataflow after which a node retries."""

_MAX_RETRY_DELAY_S = 1.0
"""Short, because dataflow gives nodes a few seconds after a restart to claim their running tasks."""

_MIN_JOIN_INTERVAL_S = 1.0
"""Minimum time between joins: limits how fast two nodes with the same name replace each other."""


class RunChanged(AstraFlowError):
    """Dataflow at this address serves another run, or the same run with other flows: build the node again."""


class Membership:
    """Joins a run with `facts`; `call` sends requests as a member and retries them."""

    def __init__(
        self,
        client: NodeDataClient,
        facts: NodeFacts,
        *,
        held_tasks: Callable[[], tuple[TaskId, ...]],
        counters: NodeCounters,
        clock: Clock,
    ) -> None:
        """held_tasks: tasks that this node holds and claims on a rejoin."""
        self._client = client
        self._facts = facts
        self._held_tasks = held_tasks
        self._counters = counters
        self._clock = clock
        self._join_result: JoinResult | None = None
        self._joined_at = 0.0
        self._join_lock = asyncio.Lock()

    @property
    def is_member(self) -> bool:
        """True after the first join."""
        return self._join_result is not None

    @property
    def node(self) -> NodeId:
        """Id of the current incarnation. Requires a completed join."""
        assert self._join_result is not None  # noqa: S101 (no caller reads it before the first join)
        return self._join_result.node

    async def join(self, *, give_up_after_s: float) -> JoinResult:
        """Joins the run. Raises: Unavailable when dataflow stays unreachable; errors that a retry does not cure."""
        self._join_result = await self._join(give_up_after_s=give_up_after_s)
        return self._join_result

    async def update_facts(self, facts: NodeFacts) -> None:
        """Joins again if the facts changed."""
        async with self._join_lock:
            if facts != self._facts:
                self._facts = facts
                self._join_result = await self._join(give_up_after_s=None)

    async def call(self, request: Callable[[NodeId], Awaitable[T]], *, what: str) -> T:
        """Sends a request until it is answered: retries after transient errors and rejoins if the node is unknown.

        Raises: errors that a retry does not cure (InvalidInput, NotAuthenticated, ...); RunChanged.
        """
        while True:
            node = self.node
            try:
                return await retry(
                    partial(request, node),
                    what=what,
                    max_delay_s=_MAX_RETRY_DELAY_S,
                    retry_on=RETRYABLE_ERRORS,
                    clock=self._clock,
                )
            except UnknownNode:
                await self.rejoin(node)

    async def rejoin(self, unknown_node: NodeId) -> None:
        """Joins under a new id, unless another task already did. Raises: RunChanged."""
        async with self._join_lock:
            if self.node != unknown_node:
                return
            await self._clock.sleep(max(0.0, self._joined_at + _MIN_JOIN_INTERVAL_S - self._clock.now()))
            log.warning("rejoin_started", unknown_node=unknown_node, held=len(self._held_tasks()))
            before = self._join_result
            self._join_result = await self._join(give_up_after_s=None)
            self._counters.reset_baseline()
            if before is not None and replace(before, node=self._join_result.node) != self._join_result:
                raise RunChanged(
                    f"cannot continue the run: dataflow now serves run {self._join_result.run!r} with other settings; "
                    "build the node again",
                    code="node.run_changed",
                )

    async def _join(self, *, give_up_after_s: float | None) -> JoinResult:
        join_result = await retry(
            lambda: self._client.join(replace(self._facts, running=self._held_tasks())),
            what="joining",
            give_up_after_s=give_up_after_s,
            max_delay_s=_MAX_RETRY_DELAY_S,
            retry_on=RETRYABLE_ERRORS,
            clock=self._clock,
        )
        self._joined_at = self._clock.now()
        begin_run(join_result.run)
        log.info("run_joined", node=join_result.node, run=join_result.run)
        return join_result
