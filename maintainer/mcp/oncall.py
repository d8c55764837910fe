"""Prompt for a person on call, and files for Claude Code.

`deploy/claude` holds the same files.
"""

import json

from maintainer.agent.prompt import SYSTEM
from maintainer.agent.tools.base import Kind
from maintainer.agent.tools.registry import TOOLS

NAME = "astraflow"
"""Name of the MCP server; clients prefix tools and prompts with it."""
PROMPT = "astraflow-oncall"
TITLE, DESCRIPTION = "On call", "Check the fleet of the run now and propose changes."

ONCALL = f"""\
You are on call for the fleet of an AstraFlow run. Start with fleet_report in the concise format.

{SYSTEM}
In this session you assist a person: before fleet_apply, state the problem and the change that you propose. End with \
the note.
"""

BUILT_IN = (
    *("Agent", "Bash", "CronCreate", "Edit", "EnterWorktree", "Glob", "Grep", "LSP", "Monitor", "NotebookEdit"),
    *("PowerShell", "Read", "Task", "WebFetch", "WebSearch", "Write"),
)
"""Built-in tools of Claude Code that read, write, execute, or start other agents (`Task` is the former `Agent`).

Source: its tools reference, code.claude.com/docs/en/tools-reference.
"""


def settings() -> str:
    """Settings file for Claude Code: allows reading and planning, asks before applying, denies the other known
    tools."""
    tools_by_kind = {
        kind: [f"mcp__{NAME}__{tool.name}" for tool in TOOLS.values() if tool.kind is kind] for kind in Kind
    }
    permissions = {
        "allow": tools_by_kind[Kind.READ] + tools_by_kind[Kind.PROPOSE],
        "ask": tools_by_kind[Kind.MUTATE],
        "deny": [*tools_by_kind[Kind.CAUTION], *BUILT_IN],
        "disableBypassPermissionsMode": "disable",
    }
    return json.dumps({"permissions": permissions}, indent=2) + "\n"


def command() -> str:
    """Command file for Claude Code: `/astraflow-oncall` with the text of the server's prompt."""
    return f"---\ndescription: {DESCRIPTION}\n---\n\n{ONCALL}"
