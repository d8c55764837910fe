"""Serves the maintainer's tools over MCP, with the same registry, toolbox and guard.

A session has the role of an agent, appears in the journal under its name, and is limited by the mode that people set
for the maintainer: an approval in the client approves nothing at the fleet service.
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

from astraflow.contract.fleet.plans import Verdict
from maintainer.agent.tools import outputs
from maintainer.agent.tools.base import Tool
from maintainer.agent.tools.outputs import ActionOutcome
from maintainer.agent.tools.results import ToolResult
from maintainer.mcp.oncall import DESCRIPTION, NAME, ONCALL, PROMPT, TITLE
from maintainer.mcp.sessions import Peer, Session, Sessions

NO_SESSION = "-"
"""Session id of HTTP clients without sessions; the SDK never creates this id."""

INSTRUCTIONS = (
    "Tools for the pools of rollout nodes of a reinforcement learning run. Read first (fleet_report), then plan "
    "(fleet_plan changes nothing), then apply a plan that was not refused, once. The guard of the fleet service checks "
    "every plan; its verdict is final. A refused change is not pre-approved: do not retry, and do not look for a way "
    "around it."
)

NOT_APPROVED = "not pre-approved, do not retry"
OUTCOME_ADVICE = {
    ActionOutcome.REFUSED: f"the guard refused the change, and nothing was changed: {NOT_APPROVED}",
    ActionOutcome.CONFLICT: "the pool has changed since the plan was made, and nothing was changed: "
    "read the report again first",
    ActionOutcome.PROPOSED: "a person decides, on the page or with `astraflow maintainer approve PLAN`; you cannot: "
    "do not retry",
    ActionOutcome.RECORDED: "shadow mode: the change was recorded, and nothing was changed: do not retry",
}
"""Explanations of an apply without effect: some clients show a model no structured answer."""


def peer_from(context: Context) -> Peer:
    """Identity of the caller: by its MCP session, if the protocol has sessions."""
    request = context.request_context
    info = request.session.client_params.client_info if request.session.client_params is not None else None
    client = f"{info.name} {info.version}" if info is not None else ""
    if not isinstance(request.request, Request):
        return Peer(session="", client=client)
    session = (
        request.request.headers.get(SESSION, "") if request.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else ""
    )
    return Peer(session=session or NO_SESSION, client=client, is_identified=bool(session))


class RegisteredTool(McpTool):
    """Tool of the registry as MCP lists and calls it. The toolbox validates arguments and returns errors as results."""

    _sessions: Sessions = PrivateAttr()

    @classmethod
    def of(cls, tool: Tool, sessions: Sessions) -> "RegisteredTool":
        """Wraps one tool."""
        annotations = tool.annotations
        tool_for_mcp = cls(
            fn=Session.call,
            name=tool.name,
            title=annotations.title,
            description=tool.description,
            parameters=tool.input_schema(),
            fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=tool.output_schema()),
            is_async=True,
            annotations=ToolAnnotations(
                title=annotations.title,
                read_only_hint=annotations.is_read_only,
                destructive_hint=annotations.is_destructive and not sessions.modes.is_non_destructive,
                idempotent_hint=annotations.is_idempotent,
                open_world_hint=annotations.is_open_world,
            ),
        )
        tool_for_mcp._sessions = sessions
        return tool_for_mcp

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> CallToolResult:
        """Executes one call in the caller's session."""
        return answer(await self._sessions.session_for(peer_from(context)).call(self.name, arguments))


def answer(result: ToolResult) -> CallToolResult:
    """Result for a client: JSON as text and as an object, plus an explanation if nothing was applied."""
    texts = [result.content]
    match result.output:
        case outputs.ApplyOutput(outcome=outcome) if outcome in OUTCOME_ADVICE:
            texts.append(OUTCOME_ADVICE[outcome])
        case outputs.PlanOutput(verdict=Verdict.REFUSED):
            texts.append(OUTCOME_ADVICE[ActionOutcome.REFUSED])
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=result.output.model_dump(mode="json") if result.output is not None else None,
        is_error=result.is_error,
    )


def mcp_server(sessions: Sessions) -> MCPServer:
    """Server of all sessions, with its tools and the on-call prompt."""
    tools: list[McpTool] = [RegisteredTool.of(tool, sessions) for tool in sessions.modes.tools.values()]
    server: MCPServer = MCPServer(
        NAME, title="AstraFlow fleet", instructions=INSTRUCTIONS, tools=tools, log_level="WARNING", subscriptions=False
    )

    def oncall() -> str:
        return ONCALL

    server.add_prompt(Prompt.from_function(oncall, name=PROMPT, title=TITLE, description=DESCRIPTION))
    return server
