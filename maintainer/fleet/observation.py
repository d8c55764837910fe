"""What dataflow says of nodes, and what the rule says of pools: the latest report, and how old it is."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from astraflow.contract.access import JoinToken
from astraflow.contract.advice import FleetTerms, Reason
from astraflow.contract.causes import Cause
from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import LaunchId
from astraflow.contract.ids import NodeId, PoolId, name_of
from astraflow.contract.reports import NodeReport, NodeState, Report
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

RECONNECT_S = 1.0

_SILENT = frozenset({Reason.UNMEASURED, Reason.SWITCHED_OFF})
"""Reasons of targets that are only what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How large a pool should be."""

    target: int
    reason: str
    victims: tuple[str, ...] = ()
    """Names of nodes that should go first."""


AdviceSource = Callable[[Report], Mapping[PoolId, Advice]]
"""Where targets come from: the rule, as a report carries it. A pool without advice is left out."""


class Steering(Protocol):
    """What is asked of dataflow: its control plane's client is one."""

    def watch_report(self) -> AsyncIterator[Report]:
        """The latest report at once, then one a second."""

    async def tell_terms(self, terms: FleetTerms) -> None:
        """What may and would be done, so that advice keeps to it."""

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        """Have a node finish and leave."""

    async def mint_join_token(
        self, role: str, *, pool: str = "", name: str = "", valid_s: float = 0.0, actor: str, reason: str
    ) -> JoinToken:
        """What lets one node of that pool and name in, once."""

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        """Let the holder of that name in no more. Raises: InvalidInput when there is none."""


class Observation:
    """The run as last seen. Nodes are known by their names, which are launch ids."""

    def __init__(self, advice: AdviceSource, *, clock: Clock, fresh_s: float) -> None:
        """fresh_s: an older report is no ground for anything."""
        self._advice = advice
        self._clock = clock
        self._fresh_s = fresh_s
        self._nodes: dict[str, NodeReport] = {}
        self._targets: Mapping[PoolId, Advice] = {}
        self._is_complete = False
        self._seen_at: float | None = None

    @property
    def age_s(self) -> float | None:
        """Of the report; None before the first."""
        return None if self._seen_at is None else self._clock.now() - self._seen_at

    @property
    def is_fresh(self) -> bool:
        """Whether what it says is of now."""
        return self.age_s is not None and self.age_s <= self._fresh_s

    @property
    def is_run_complete(self) -> bool:
        """The run has reached its stop condition: it needs no machines any more."""
        return self._is_complete

    def present(self, pool: PoolId) -> tuple[str, ...]:
        """Names of the pool's nodes that take part and stay, whoever started them. As the rule counts them."""
        staying = (NodeState.JOINING, NodeState.READY)
        return tuple(name for name, node in self._nodes.items() if node.facts.pool == pool and node.state in staying)

    def node(self, name: str) -> NodeReport | None:
        """The node of that name; None when there is none, or it said goodbye."""
        node = self._nodes.get(name)
        return node if node is not None and node.state is not NodeState.GONE else None

    def cause(self, name: str) -> Cause | None:
        """Why the node of that name drains, or said goodbye; None where dataflow does not know."""
        node = self._nodes.get(name)
        return node.cause if node is not None else None

    def advice(self, pool: PoolId) -> Advice | None:
        """What the rule says now; None while that is not known."""
        return self._targets.get(pool) if self.is_fresh else None

    def speeds(self) -> dict[LaunchId, float]:
        """Episodes a second of each node that works, by launch."""
        return {
            LaunchId.known(name): node.episodes_per_s
            for name, node in self._nodes.items()
            if node.state is NodeState.READY
        }

    def take(self, report: Report) -> None:
        """A newer report. A node that joined again stands for all of its name."""
        newest: dict[str, NodeReport] = {}
        for node in report.nodes:
            known = newest.get(node.facts.name)
            if known is None or node.joined_at >= known.joined_at:
                newest[node.facts.name] = node
        self._nodes = newest
        self._targets = self._advice(report)
        self._is_complete = report.completion is not None and report.completion.ends_run
        self._seen_at = self._clock.now()

    async def follow(self, steering: Steering, *, on_advice: Callable[[], None] = lambda: None) -> None:
        """Take in reports until cancelled; dataflow may be away for any time. on_advice: called when advice changes."""
        trouble = ""
        while True:
            try:
                async for report in steering.watch_report():
                    trouble = ""
                    before = self._targets
                    self.take(report)
                    if self._targets != before:
                        on_advice()
            except AstraFlowError as problem:
                if str(problem) != trouble:
                    log.warning("report_not_readable", problem=str(problem))
                trouble = str(problem)
            await self._clock.sleep(RECONNECT_S)


def reported_advice(report: Report) -> Mapping[PoolId, Advice]:
    """What the rule says in a report. What it says of itself that it does not know is left out."""
    return {
        said.pool: Advice(
            target=said.target, reason=said.sentence, victims=tuple(name_of(victim) for victim in said.victims)
        )
        for said in report.advice
        if not _SILENT.intersection(said.reasons[:1])
    }
