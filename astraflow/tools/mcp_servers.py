"""Tools of MCP servers (Model Context Protocol), over their standard input and output or over HTTP."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from astraflow.contract.errors import AstraFlowError, InvalidInput, Unavailable
from astraflow.contract.rollouts.failures import Boundary, RolloutFailed
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.contract.values import Json
from astraflow.runtime.config.base import Config
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.logs import get_logger
from astraflow.runtime.processes.child import child_environment
from astraflow.tools import tool_sources
from astraflow.tools.base import PARAMETER_NAME, TOOL_NAME, Tool, ToolError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

log = get_logger()

MAX_TOOLS = 128
MAX_PAGES = 16
MAX_DESCRIPTION_CHARACTERS = 4096
MAX_SCHEMA_CHARACTERS = 65536
MAX_RESULT_CHARACTERS = 2**20


class McpOptions(Config):
    """Server: a command that this machine runs, or an address."""

    command: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Program and arguments of a server that is started here and speaks over its standard input and output."""
    variables: Annotated[tuple[str, ...], SettableBy.RECIPE] = ()
    """Names of environment variables that the program gets, besides PATH, HOME and the like."""
    url: Annotated[str, SettableBy.RECIPE] = ""
    """Address of a server that runs already, such as https://tools.example.org/mcp."""
    token_variable: Annotated[str, SettableBy.RECIPE] = ""
    """Name of the environment variable with the bearer token of the address; empty: none."""
    tools: Annotated[tuple[str, ...], SettableBy.AGENT] = ()
    """Names of the tools that the policy gets; empty: all."""
    server_per_episode: Annotated[bool, SettableBy.RECIPE] = False
    """Connects again for each episode, which starts another program for a `command`: for servers with state. Otherwise
    all episodes of the flow share one connection."""
    start_s: float = Field(default=30.0, gt=0)
    """Time limit of a start, with the list of tools."""
    call_s: float = Field(default=30.0, gt=0)
    """Time limit of a call."""

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either command or url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("url does not begin with http:// or https://")
        if self.token_variable and not self.url:
            raise ValueError("token_variable is for a server with url; pass variables to a command")
        return self


@tool_sources.register("mcp", options=McpOptions)
class McpServer:
    """Tools of an MCP server, with the names, descriptions and schemas that it lists.

    An error of a tool is text for the policy. A server that ends fails the episodes that use it; the next episode
    connects again.
    """

    def __init__(self, options: McpOptions) -> None:
        self._options = options
        self._shared: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def start(self) -> None:
        """Connects, and checks the tools. Raises: InvalidInput for unusable tools; Unavailable without the server."""
        connection = await _connect(self._options)
        if self._options.server_per_episode:
            await connection.close()
        else:
            self._shared = connection

    async def close(self) -> None:
        """Closes the shared connection, and with it the program."""
        if self._shared is not None:
            connection, self._shared = self._shared, None
            await connection.close()

    @asynccontextmanager
    async def open(self, prompt: Prompt, seed: int) -> AsyncIterator[tuple[Tool, ...]]:
        """Provides the tools of the server. Raises: RolloutFailed at the boundary `environment`."""
        if not self._options.server_per_episode:
            yield (await self._shared_connection()).tools
            return
        connection = await self._connect_for_episode()
        try:
            yield connection.tools
        finally:
            await connection.close()

    async def _shared_connection(self) -> "_Connection":
        """Returns the shared connection; connects again when the server ended."""
        async with self._connecting:
            if self._shared is None or not self._shared.is_open:
                await self.close()
                self._shared = await self._connect_for_episode()
            return self._shared

    async def _connect_for_episode(self) -> "_Connection":
        try:
            return await _connect(self._options)
        except AstraFlowError as problem:
            raise _server_failed(str(problem)) from problem


class _Connection:
    """Connection to a server. One task opens and closes it, as its library demands."""

    def __init__(self, options: McpOptions) -> None:
        self._options = options
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[tuple[Tool, ...]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve())
        self._is_broken = False
        self.tools: tuple[Tool, ...] = ()

    @property
    def is_open(self) -> bool:
        """False once the server ended."""
        return not self._task.done() and not self._is_broken

    async def ready(self) -> None:
        """Waits until the tools are listed. Raises: any error of the connection."""
        waiting: set[asyncio.Future[Any]] = {self._ready, self._task}
        async with asyncio.timeout(self._options.start_s):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            await self._task
        self.tools = self._ready.result()

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._stop.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task})
        problem = None if self._task.cancelled() else self._task.exception()
        if problem is not None and self._ready.done():
            log.warning("mcp_connection_ended", error=_cause(problem))

    async def _serve(self) -> None:
        async with AsyncExitStack() as resources:
            client = await resources.enter_async_context(await _client(self._options, resources))
            try:
                tools = self._chosen(await _listed(client), client)
            except InvalidInput as problem:  # inside the client, it would become one of a group of errors
                self._ready.set_exception(problem)
                return
            self._ready.set_result(tools)
            await self._stop.wait()

    def _chosen(self, listed: Sequence["ListedTool"], client: "Client") -> tuple[Tool, ...]:
        wanted = self._options.tools or tuple(item.name for item in listed)
        tool_by_name = {item.name: item for item in listed}
        missing = [name for name in wanted if name not in tool_by_name]
        if missing or not wanted:
            raise InvalidInput(
                f"cannot use the MCP server: it does not list the tools {', '.join(missing) or '(any)'}; it has "
                f"{', '.join(tool_by_name) or 'none'}",
                code="tool.mcp_not_listed",
            )
        return tuple(self._tool(tool_by_name[name], client) for name in wanted)

    def _tool(self, listed: "ListedTool", client: "Client") -> Tool:
        async def call(arguments: Mapping[str, Json]) -> str:
            return await self._call(client, listed.name, arguments)

        return replace(checked_tool(listed), call=call, timeout_s=self._options.call_s)

    async def _call(self, client: "Client", name: str, arguments: Mapping[str, Json]) -> str:
        from mcp.shared.exceptions import MCPError
        from mcp.types import CONNECTION_CLOSED

        if not self.is_open:
            raise _server_failed("the server ended")
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as problem:
            if problem.code != CONNECTION_CLOSED and self.is_open:
                raise ToolError(problem.message[:MAX_RESULT_CHARACTERS], code="tool.mcp_error") from None
            self._is_broken = True
            raise _server_failed(problem.message) from problem
        except Exception as problem:  # of the transport
            self._is_broken = True
            raise _server_failed(f"{type(problem).__name__}: {problem}") from problem
        text = _text(result)
        if result.is_error:
            raise ToolError(text, code="tool.mcp_error")
        return text


async def _connect(options: McpOptions) -> _Connection:
    """Returns an open connection. Raises: InvalidInput; Unavailable."""
    connection = _Connection(options)
    try:
        await connection.ready()
    except BaseException as problem:
        await connection.close()
        if isinstance(problem, InvalidInput) or not isinstance(problem, Exception):
            raise
        cause = _cause(problem)
        if isinstance(problem, TimeoutError):
            cause = f"no answer after {options.start_s:g} s"
        raise Unavailable(
            f"cannot connect to the MCP server {options.url or options.command[0]!r}: {cause}; check that it runs",
            code="tool.mcp_unavailable",
        ) from problem
    return connection


def _cause(problem: BaseException) -> str:
    """Returns the first error of a group of errors as text."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return f"{type(problem).__name__}: {problem}"


async def _client(options: McpOptions, resources: AsyncExitStack) -> "Client":
    with needs_extra("mcp", to="use MCP servers"):
        from mcp import Client, StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client

        from astraflow.tools.mcp_limits import http_client, limited_command
    if options.command:
        program, arguments = limited_command(*options.command)
        environment = child_environment(**_variables(options.variables))
        return Client(StdioServerParameters(command=program, args=arguments, env=environment))
    token = _variables((options.token_variable,))[options.token_variable] if options.token_variable else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    http = await resources.enter_async_context(http_client(headers))
    return Client(streamable_http_client(options.url, http_client=http, max_sse_event_size=2 * MAX_RESULT_CHARACTERS))


def _variables(names: Sequence[str]) -> dict[str, str]:
    """Returns environment variables. Raises: InvalidInput when one is not set."""
    for name in names:
        if name not in os.environ:
            raise InvalidInput(
                f"cannot connect to the MCP server: the environment variable {name!r} is not set; set it for the node",
                code="tool.mcp_variable_missing",
            )
    return {name: os.environ[name] for name in names}


async def _listed(client: "Client") -> list["ListedTool"]:
    """Returns all tools of the server. Raises: InvalidInput for too many."""
    tools: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None and len(tools) <= MAX_TOOLS:
            return tools
    raise _unusable(f"it lists more than {MAX_TOOLS} tools, or pages without end")


def checked_tool(listed: "ListedTool") -> Tool:
    """Returns the tool without its call. Raises: InvalidInput for an unusable name, description or schema."""
    name, description = listed.name, listed.description or listed.name
    schema: dict[str, Any] = dict(listed.input_schema)
    if TOOL_NAME.fullmatch(name) is None:
        raise _unusable(f"the tool {name[:80]!r} has a name that policies cannot write")
    if len(description) > MAX_DESCRIPTION_CHARACTERS or len(json.dumps(schema)) > MAX_SCHEMA_CHARACTERS:
        raise _unusable(f"the description or the schema of the tool {name!r} is too long for a prompt")
    if not isinstance(schema.get("properties", {}), Mapping):
        raise _unusable(f"the schema of the tool {name!r} has no named arguments")
    wrong = next((key for key in _argument_names(schema) if PARAMETER_NAME.fullmatch(key) is None), None)
    if wrong is not None:
        raise _unusable(f"the tool {name!r} has an argument {wrong[:80]!r}, a name that policies cannot write")
    return Tool(name=name, description=description, parameters=schema, call=_not_connected)


def _argument_names(schema: Any) -> Iterator[str]:
    """Yields the names of arguments and of their parts, at any depth of a schema."""
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            yield from value
            for inner in value.values():
                yield from _argument_names(inner)
        elif key not in ("enum", "const", "default", "examples"):
            for inner in value if isinstance(value, list) else [value]:
                yield from _argument_names(inner)


async def _not_connected(arguments: Mapping[str, Json]) -> str:
    raise _server_failed("not connected")


def _unusable(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot use the MCP server: {cause}; name the usable ones in its option tools", code="tool.mcp_unusable"
    )


def _server_failed(cause: str) -> RolloutFailed:
    return RolloutFailed(
        f"cannot call a tool: the MCP server failed: {cause}", boundary=Boundary.ENVIRONMENT, code="rollout.mcp_failed"
    )


def _text(result: "CallToolResult") -> str:
    """Returns the text of a result; other content is only named."""
    parts = (part.text if part.type == "text" else f"[{part.type} content is not shown]" for part in result.content)
    return "\n".join(parts)[:MAX_RESULT_CHARACTERS]
