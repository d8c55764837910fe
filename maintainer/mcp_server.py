"""The maintainer's tools over MCP: any agent can be the maintainer, with the same registry, toolbox and guard.

What a session does has the role of an agent, stands in the journal under its name, and goes as far as the mode that
people set for the maintainer: whoever approves in a client approves nothing at the fleet service.
"""

import secrets
from typing import Any, Protocol

from mcp.server import MCPServer
from mcp.server.mcpserver.prompts.base import Prompt
from mcp.server.mcpserver.tools import Tool as McpTool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import PrivateAttr

from astraflow.contract.errors import AstraFlowError
from astraflow.contract.fleet import Actor, KillScope, Role
from astraflow.contract.maintenance import Maintainer, MaintainerMode, MaintainerOrders
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.config import WatchConfig
from maintainer.names import Names
from maintainer.observation import Memory, Signal, observe
from maintainer.prompt import SYSTEM
from maintainer.sight import Eyes, Sight, WatchPort
from maintainer.toolbox.answers import ADVICE, ToolResult
from maintainer.toolbox.ports import FleetPort
from maintainer.toolbox.toolbox import Toolbox
from maintainer.tools import outputs
from maintainer.tools.base import Tool

log = get_logger()

NAME = "astraflow"
PROMPT = "astraflow-oncall"

INSTRUCTIONS = (
    "Looks after the rollout nodes of a reinforcement learning run: read first (fleet_report), plan (fleet_plan does "
    "nothing by itself), apply what was allowed, once. The guard of the fleet service judges every plan; its word is "
    "final. What is refused is not pre-approved: do not retry, and look for no way around it."
)

ONCALL = f"""\
You are on call for the fleet of an AstraFlow run. Begin with fleet_report, in the concise format.

{SYSTEM}
Here you work for the person in front of you: say what is the matter and what you would do before fleet_apply, and end \
with the note.
"""

NO = "not pre-approved, do not retry"
_ADVICE = {
    "refused": f"the guard said no, and nothing happened: {NO}",
    "conflict": "the pool has changed meanwhile, and nothing happened: read the report before anything else",
    "proposed": "a person decides on the page or with the CLI; you cannot, nor can the person here: do not retry",
    "recorded": "shadow mode: it was written down, and nothing happens: do not retry",
}
"""What comes of an apply that did nothing, in words: some clients show a model no structured answer."""


class SessionFleet(FleetPort, WatchPort, Protocol):
    """What a session asks of the fleet service: the fleet plane's client is one."""

    async def maintainer(self) -> Maintainer:
        """The mode that people set."""


class Session:
    """What is seen, what people want, and the tools: one for a server, as its token is one agent's."""

    def __init__(
        self, *, eyes: Eyes, fleet: SessionFleet, names: Names, name: str, clock: Clock, is_read_only: bool = False
    ) -> None:
        """name: in the journal."""
        self._eyes = eyes
        self._fleet = fleet
        self._memory = Memory()
        self._watch = WatchConfig()
        self._orders = MaintainerOrders(mode=MaintainerMode.OFF, kill=KillScope.NONE)
        self.toolbox = Toolbox(
            look=self._look,
            fleet=fleet,
            names=names,
            actor=Actor(name=name, role=Role.AGENT),
            orders=lambda: self._orders,
            clock=clock,
            scope=f"{name}:mcp-{secrets.token_hex(8)}",
            one_plan_each=False,
            is_read_only=is_read_only,
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """One call, after people's orders were heard: without them nothing but reading is done."""
        try:
            kill, mode = (await self._fleet.status()).kill, (await self._fleet.maintainer()).mode
            self._orders = MaintainerOrders(mode=mode, kill=kill)
            result = await self.toolbox.call(name, arguments)
        except AstraFlowError as problem:
            log.warning("not_answered", tool=name[:80], problem=str(problem))
            return ToolResult(content=f'{{"error":"not_reachable","advice":"{ADVICE["not_reachable"]}"}}', error="away")
        log.info("called", tool=name[:80], error=result.error)
        return result

    async def _look(self) -> tuple[Sight, tuple[Signal, ...]]:
        sight = await self._eyes.look()
        self._memory, signals = observe(self._memory, sight, self._watch)
        return sight, signals


class RegisteredTool(McpTool):
    """A tool of the registry as MCP lists and calls it. The toolbox checks arguments, and answers every mistake."""

    _session: Session = PrivateAttr()

    @classmethod
    def of(cls, tool: Tool, session: Session) -> "RegisteredTool":
        """One verb."""
        hints = tool.annotations
        made = cls(
            fn=session.call,
            name=tool.name,
            title=hints.title,
            description=tool.description,
            parameters=tool.input_schema(),
            fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=tool.output_schema()),
            is_async=True,
            annotations=ToolAnnotations(
                title=hints.title,
                read_only_hint=hints.is_read_only,
                destructive_hint=hints.is_destructive,
                idempotent_hint=hints.is_idempotent,
                open_world_hint=hints.is_open_world,
            ),
        )
        made._session = session
        return made

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> CallToolResult:
        """One call."""
        return answer(await self._session.call(self.name, arguments))


def answer(result: ToolResult) -> CallToolResult:
    """What a client gets: the JSON as text and as an object, and what to do where nothing came of it."""
    texts = [result.content]
    match result.output:
        case outputs.ApplyOutput(outcome=outcome) if outcome in _ADVICE:
            texts.append(_ADVICE[outcome])
        case outputs.PlanOutput(verdict="refused"):
            texts.append(_ADVICE["refused"])
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=result.output.model_dump(mode="json") if result.output is not None else None,
        is_error=result.is_error,
    )


def mcp_server(session: Session) -> MCPServer:
    """The server of a session: its tools and the prompt of whoever is on call."""
    tools: list[McpTool] = [RegisteredTool.of(tool, session) for tool in session.toolbox.tools.values()]
    server: MCPServer = MCPServer(
        NAME, title="AstraFlow fleet", instructions=INSTRUCTIONS, tools=tools, log_level="WARNING", subscriptions=False
    )

    def oncall() -> str:
        return ONCALL

    server.add_prompt(
        Prompt.from_function(oncall, name=PROMPT, title="On call", description="Look after the fleet of the run now.")
    )
    return server
