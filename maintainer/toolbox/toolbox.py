"""The tools of one wake, or of one session of MCP: a call in, an answer out.

What one has planned only it applies. Whatever a model says, errors come back as a word and a fixed sentence, and
nothing here knows how to do anything that is not a tool.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet import Actor
from astraflow.contract.maintenance import MaintainerMode, MaintainerOrders
from astraflow.runtime.aio import TRANSIENT
from astraflow.runtime.clock import Clock
from maintainer.names import Names
from maintainer.observation import Signal
from maintainer.sight import Sight
from maintainer.toolbox.answers import Refused, ToolResult, explained, named, refusal
from maintainer.toolbox.changes import Changes, Done
from maintainer.toolbox.ports import FleetPort, Record, unrecorded
from maintainer.tools import inputs
from maintainer.tools.base import Kind, Typed
from maintainer.tools.registry import TOOLS
from maintainer.views.journal import events_view, explanation
from maintainer.views.moment import Moment
from maintainer.views.nodes import nodes_view
from maintainer.views.plans import plan_view
from maintainer.views.reports import report_view

T = TypeVar("T")

LAST_S = 0.25
"""A change that was sent when people stopped the wake is given so long to be answered, and no longer."""


class Toolbox:
    """One for each wake, and one for each session."""

    def __init__(
        self,
        *,
        look: Callable[[], Awaitable[tuple[Sight, tuple[Signal, ...]]]],
        fleet: FleetPort,
        names: Names,
        actor: Actor,
        orders: Callable[[], MaintainerOrders],
        clock: Clock,
        scope: str,
        record: Record = unrecorded,
        one_plan_each: bool = True,
        is_read_only: bool = False,
    ) -> None:
        """look: what is seen now. orders: what people told it, asked for at every call.

        scope: begins the keys of all changes; no other wake or session has it. one_plan_each: at most one plan for
        each pool. is_read_only: no tool that writes is there.
        """
        self._look = look
        self._fleet = fleet
        self._names = names
        self._orders = orders
        self._changes = Changes(
            fleet=fleet,
            names=names,
            actor=actor,
            orders=orders,
            clock=clock,
            scope=scope,
            record=record,
            one_plan_each=one_plan_each,
        )
        self.tools = {name: tool for name, tool in TOOLS.items() if not is_read_only or tool.kind is Kind.READ}

    @property
    def done(self) -> Sequence[Done]:
        """What came of it all, in order."""
        return self._changes.done

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolResult:
        """One call. Whatever is wrong with it is an answer; only a transcript that cannot be written raises."""
        try:
            output = await self._answer(name, arguments)
        except Refused as refused:
            return refusal(refused.error, refused.details)
        except (Conflict, NotPermitted, InvalidInput):
            return refusal("not_possible")
        except TRANSIENT:
            return refusal("not_reachable")
        return ToolResult(content=output.model_dump_json(), output=output)

    async def _answer(self, name: str, arguments: Mapping[str, Any] | None) -> Typed:
        tool = self.tools.get(name)
        if tool is None:
            raise Refused("unknown_tool", ", ".join(self.tools))
        try:
            asked = tool.input.model_validate({} if arguments is None and tool.kind is Kind.READ else arguments)
        except ValidationError as problem:
            raise Refused("bad_arguments", explained(problem)) from None
        self._check_orders(tool.kind)
        match asked:
            case inputs.ReportInput():
                moment = await self._moment()
                return named(lambda: report_view(moment, asked, mode=self._orders().mode))
            case inputs.NodesInput():
                moment = await self._moment()
                return named(lambda: nodes_view(moment, asked))
            case inputs.EventsInput():
                return events_view(await self._moment(), asked)
            case inputs.ExplainInput():
                return await self._explain(asked)
            case inputs.PlanInput():
                plan = await self._changes.plan(asked)
                return plan_view(await self._moment(), plan)
            case inputs.ApplyInput():
                return await finished(self._changes.apply(asked))
            case inputs.HoldInput():
                return await finished(self._changes.hold(asked))
            case inputs.EscalateInput():
                return await finished(self._changes.escalate(asked))
            case _:
                raise Refused("unknown_tool")

    def _check_orders(self, kind: Kind) -> None:
        """People are heard before every step: reading is always free."""
        orders = self._orders()
        if kind is not Kind.READ and (not orders.may_act or orders.mode is MaintainerMode.OFF):
            raise Refused("kill_switch")

    async def _moment(self) -> Moment:
        sight, signals = await self._look()
        return Moment(sight, signals, self._names)

    async def _explain(self, asked: inputs.ExplainInput) -> Typed:
        found = await self._fleet.decisions(before=asked.decision + 1, limit=1)
        if not found or found[0].ordinal != asked.decision:
            raise Refused("unknown_name")
        return explanation(await self._moment(), found[0])


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """What comes of a change. Its caller may be stopped meanwhile: what was sent is written down, if that is soon."""
    working = asyncio.create_task(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working}, timeout=LAST_S)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise
