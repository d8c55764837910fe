"""What clients of MCP are given besides tools: the words of whoever is on call, and files for Claude Code.

`deploy/claude` holds the same files, for whoever has the repository.
"""

import json

from maintainer.prompt import SYSTEM
from maintainer.tools.base import Kind
from maintainer.tools.registry import TOOLS

NAME = "astraflow"
"""Of the server: clients put it before the names of tools and prompts."""
PROMPT = "astraflow-oncall"
TITLE, DESCRIPTION = "On call", "Look after the fleet of the run now."

ONCALL = f"""\
You are on call for the fleet of an AstraFlow run. Begin with fleet_report, in the concise format.

{SYSTEM}
Here you work for the person in front of you: say what is the matter and what you would do before fleet_apply, and end \
with the note.
"""

BUILT_IN = (
    *("Agent", "Bash", "CronCreate", "Edit", "EnterWorktree", "Glob", "Grep", "LSP", "Monitor", "NotebookEdit"),
    *("PowerShell", "Read", "Task", "WebFetch", "WebSearch", "Write"),
)
"""Claude Code's own tools that read, write, run or reach something, or start others that do (`Task` is `Agent` of old).

Source: its tools reference, code.claude.com/docs/en/tools-reference.
"""


def settings() -> str:
    """A settings file for Claude Code: reads and plans are allowed, applying is asked for, what is known is denied."""
    ours = {kind: [f"mcp__{NAME}__{tool.name}" for tool in TOOLS.values() if tool.kind is kind] for kind in Kind}
    permissions = {
        "allow": ours[Kind.READ] + ours[Kind.PROPOSE],
        "ask": ours[Kind.MUTATE],
        "deny": [*ours[Kind.CAUTION], *BUILT_IN],
        "disableBypassPermissionsMode": "disable",
    }
    return json.dumps({"permissions": permissions}, indent=2) + "\n"


def command() -> str:
    """A command file for Claude Code: `/astraflow-oncall`, in the words of the server's prompt."""
    return f"---\ndescription: {DESCRIPTION}\n---\n\n{ONCALL}"
