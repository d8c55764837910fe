"""Tools of one wake or MCP session: executes a call, returns its result.

It applies only its own plans. Errors are returned as an error word with a fixed sentence, and nothing outside the tools
can be executed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from astraflow.contract.errors import Conflict, InvalidInput, NotPermitted
from astraflow.contract.fleet.maintainer import MaintainerControlState, MaintainerMode
from astraflow.contract.fleet.plans import Actor
from astraflow.runtime.clock import Clock
from astraflow.runtime.retries import TRANSIENT
from maintainer.agent.observation.names import Names
from maintainer.agent.observation.signals import Signal
from maintainer.agent.observation.snapshot import Snapshot
from maintainer.agent.tools import inputs
from maintainer.agent.tools.base import Kind, ToolModel
from maintainer.agent.tools.changes import Changes, CompletedAction
from maintainer.agent.tools.interfaces import FleetClient, Record, skip_record
from maintainer.agent.tools.registry import TOOLS
from maintainer.agent.tools.results import ToolRefused, ToolResult, error_result, resolve, validation_summary
from maintainer.agent.tools.views.journal import events_view, explanation
from maintainer.agent.tools.views.nodes import nodes_view
from maintainer.agent.tools.views.pools import plan_view
from maintainer.agent.tools.views.reports import report_view
from maintainer.agent.tools.views.runs import doctor_view, run_plan_view
from maintainer.agent.tools.views.view_context import ViewContext

T = TypeVar("T")

STOP_GRACE_S = 0.25
"""Time that a change in flight has to finish when people stop the wake, seconds."""


class Toolbox:
    """Toolbox of one wake or session."""

    def __init__(
        self,
        *,
        detect_signals: Callable[[], Awaitable[tuple[Snapshot, tuple[Signal, ...]]]],
        fleet: FleetClient,
        names: Names,
        actor: Actor,
        control_state: Callable[[], MaintainerControlState],
        clock: Clock,
        scope: str,
        record: Record = skip_record,
        is_one_plan_per_pool: bool = True,
        is_read_only: bool = False,
        is_non_destructive: bool = False,
    ) -> None:
        """detect_signals: reads a snapshot with its signals. control_state: read at every call.

        scope: prefix of all idempotency keys, unique to this wake or session. is_one_plan_per_pool: allows at most one
        plan per pool. is_read_only: offers only tools that read. is_non_destructive: refuses plans that remove nodes or
        stop the run.
        """
        self._detect_signals = detect_signals
        self._fleet = fleet
        self._names = names
        self._control_state = control_state
        self._changes = Changes(
            fleet=fleet,
            names=names,
            actor=actor,
            control_state=control_state,
            clock=clock,
            scope=scope,
            record=record,
            is_one_plan_per_pool=is_one_plan_per_pool,
            is_non_destructive=is_non_destructive,
        )
        self.tools = {name: tool for name, tool in TOOLS.items() if not is_read_only or tool.kind is Kind.READ}

    @property
    def done(self) -> Sequence[CompletedAction]:
        """Results of all changes, in order."""
        return self._changes.done

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolResult:
        """Executes one call. Every error becomes a result; only a failed write of the transcript raises."""
        try:
            output = await self._answer(name, arguments)
        except ToolRefused as refused:
            return error_result(refused.error, refused.details)
        except (Conflict, NotPermitted, InvalidInput):
            return error_result("not_possible")
        except TRANSIENT:
            return error_result("not_reachable")
        return ToolResult(content=output.model_dump_json(), output=output)

    async def _answer(self, name: str, arguments: Mapping[str, Any] | None) -> ToolModel:
        tool = self.tools.get(name)
        if tool is None:
            raise ToolRefused("unknown_tool", ", ".join(self.tools))
        try:
            tool_input = tool.input.model_validate({} if arguments is None and tool.kind is Kind.READ else arguments)
        except ValidationError as problem:
            raise ToolRefused("bad_arguments", validation_summary(problem)) from None
        self._check_may_act(tool.kind)
        match tool_input:
            case inputs.ReportInput():
                view_context = await self._view_context()
                return resolve(lambda: report_view(view_context, tool_input, mode=self._control_state().mode))
            case inputs.NodesInput():
                view_context = await self._view_context()
                return resolve(lambda: nodes_view(view_context, tool_input))
            case inputs.EventsInput():
                return events_view(await self._view_context(), tool_input)
            case inputs.ExplainInput():
                return await self._explain(tool_input)
            case inputs.PlanInput():
                plan = await self._changes.plan(tool_input)
                return plan_view(await self._view_context(), plan)
            case inputs.DoctorInput():
                view_context = await self._view_context()
                return resolve(lambda: doctor_view(view_context, tool_input))
            case inputs.RunChangeInput():
                plan = await self._changes.plan_run(tool_input)
                return run_plan_view(await self._view_context(), plan)
            case inputs.ApplyInput():
                return await finish_change(self._changes.apply(tool_input))
            case inputs.HoldInput():
                return await finish_change(self._changes.hold(tool_input))
            case inputs.EscalateInput():
                return await finish_change(self._changes.escalate(tool_input))
            case _:
                raise ToolRefused("unknown_tool")

    def _check_may_act(self, kind: Kind) -> None:
        """Refuses changes that the control state forbids; reading is always allowed."""
        control_state = self._control_state()
        if kind is not Kind.READ and (not control_state.may_act or control_state.mode is MaintainerMode.OFF):
            raise ToolRefused("kill_switch")

    async def _view_context(self) -> ViewContext:
        snapshot, signals = await self._detect_signals()
        return ViewContext(snapshot, signals, self._names)

    async def _explain(self, arguments: inputs.ExplainInput) -> ToolModel:
        decisions = await self._fleet.decisions(before=arguments.decision + 1, limit=1)
        if not decisions or decisions[0].ordinal != arguments.decision:
            raise ToolRefused("unknown_name")
        return explanation(await self._view_context(), decisions[0])


async def finish_change(work: Coroutine[Any, Any, T]) -> T:
    """Awaits a change. If the caller is cancelled, a sent change has `STOP_GRACE_S` to finish and be recorded."""
    change_task = asyncio.create_task(work)
    try:
        return await asyncio.shield(change_task)
    except asyncio.CancelledError:
        await asyncio.wait({change_task}, timeout=STOP_GRACE_S)
        change_task.cancel()
        await asyncio.gather(change_task, return_exceptions=True)
        raise
