"""Registry of tool sources, whose tools a policy calls during an episode."""

from astraflow.runtime.plugins import Registry
from astraflow.tools.base import ToolSource

tool_sources: Registry[ToolSource] = Registry(
    "tool",
    built_in={
        "calculator": "astraflow.tools.calculator",
        "functions": "astraflow.tools.functions",
        "mcp": "astraflow.tools.mcp_servers",
        "sandbox": "astraflow.tools.sandbox_tools",
        "search": "astraflow.tools.search",
    },
    extra="search",
)
