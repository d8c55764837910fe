"""The maintainer's tools over MCP: any agent can be the maintainer, with the same registry, toolbox and guard.

What a session does has the role of an agent, stands in the journal under its name, and goes as far as the mode that
people set for the maintainer: whoever approves in a client approves nothing at the fleet service.
"""

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import Prompt
from mcp.server.mcpserver.tools import Tool as McpTool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER as SESSION
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import PrivateAttr
from starlette.requests import Request

from maintainer.mcp_sessions import Peer, Session, Sessions
from maintainer.oncall import DESCRIPTION, NAME, ONCALL, PROMPT, TITLE
from maintainer.toolbox.answers import ToolResult
from maintainer.tools import outputs
from maintainer.tools.base import Tool

NOBODYS = "-"
"""Stands for clients over HTTP that have no session; the SDK makes no such id."""

INSTRUCTIONS = (
    "Looks after the rollout nodes of a reinforcement learning run: read first (fleet_report), plan (fleet_plan does "
    "nothing by itself), apply what was allowed, once. The guard of the fleet service judges every plan; its word is "
    "final. What is refused is not pre-approved: do not retry, and look for no way around it."
)

NO = "not pre-approved, do not retry"
ADVICE = {
    "refused": f"the guard said no, and nothing happened: {NO}",
    "conflict": "the pool has changed meanwhile, and nothing happened: read the report before anything else",
    "proposed": "a person decides, on the page or with `astraflow maintainer approve PLAN`; you cannot: do not retry",
    "recorded": "shadow mode: it was written down, and nothing happens: do not retry",
}
"""What comes of an apply that did nothing, in words: some clients show a model no structured answer."""


def peer_of(context: Context) -> Peer:
    """Who calls: by the session that the SDK gave it, where there are sessions."""
    asked = context.request_context
    info = asked.session.client_params.client_info if asked.session.client_params is not None else None
    client = f"{info.name} {info.version}" if info is not None else ""
    if not isinstance(asked.request, Request):
        return Peer(session="", client=client)
    session = asked.request.headers.get(SESSION, "") if asked.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else ""
    return Peer(session=session or NOBODYS, client=client, is_alone=bool(session))


class RegisteredTool(McpTool):
    """A tool of the registry as MCP lists and calls it. The toolbox checks arguments, and answers every mistake."""

    _sessions: Sessions = PrivateAttr()

    @classmethod
    def of(cls, tool: Tool, sessions: Sessions) -> "RegisteredTool":
        """One verb."""
        hints = tool.annotations
        made = cls(
            fn=Session.call,
            name=tool.name,
            title=hints.title,
            description=tool.description,
            parameters=tool.input_schema(),
            fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=tool.output_schema()),
            is_async=True,
            annotations=ToolAnnotations(
                title=hints.title,
                read_only_hint=hints.is_read_only,
                destructive_hint=hints.is_destructive and not sessions.modes.is_sparing,
                idempotent_hint=hints.is_idempotent,
                open_world_hint=hints.is_open_world,
            ),
        )
        made._sessions = sessions
        return made

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> CallToolResult:
        """One call."""
        return answer(await self._sessions.of(peer_of(context)).call(self.name, arguments))


def answer(result: ToolResult) -> CallToolResult:
    """What a client gets: the JSON as text and as an object, and what to do where nothing came of it."""
    texts = [result.content]
    match result.output:
        case outputs.ApplyOutput(outcome=outcome) if outcome in ADVICE:
            texts.append(ADVICE[outcome])
        case outputs.PlanOutput(verdict="refused"):
            texts.append(ADVICE["refused"])
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=result.output.model_dump(mode="json") if result.output is not None else None,
        is_error=result.is_error,
    )


def mcp_server(sessions: Sessions) -> MCPServer:
    """The server of all sessions: its tools and the prompt of whoever is on call."""
    tools: list[McpTool] = [RegisteredTool.of(tool, sessions) for tool in sessions.modes.tools.values()]
    server: MCPServer = MCPServer(
        NAME, title="AstraFlow fleet", instructions=INSTRUCTIONS, tools=tools, log_level="WARNING", subscriptions=False
    )

    def oncall() -> str:
        return ONCALL

    server.add_prompt(Prompt.from_function(oncall, name=PROMPT, title=TITLE, description=DESCRIPTION))
    return server
