"""Registry of tool sources, whose tools a policy calls during an episode."""

from astraflow.runtime.plugins import Registry
from astraflow.tools.base import ToolSource

tool_sources: Registry[ToolSource] = Registry(
    "tool",
    built_in={
        "search": "astraflow.tools.search",
    },
    install_hint="install it with pip install 'astraflow[search]'",
)
