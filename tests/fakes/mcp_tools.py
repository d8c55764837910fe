"""An MCP server with tools that work, fail and end the server. Run it for standard input and output."""

import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent


def tool_server(*, extra: int = 0) -> MCPServer:
    """Returns the server. extra: number of further tools."""
    server = MCPServer("test")
    total = 0

    @server.tool()
    async def add(a: int, b: int = 1) -> str:
        """Adds two numbers."""
        return str(a + b)

    @server.tool()
    async def count() -> str:
        """Counts its calls."""
        nonlocal total
        total += 1
        return str(total)

    @server.tool()
    async def fail() -> str:
        """Always fails."""
        raise ToolError("no luck")

    @server.tool()
    async def die() -> str:
        """Ends the server."""
        os._exit(3)

    @server.tool()
    async def picture() -> list[TextContent | ImageContent]:
        """Shows a picture."""
        return [TextContent(type="text", text="see"), ImageContent(type="image", data="AAAA", mime_type="image/png")]

    @server.tool()
    async def flood() -> str:
        """Returns 2 MB."""
        return "x" * 2**21

    for index in range(extra):
        server.add_tool(add, name=f"extra_{index}")
    return server


if __name__ == "__main__":
    tool_server().run("stdio")
