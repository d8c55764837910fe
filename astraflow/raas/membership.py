"""A node's standing with dataflow: it joins, and joins again whenever dataflow has forgotten it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import AstraFlowError, InternalError, StorageFull, UnknownNode
from astraflow.contract.ids import NodeId, TaskId
from astraflow.contract.nodes import NodeFacts, Welcome
from astraflow.raas.counters import NodeCounters
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import begin_run

log = get_logger()
T = TypeVar("T")

PASSING = (*TRANSIENT, StorageFull, InternalError)
"""Troubles of dataflow that a node sits out."""

_MAX_RETRY_S = 1.0
"""Dataflow gives the nodes a few seconds after a restart to claim what they run: knock often."""

_CALM_S = 1.0
"""Joins are at least this far apart: two nodes under one name would else replace each other without rest."""


class RunChanged(AstraFlowError):
    """Behind the same address there is another run, or the same with other flows: begin anew."""


class Membership:
    """Joins with `facts`; `call` says something to dataflow as a member, whatever it takes."""

    def __init__(
        self,
        client: NodeDataClient,
        facts: NodeFacts,
        *,
        held: Callable[[], tuple[TaskId, ...]],
        counters: NodeCounters,
        clock: Clock,
    ) -> None:
        """held: the tasks that this node still has, which it claims when it joins again."""
        self._client = client
        self._facts = facts
        self._held = held
        self._counters = counters
        self._clock = clock
        self._welcome: Welcome | None = None
        self._joined_at = 0.0
        self._joining = asyncio.Lock()

    @property
    def is_member(self) -> bool:
        """Whether it ever joined."""
        return self._welcome is not None

    @property
    def node(self) -> NodeId:
        """The id of the present incarnation; joined already."""
        assert self._welcome is not None  # noqa: S101 (nobody asks before the first join)
        return self._welcome.node

    async def join(self, *, give_up_after_s: float) -> Welcome:
        """Take part. Raises: Unavailable when dataflow stays out of reach for that long; what no retry helps."""
        self._welcome = await self._join(give_up_after_s=give_up_after_s)
        return self._welcome

    async def correct(self, facts: NodeFacts) -> None:
        """Join again with better facts, if they are."""
        async with self._joining:
            if facts != self._facts:
                self._facts = facts
                self._welcome = await self._join(give_up_after_s=None)

    async def call(self, say: Callable[[NodeId], Awaitable[T]], *, what: str) -> T:
        """Say something until it is answered: passing troubles are sat out, a forgotten node joins again first.

        Raises: what no retry helps (InvalidInput, NotAuthenticated, ...); RunChanged.
        """
        while True:
            node = self.node
            try:
                return await retry(
                    partial(say, node),
                    what=what,
                    max_delay_s=_MAX_RETRY_S,
                    retry_on=PASSING,
                    clock=self._clock,
                )
            except UnknownNode:
                await self.join_again(node)

    async def join_again(self, forgotten: NodeId) -> None:
        """Join under a new id, unless somebody has just done so. Raises: RunChanged."""
        async with self._joining:
            if self.node != forgotten:
                return
            await self._clock.sleep(max(0.0, self._joined_at + _CALM_S - self._clock.now()))
            log.warning("joining_again", forgotten=forgotten, held=len(self._held()))
            before = self._welcome
            self._welcome = await self._join(give_up_after_s=None)
            self._counters.joined_again()
            if before is not None and replace(before, node=self._welcome.node) != self._welcome:
                raise RunChanged(f"dataflow serves run {self._welcome.run!r} with other flows now")

    async def _join(self, *, give_up_after_s: float | None) -> Welcome:
        welcome = await retry(
            lambda: self._client.join(replace(self._facts, running=self._held())),
            what="joining",
            give_up_after_s=give_up_after_s,
            max_delay_s=_MAX_RETRY_S,
            retry_on=PASSING,
            clock=self._clock,
        )
        self._joined_at = self._clock.now()
        begin_run(welcome.run)
        log.info("joined", node=welcome.node, run=welcome.run)
        return welcome
