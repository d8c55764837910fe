"""Heartbeats: report the state of the node to dataflow and apply the directive in the answer."""

from collections.abc import Callable, Mapping, Sequence

from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import Unavailable, UnknownNode
from astraflow.contract.ids import PolicyId, TaskId, Version
from astraflow.contract.nodes import NodeStatus
from astraflow.contract.rollouts.agent_calls import MAX_LIVE_SESSIONS, oldest_sessions
from astraflow.raas.counters import NodeCounters
from astraflow.raas.drain_state import DrainState
from astraflow.raas.membership import RETRYABLE_ERRORS, Membership
from astraflow.raas.policies.transfer_totals import TransferTotals
from astraflow.raas.tasks.capacity import Capacity
from astraflow.runtime.clock import AwakeClock, Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from astraflow.workflows.base import SessionSource

log = get_logger()

AWAKE_S = 10.0
"""A node whose event loop did not run for longer was suspended: then dataflow could not answer either. Seconds."""


class HeartbeatLoop:
    """Renews the leases of the held tasks and reports counters, errors and versions to dataflow."""

    def __init__(
        self,
        client: NodeDataClient,
        membership: Membership,
        *,
        held_tasks: Callable[[], tuple[TaskId, ...]],
        versions: Callable[[], Mapping[PolicyId, Version]],
        session_sources: Callable[[], Sequence[SessionSource]],
        capacity: Capacity,
        counters: NodeCounters,
        transfers: TransferTotals,
        drain_state: DrainState,
        clock: Clock,
    ) -> None:
        self._client = client
        self._membership = membership
        self._held_tasks = held_tasks
        self._versions = versions
        self._session_sources = session_sources
        self._capacity = capacity
        self._counters = counters
        self._transfers = transfers
        self._drain_state = drain_state
        self._clock = clock
        self._awake_clock = AwakeClock(clock, gap_s=AWAKE_S)
        self._last_answer_at = self._awake_clock.now()

    async def run(self, every_s: float) -> None:
        """Sends heartbeats until cancelled. Raises: errors that a retry does not cure; RunChanged."""
        await periodic(self.heartbeat, every_s=every_s, clock=self._clock)

    async def heartbeat(self) -> None:
        """Sends one heartbeat."""
        status = self._status()
        try:
            directive = await self._client.heartbeat(status)
        except UnknownNode:
            await self._membership.rejoin(status.node)
        except RETRYABLE_ERRORS as problem:
            log.warning("heartbeat_missed", problem=str(problem))
        else:
            self._last_answer_at = self._awake_clock.now()
            self._counters.mark_reported(dict(status.counters))
            self._drain_state.apply_directive(directive)

    async def watch_dataflow(self, dataflow_timeout_s: float) -> None:
        """Runs until cancelled. Raises: Unavailable once no heartbeat was answered for `dataflow_timeout_s` seconds,
        not counting those in which this process did not run."""
        while True:
            remaining_s = self._last_answer_at + dataflow_timeout_s - self._awake_clock.now()
            if remaining_s <= 0:
                raise Unavailable(
                    f"cannot continue: dataflow has not answered for {dataflow_timeout_s:g} s; check that its service "
                    "runs, or set a longer dataflow_timeout_s",
                    code="node.dataflow_timeout",
                )
            await self._clock.sleep(min(remaining_s, AWAKE_S / 4))

    def _status(self) -> NodeStatus:
        busy_s, blocked_s = self._capacity.busy_and_blocked_s()
        self._counters.set_total("busy_s", busy_s)
        self._counters.set_total("blocked_s", blocked_s)
        self._counters.observe_rate(self._clock.now())
        sources = self._session_sources()
        sessions = [session for source in sources for session in source.live_sessions()]
        if sources:
            self._counters.set_gauge("agent_sessions", len(sessions))
        return NodeStatus(
            node=self._membership.node,
            running=self._held_tasks(),
            versions=self._versions(),
            counters=self._counters.counters(),
            gauges=self._counters.gauges(),
            errors=self._counters.errors(),
            leave_reason=self._drain_state.reason,
            is_preempted=self._drain_state.is_preempted,
            links=self._transfers.reports(),
            sessions=oldest_sessions(sessions, MAX_LIVE_SESSIONS),
        )
